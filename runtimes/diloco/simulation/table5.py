"""Quorum and grace on learners of two speeds: Table 5 of Decoupled DiLoCo (arXiv 2604.21428), with the paper's clock and with ours.

4 + 4 learners; the slower kind is 18 % behind, and each step varies by 10 %. Nothing is fitted. The paper does not say how far a learner
may be ahead of a quorum that is missing; here it waits for the outer step that it has reported for, which makes K = M a barrier.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from numpy.random import default_rng

from diloco.algorithm.clock import PullClock, ReportClock
from diloco.contract import Checkpoint, Grace, Training
from diloco.simulation.failures import ReturnDelay
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import Hardware

UNITS_OF_A_KIND: Final = 4
UNITS: Final = 2 * UNITS_OF_A_KIND
BEHIND: Final = 0.18
"""Share of the speed of the faster kind."""
VARIATION: Final = 0.1


class Pacing(enum.StrEnum):
    """The clock that drives the job."""

    PAPER = "paper"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of the table."""

    name: str
    quorum: int
    grace_steps: float
    goodput: int
    """Published, percent."""
    predicted: float
    """With the paper's clock, percent: written before the first run."""
    predicted_contributions: float
    """Per merge, the same."""


ARMS: Final = (
    # A step of all lasts as long as the longest: E[max] of four normals is 1.03 deviations above the mean, so
    # (1 + 1/0.82) / 2 of (1 + 0.103) / 0.82 seconds are work.
    Arm("K = M", UNITS, 0.0, 84, 82.5, 8.0),
    Arm("K = 1", 1, 0.0, 100, 100.0, 1.0),
    # A window of a mean step of 1.10 s, in which all fast learners and nine of ten slow ones, of 1.22 s, report.
    Arm("K = 1 + grace", 1, 1.0, 100, 100.0, 7.6),
)
LIMIT: Final = 2.0
"""Points of goodput that the paper's clock may be off."""
_ALL: Final = 0.05
"""So many contributions fewer than the units are still all."""
PREDICTED_OURS: Final = (100.0, 8.0)
"""Goodput, percent, and contributions per merge of every arm with our clock: written before the first run."""


def simulate(arm: Arm, pacing: Pacing, seconds: float, seed: int) -> Outcome:
    """Return the outcome of an arm over so many virtual seconds; steps of the faster kind take 1 s. H = P = 24, tau = 2."""
    paper = pacing is Pacing.PAPER
    kinds = [
        Hardware(
            slices=1,
            chips_per_slice=1,
            chip_seconds_between_failures=math.inf,
            step_seconds=step_seconds,
            down_seconds=0.0,
            up_seconds=0.0,
            returns=ReturnDelay.with_mean(1.0),
            step_variation=VARIATION,
            answers_at_once=paper,
        )
        for step_seconds in (1.0, 1.0 / (1.0 - BEHIND))
    ]
    training = Training(steps=10**9, quorum=arm.quorum, grace=Grace(max_steps=arm.grace_steps), checkpoint=Checkpoint(every_steps=10**9))
    hardware = [kind for kind in kinds for _ in range(UNITS_OF_A_KIND)]
    random = default_rng([seed, arm.quorum, round(1000 * arm.grace_steps)])
    clock = ReportClock() if paper else PullClock(training.sync_interval)
    return SimulatedJob(training, hardware, random, clock=clock).run(seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """What an arm came to with one of the clocks."""

    arm: Arm
    pacing: Pacing
    outcome: Outcome

    @property
    def predicted(self) -> tuple[float, float]:
        """Goodput, percent, and contributions per merge."""
        return (self.arm.predicted, self.arm.predicted_contributions) if self.pacing is Pacing.PAPER else PREDICTED_OURS

    @property
    def error(self) -> float:
        """Return the error of the goodput, in points of the published one."""
        return 100 * self.outcome.goodput - self.arm.goodput


def rows(seconds: float, seed: int) -> list[Row]:
    """Return all arms with the paper's clock, then all with ours."""
    return [Row(arm, pacing, simulate(arm, pacing, seconds, seed)) for pacing in Pacing for arm in ARMS]


def worst(found: Sequence[Row]) -> float:
    """Return largest error of the paper's clock, points."""
    return max(abs(row.error) for row in found if row.pacing is Pacing.PAPER)


def in_order(found: Sequence[Row]) -> bool:
    """Return whether the paper's clock merges most learners with K = M, fewer with K = 1 and grace, and least with K = 1; and ours all in
    each."""
    paper = {row.arm.name: row.outcome.contributions for row in found if row.pacing is Pacing.PAPER}
    ours = all(row.outcome.contributions >= UNITS - _ALL for row in found if row.pacing is Pacing.OURS)
    return paper["K = M"] > paper["K = 1 + grace"] > paper["K = 1"] and ours
