"""[table-5] Quorum and grace on learners of two speeds, with the paper's clock and ours, beside Table 5 of Decoupled DiLoCo (arXiv
2604.21428).

There are 4 + 4 learners. The slower kind is 18 % behind, and each step varies by 10 %. Nothing is fitted. The paper does not say how far a
learner may run ahead of a missing quorum. Here it waits for the outer step that it has reported for, so K = M is a barrier.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

from diloco.contract import Checkpoint, Grace, Training
from diloco.goodput import Use
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import Hardware
from diloco_cli.plots import COLOURS, Axis, Bars, Marks, Plot, Series, picture
from numpy.random import default_rng

from benchmarks.evidence.report_clock import ReportClock
from benchmarks.figure import Figure
from benchmarks.plots import plot

UNITS_OF_A_KIND: Final = 4
UNITS: Final = 2 * UNITS_OF_A_KIND
BEHIND: Final = 0.18
"""How far the slower kind is behind, as a share of the faster kind's speed."""
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
    """Published goodput, percent."""
    predicted: float
    """Goodput with the paper's clock, percent, written down before the first run."""
    predicted_contributions: float
    """Contributions per merge with the paper's clock, written down at the same time."""


ARMS: Final = (
    # A step of all learners lasts as long as the longest. E[max] of four normals is 1.03 deviations above the mean, so of
    # (1 + 0.103) / 0.82 seconds (1 + 1/0.82) / 2 are work.
    Arm("K = M", UNITS, 0.0, 84, 82.5, 8.0),
    Arm("K = 1", 1, 0.0, 100, 100.0, 1.0),
    # The window lasts a mean step, 1.10 s. In it all fast learners report, and nine of ten slow ones, whose steps take 1.22 s.
    Arm("K = 1 + grace", 1, 1.0, 100, 100.0, 7.6),
)
SECONDS, SMOKE_SECONDS = 5000.0, 60.0
LIMIT: Final = 2.0
"""How far the paper's clock may be off, in points of goodput."""
_ALL: Final = 0.05
"""A mean of contributions that is at most this far below the number of units still counts as all units."""
PREDICTED_OURS: Final = (100.0, 8.0)
"""Goodput in percent, and contributions per merge, of every arm with our clock, written down before the first run."""


def simulate(arm: Arm, pacing: Pacing, seconds: float, seed: int) -> Outcome:
    """Simulate an arm for `seconds` of virtual time. Steps of the faster kind take 1 s. H = P = 24, tau = 2."""
    paper = pacing is Pacing.PAPER
    kinds = [
        Hardware(step_seconds=step_seconds, step_variation=VARIATION, answers_at_once=paper) for step_seconds in (1.0, 1.0 / (1.0 - BEHIND))
    ]
    training = Training(steps=10**9, quorum=arm.quorum, grace=Grace(max_steps=arm.grace_steps), checkpoint=Checkpoint(every_steps=10**9))
    hardware = [kind for kind in kinds for _ in range(UNITS_OF_A_KIND)]
    random = default_rng([seed, arm.quorum, round(1000 * arm.grace_steps)])
    return SimulatedJob(training, hardware, random, clock=ReportClock() if paper else None).run(seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome of an arm with one of the clocks."""

    arm: Arm
    pacing: Pacing
    outcome: Outcome

    @property
    def predicted(self) -> tuple[float, float]:
        """Predicted goodput in percent, and contributions per merge."""
        return (self.arm.predicted, self.arm.predicted_contributions) if self.pacing is Pacing.PAPER else PREDICTED_OURS

    @property
    def error(self) -> float:
        """Error of the goodput against the published one, in points."""
        return 100 * self.outcome.goodput - self.arm.goodput


def rows(seconds: float, seed: int) -> list[Row]:
    """All arms with the paper's clock, then all with ours."""
    return [Row(arm, pacing, simulate(arm, pacing, seconds, seed)) for pacing in Pacing for arm in ARMS]


def worst(found: Sequence[Row]) -> float:
    """The largest error of the paper's clock, in points."""
    return max(abs(row.error) for row in found if row.pacing is Pacing.PAPER)


def in_order(found: Sequence[Row]) -> bool:
    """Whether the paper's clock merges most learners with K = M, fewer with K = 1 and grace, and fewest with K = 1, while ours merges all
    learners in each arm."""
    paper = {row.arm.name: row.outcome.contributions for row in found if row.pacing is Pacing.PAPER}
    ours = all(row.outcome.contributions >= UNITS - _ALL for row in found if row.pacing is Pacing.OURS)
    return paper["K = M"] > paper["K = 1 + grace"] > paper["K = 1"] and ours


def measure(*, smoke: bool) -> Iterator[Figure]:
    table = rows(SMOKE_SECONDS if smoke else SECONDS, seed=1)
    plot("table-5", partial(plot_table_5, table), smoke=smoke)
    ordered = in_order(table)
    details = {"in_order": ordered, "rows": [_line(row) for row in table]}
    yield Figure("table-5", worst(table), "points", LIMIT, worst(table) <= LIMIT and ordered, len(table), details)


def _line(row: Row) -> dict[str, Any]:
    goodput, contributions = row.predicted
    return {
        "clock": row.pacing.value,
        "arm": row.arm.name,
        "goodput": round(row.outcome.goodput, 4),
        "published": row.arm.goodput / 100 if row.pacing is Pacing.PAPER else None,
        "contributions_per_merge": round(row.outcome.contributions, 3),
        "staleness": round(row.outcome.staleness, 3),
        "predicted": {"goodput": goodput / 100, "contributions_per_merge": contributions},
        "waiting": round(row.outcome.accounts.share(Use.WAITING), 4),
        "merged_tokens": round(row.outcome.merged_tokens, 4),
    }


def plot_table_5(found: Sequence[Row]) -> Element:
    """Draw goodput on the left and learners in each merge on the right, with bars for each arm and clock, and the published values."""
    at = range(len(ARMS))
    goodputs: list[Series] = []
    merges: list[Series] = []
    for index, pacing in enumerate(Pacing):
        rows = [row for row in found if row.pacing is pacing]
        name = "the paper's clock" if pacing is Pacing.PAPER else "ours"
        shift = 0.4 * (index - 0.5)
        goodputs.append(Bars(name, [(x, 100 * row.outcome.goodput) for x, row in zip(at, rows, strict=True)], COLOURS[index], shift, 0.38))
        merges.append(Bars(name, [(x, row.outcome.contributions) for x, row in zip(at, rows, strict=True)], COLOURS[index], shift, 0.38))
    goodputs.append(Marks("published", [(x - 0.2, arm.goodput) for x, arm in zip(at, ARMS, strict=True)], COLOURS[4], hollow=True))
    arms = Axis("", -0.6, len(ARMS) - 0.4, labels=[(x, arm.name) for x, arm in zip(at, ARMS, strict=True)])
    return picture(
        Plot("Goodput", arms, Axis("%", 0, 110), goodputs),
        Plot(f"Learners in each merge, of {UNITS}", arms, Axis("", 0, UNITS + 0.5), merges),
    )
