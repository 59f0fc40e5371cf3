"""A unit that joins while others train: Figure 12 of Decoupled DiLoCo (arXiv 2604.21428).

Three learners train, and a fourth joins. The syncer's link carries the broadcasts to all, and the parameters that the newcomer gets. It
takes `copy_steps` steps for as many bytes as all fragments have in a broadcast. Elastic data parallel stops all learners for the copy.

Nothing is fitted. The paper has that joining is free until a copy takes about 6 steps at H = 24, `1/6 = (3 + 1)/24`, and costs as much as
with elastic data parallel when it takes 24. Both follow if learners wait for their exchanges (`lost_by_waiting`). Ours do not wait: they
train on, and what does not pass the link in time is not merged.

The paper's link is nothing but slow. Latency and loss (`Distance`) are ours: learners that are far from the syncer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from numpy.random import default_rng

from diloco.contract import Checkpoint, Training
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import SimulatedJob
from diloco.simulation.network import Sizes
from diloco.simulation.path import Path
from diloco.simulation.unit import Hardware

H: Final = 24
OTHERS: Final = 3
COPY_STEPS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, H)
PUBLISHED_FREE: Final = 6
"""Steps of a copy up to which joining is free."""
PREDICTED_FREE: Final = 6
"""The same of ours, written before the first run: of four streams that share the link the newcomer's has a quarter, and the broadcasts of
three learners, 3/24 copies a step, need three quarters of a link that takes 6 steps for a copy."""
FREE: Final = 1 / H
"""Joining is free if, while the newcomer gets its copy, the others lose at most this share of their merged work: one step of H."""
WARM_UP: Final = 240.0
"""Steps before the newcomer."""
MOST_STEPS: Final = 480.0
"""How long a newcomer is waited for, in steps."""
LEAST_STEPS: Final = 2.0 * H
"""Over so many steps, 2 H, the others are compared at least."""
COPY_BITS: Final = 16 * 5e9
"""Bits of a copy as broadcasts carry it: a model of 5 billion parameters, as in Table 13. Without latency it does not matter."""
CONNECTIONS: Final = 64
"""Connections of a learner: one for each of its processes. Neither without latency."""
_WHOLE: Final = 2.0
"""Size of a whole value, float32, over that in a broadcast, bf16."""

_HARDWARE: Final = Hardware(
    slices=1,
    chips_per_slice=1,
    chip_seconds_between_failures=math.inf,
    step_seconds=1.0,
    down_seconds=0.0,
    up_seconds=0.0,
    returns=ReturnDelay(1.0, 1.0, 1.0),
    step_variation=0.1,
)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far all learners are from the syncer."""

    latency: float = 0.0
    """One way, steps: each takes a second."""
    loss: float = 0.0
    """The share of TCP's segments."""


NEAR: Final = Distance()


@dataclass(frozen=True, slots=True)
class Join:
    """What a newcomer costs the others."""

    copy_steps: int
    steps: float
    """Steps until it trains; `MOST_STEPS` at most."""
    trains: bool
    """It came to train in that time."""
    alone: float
    """What the others merge in that time, or in `LEAST_STEPS`, without the newcomer, in what they merge with a link that costs no time."""
    beside: float
    """The same with the newcomer."""
    contributions: float = 0.0
    """Per merge of the job with the newcomer, from its beginning to the end of the comparison."""
    staleness: float = 0.0
    """The staleness of the units of that job, see `Outcome`."""

    @property
    def lost(self) -> float:
        """The part of the others' work that the newcomer costs them meanwhile; below 0 by chance."""
        return self.alone - self.beside

    @property
    def lost_steps(self) -> float:
        """Return the steps that each other learner loses."""
        return self.lost * max(self.steps, LEAST_STEPS)

    @property
    def free(self) -> bool:
        return self.alone > 0 and self.lost <= FREE * self.alone


def lost_by_waiting(copy_steps: int) -> int:
    """Return steps that each of the others loses in closed form, if learners wait for their exchanges instead of training on.

    In H steps each of the three exchanges one copy of the model, fragment by fragment, and the newcomer gets one: the link is busy for
    `4 * copy_steps`, and without the newcomer for `3 * copy_steps`. What that is beyond H steps is waited for.
    """
    return max(H, (OTHERS + 1) * copy_steps) - max(H, OTHERS * copy_steps)


def simulate(copy_steps: int, seeds: int, seed: int, distance: Distance = NEAR) -> Join:
    """Return the mean over so many jobs, with the newcomer that takes longest. A step takes a second, H = P = 24, tau = 2."""
    longest, trains = 0.0, True
    fast = alone = beside = contributions = staleness = 0.0
    for one in range(seeds):
        job = _job(copy_steps, seed + one, distance)
        job.add([_hardware(distance)])
        newcomer = job.units[f"u{OTHERS}"]
        before, end = _merged(job), WARM_UP + MOST_STEPS
        while newcomer.joined_at is None and job.timeline.now < end:
            job.run(job.timeline.now + 1.0)
        longest = max(longest, job.timeline.now - WARM_UP)
        until = max(job.timeline.now, WARM_UP + LEAST_STEPS)
        outcome = job.run(until)
        contributions += outcome.contributions / seeds
        staleness += outcome.staleness / seeds
        beside += _merged(job) - before
        alone += _merged_meanwhile(copy_steps, seed + one, distance, until)
        fast += _merged_meanwhile(0, seed + one, NEAR, until)
        trains = trains and newcomer.joined_at is not None
    return Join(copy_steps, longest, trains, alone / fast, beside / fast, contributions, staleness)


def _merged_meanwhile(copy_steps: int, seed: int, distance: Distance, until: float) -> float:
    """Return what the others merged, without a newcomer, between `WARM_UP` and `until`."""
    job = _job(copy_steps, seed, distance)
    before = _merged(job)
    job.run(until)
    return _merged(job) - before


def _hardware(distance: Distance) -> Hardware:
    return replace(_HARDWARE, path=Path(latency=distance.latency, loss=distance.loss, connections=CONNECTIONS))


def _job(copy_steps: int, seed: int, distance: Distance) -> SimulatedJob:
    """Make a job that has trained for `WARM_UP` steps. A copy of 0 steps is a link that costs no time."""
    training = Training(steps=10**9, sync_interval=H, fragments=H, checkpoint=Checkpoint(every_steps=10**9))
    fragment = COPY_BITS / training.fragments
    sizes = Sizes(fragment, _WHOLE * fragment)
    bandwidth = COPY_BITS / copy_steps if copy_steps else math.inf
    job = SimulatedJob(training, [_hardware(distance)] * OTHERS, default_rng(seed), sizes=sizes, syncer_bandwidth=bandwidth)
    job.run(WARM_UP)
    return job


def _merged(job: SimulatedJob) -> float:
    return sum(job.merged_of[f"u{index}"] for index in range(OTHERS))


def joins(seeds: int, seed: int, distance: Distance = NEAR) -> list[Join]:
    """Return all rows of the figure."""
    return [simulate(copy_steps, seeds, seed, distance) for copy_steps in COPY_STEPS]


def free_until(found: Sequence[Join]) -> int:
    """Return the longest copy, steps, such that joining is free with it and with each shorter one; 0: with none."""
    longest = 0
    for join in found:
        if not join.free:
            break
        longest = join.copy_steps
    return longest
