"""[fig-12] The longest copy of a model, in steps, with which a unit that joins costs the others nothing, beside Figure 12 of Decoupled
DiLoCo (arXiv 2604.21428).

Three learners train, and a fourth joins. The syncer's link carries the broadcasts to all, and the parameters for the newcomer. The link
takes `copy_steps` steps for one copy of the model, that is for the bytes of all fragments in a broadcast. Elastic data parallel stops all
learners for the copy.

Nothing is fitted. The paper says that joining is free until a copy takes about 6 steps at H = 24, `1/6 = (3 + 1)/24`, and costs as much as
with elastic data parallel when it takes 24. Both follow if learners wait for their exchanges (`lost_by_waiting`). Ours do not wait: they
train on, and contributions that do not pass the link in time are not merged.

The paper's link is only slow. Latency and loss (`Distance`) are our addition, for learners far from the syncer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

from diloco.contract import Checkpoint, Training
from diloco.simulation.job import SimulatedJob
from diloco.simulation.network import Sizes
from diloco.simulation.path import Path
from diloco.simulation.unit import Hardware
from diloco_cli.plots import COLOURS, Axis, Line, Plot, Rule, picture
from numpy.random import default_rng

from benchmarks.figure import Figure
from benchmarks.plots import plot

H: Final = 24
OTHERS: Final = 3
COPY_STEPS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, H)
PUBLISHED_FREE: Final = 6
"""Joining is free as long as a copy takes at most this many steps."""
PREDICTED_FREE: Final = 6
"""Our prediction of the same, written before the first run. Of the four streams that share the link the newcomer's has a quarter. The
broadcasts to three learners, 3/24 copies a step, need the other three quarters of a link that takes 6 steps for a copy."""
FREE: Final = 1 / H
"""Joining is free if, while the newcomer gets its copy, the others lose at most this share of their merged work: one step of H."""
WARM_UP: Final = 240.0
"""Steps before the newcomer joins."""
MOST_STEPS: Final = 480.0
"""The simulation waits this many steps for the newcomer to train."""
LEAST_STEPS: Final = 2.0 * H
"""The others are compared over at least 2 H steps."""
COPY_BITS: Final = 16 * 5e9
"""Bits of a copy as broadcasts carry it: a model of 5 billion parameters, as in Table 13. Without latency the size does not matter."""
CONNECTIONS: Final = 64
"""Connections of a learner: one for each of its processes. Without latency their number does not matter."""
_WHOLE: Final = 2.0
"""Size of a value in float32, as the newcomer gets it, over its size in bf16, as in a broadcast."""
SEEDS: Final = 8
"""Simulated jobs for each row."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far all learners are from the syncer."""

    latency: float = 0.0
    """One way, in steps, each of which takes a second."""
    loss: float = 0.0
    """The share of TCP segments that are lost."""


NEAR: Final = Distance()
FAR: Final = {"50 ms": Distance(0.05), "200 ms": Distance(0.2), "50 ms, loss 0.0001": Distance(0.05, 1e-4)}
"""Name -> latency one way, and the share of segments that are lost."""


@dataclass(frozen=True, slots=True)
class Join:
    """What a newcomer costs the others."""

    copy_steps: int
    steps: float
    """Steps until the newcomer trains; at most `MOST_STEPS`."""
    trains: bool
    """The newcomer trained within that time."""
    alone: float
    """Merged work of the others without the newcomer, during these steps or `LEAST_STEPS`, as a share of what they merge over a link that
    costs no time."""
    beside: float
    """The same share with the newcomer."""
    contributions: float = 0.0
    """Contributions per merge of the job with the newcomer, from its beginning to the end of the comparison."""
    staleness: float = 0.0
    """Staleness of the units of that job, see `Outcome`."""

    @property
    def lost(self) -> float:
        """The share of their work that the newcomer costs the others. By chance it may be below 0."""
        return self.alone - self.beside

    @property
    def lost_steps(self) -> float:
        """Steps that each of the other learners loses."""
        return self.lost * max(self.steps, LEAST_STEPS)

    @property
    def free(self) -> bool:
        return self.alone > 0 and self.lost <= FREE * self.alone


def lost_by_waiting(copy_steps: int) -> int:
    """Steps that each of the others loses, in closed form, if learners wait for their exchanges instead of training on.

    In H steps each of the three exchanges one copy of the model, fragment by fragment, and the newcomer gets one. So the link is busy for
    `4 * copy_steps`, and without the newcomer for `3 * copy_steps`. Learners wait for what goes beyond H steps.
    """
    return max(H, (OTHERS + 1) * copy_steps) - max(H, OTHERS * copy_steps)


def simulate(copy_steps: int, seeds: int, seed: int, distance: Distance = NEAR) -> Join:
    """The means over `seeds` jobs, but the time of the slowest newcomer. A step takes a second, H = P = 24, tau = 2."""
    longest, trains = 0.0, True
    fast = alone = beside = contributions = staleness = 0.0
    for index in range(seeds):
        job = _job(copy_steps, seed + index, distance)
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
        alone += _merged_meanwhile(copy_steps, seed + index, distance, until)
        fast += _merged_meanwhile(0, seed + index, NEAR, until)
        trains = trains and newcomer.joined_at is not None
    return Join(copy_steps, longest, trains, alone / fast, beside / fast, contributions, staleness)


def _merged_meanwhile(copy_steps: int, seed: int, distance: Distance, until: float) -> float:
    """What the others merge without a newcomer, between `WARM_UP` and `until`."""
    job = _job(copy_steps, seed, distance)
    before = _merged(job)
    job.run(until)
    return _merged(job) - before


def _hardware(distance: Distance) -> Hardware:
    path = Path(latency=distance.latency, loss=distance.loss, connections=CONNECTIONS)
    return Hardware(step_seconds=1.0, step_variation=0.1, path=path)


def _job(copy_steps: int, seed: int, distance: Distance) -> SimulatedJob:
    """Make a job that has trained for `WARM_UP` steps. If `copy_steps` is 0, the link costs no time."""
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
    """All rows of the figure."""
    return [simulate(copy_steps, seeds, seed, distance) for copy_steps in COPY_STEPS]


def free_until(found: Sequence[Join]) -> int:
    """The longest copy, in steps, such that joining is free for it and for each shorter one. 0 if it is free for none."""
    longest = 0
    for join in found:
        if not join.free:
            break
        longest = join.copy_steps
    return longest


def measure(*, smoke: bool) -> Iterator[Figure]:
    rows = joins(1 if smoke else SEEDS, seed=1)
    free = free_until(rows)
    plot("fig-12", partial(plot_fig_12, rows), smoke=smoke)
    details = {
        "published": PUBLISHED_FREE,
        "predicted": PREDICTED_FREE,
        "rows": [_line(join) for join in rows],
        "far": {} if smoke else {name: _far(distance) for name, distance in FAR.items()},
    }
    yield Figure("fig-12", free, "steps of a copy", PUBLISHED_FREE, free >= PUBLISHED_FREE, len(rows), details)


def _line(join: Join) -> dict[str, Any]:
    return {
        "copy_steps": join.copy_steps,
        "trains_after_steps": round(join.steps, 1) if join.trains else None,
        "merged_alone": round(join.alone, 4),
        "merged_beside": round(join.beside, 4),
        "lost_steps": round(join.lost_steps, 2),
        "lost_steps_if_waiting": lost_by_waiting(join.copy_steps),
        "contributions_per_merge": round(join.contributions, 3),
        "staleness": round(join.staleness, 3),
        "free": join.free,
    }


def _far(distance: Distance) -> dict[str, float]:
    """At this distance: the longest copy for which joining is free; what the three alone merge when a copy takes `PUBLISHED_FREE` steps;
    and the most that they merge in a row. One job for each row."""
    rows = joins(1, seed=1, distance=distance)
    (row,) = (join for join in rows if join.copy_steps == PUBLISHED_FREE)
    return {"free_until": free_until(rows), "merged_alone": round(row.alone, 4), "most_merged_alone": round(max(j.alone for j in rows), 4)}


def plot_fig_12(found: Sequence[Join]) -> Element:
    """Draw the merged work of the others over the time of a copy."""
    alone = Line("three learners alone", [(join.copy_steps, 100 * join.alone) for join in found], COLOURS[0], dashes="6 4", marks=True)
    beside = Line("the three while a fourth joins", [(join.copy_steps, 100 * join.beside) for join in found], COLOURS[1], marks=True)
    published = Rule("published: free until here", PUBLISHED_FREE, "#999999", vertical=True)
    x = Axis("steps that the link takes for one copy of the model", 0, max(join.copy_steps for join in found))
    y = Axis("merged work, %", 0, 105)
    return picture(Plot("What a unit that joins costs the others, H = 24", x, y, [published, alone, beside]))
