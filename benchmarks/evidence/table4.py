"""[table-4] Time that extra learners save if they join for half of the work, beside Table 4 of Decoupled DiLoCo (arXiv 2604.21428).

Four learners have a number of tokens to train. More learners join when half of these are merged, and stay. Nothing is fitted: at best the
job takes `0.5 + 0.5 / (1 + x)` of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element

from diloco.contract import Checkpoint, Training
from diloco.simulation.job import Outcome, SimulatedJob
from diloco.simulation.unit import TOKENS, Hardware
from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, picture
from numpy.random import default_rng

from benchmarks.figure import Figure
from benchmarks.plots import plot

UNITS: Final = 4
EXTRA: Final = (0.0, 0.25, 0.5, 1.0, 3.0)
"""Extra compute, relative to that of the four learners."""
PUBLISHED: Final[Mapping[float, float]] = {0.0: 1.0, 0.25: 0.90, 0.5: 0.83, 1.0: 0.75, 3.0: 0.62}
"""Extra compute -> time until all is trained, relative to that of the four learners alone."""
LIMIT: Final = 0.03
"""Limit of the relative error of the time against `ideal`."""
STEPS, SMOKE_STEPS = 4000, 50
"""Steps of each of the four learners alone."""
_HARDWARE: Final = Hardware(step_seconds=1.0, step_variation=0.1)


def ideal(extra: float) -> float:
    """The relative time if all work of extra learners counted from the moment when they join."""
    return 0.5 + 0.5 / (1.0 + extra)


def simulate(extra: float, steps: int, seed: int) -> Outcome:
    """Simulate a job whose four learners alone would take about `steps` steps each. H = P = 24, tau = 2, K = 1."""
    tokens = float(UNITS * steps * TOKENS)
    training = Training(steps=10**9, checkpoint=Checkpoint(every_steps=10**9))
    job = SimulatedJob(training, [_HARDWARE] * UNITS, default_rng([seed, round(1000 * extra)]))
    job.run(tokens=tokens / 2)
    job.add([_HARDWARE] * round(extra * UNITS))
    return job.run(tokens=tokens)


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome of a job with extra compute."""

    extra: float
    outcome: Outcome
    time: float
    """Relative to the time without extra learners."""

    @property
    def error(self) -> float:
        """Relative error against `ideal`."""
        return self.time / ideal(self.extra) - 1


def rows(steps: int, seed: int) -> list[Row]:
    """All rows of the table."""
    outcomes = {extra: simulate(extra, steps, seed) for extra in EXTRA}
    return [Row(extra, outcome, outcome.seconds / outcomes[0.0].seconds) for extra, outcome in outcomes.items()]


def worst(found: Sequence[Row]) -> float:
    """The largest relative error."""
    return max(abs(row.error) for row in found)


def measure(*, smoke: bool) -> Iterator[Figure]:
    table = rows(SMOKE_STEPS if smoke else STEPS, seed=1)
    plot("table-4", partial(plot_table_4, table), smoke=smoke)
    details = {"rows": [_line(row) for row in table]}
    yield Figure("table-4", worst(table), "relative error, largest", LIMIT, worst(table) <= LIMIT, len(table), details)


def _line(row: Row) -> dict[str, Any]:
    return {
        "extra": row.extra,
        "time": round(row.time, 4),
        "published": PUBLISHED[row.extra],
        "predicted": round(ideal(row.extra), 4),
        "contributions_per_merge": round(row.outcome.contributions, 3),
        "staleness": round(row.outcome.staleness, 3),
    }


def plot_table_4(found: Sequence[Row]) -> Element:
    """Draw time over extra compute."""
    curve = [3 * index / 60 for index in range(61)]
    least = Line("0.5 + 0.5 / (1 + x)", [(100 * extra, ideal(extra)) for extra in curve], "#999999")
    published = Marks("published", [(100 * row.extra, PUBLISHED[row.extra]) for row in found], COLOURS[1], hollow=True)
    ours = Marks("simulated", [(100 * row.extra, row.time) for row in found], COLOURS[0])
    x, y = Axis("extra compute, %", 0, 300), Axis("time, of that of the four", 0.5, 1.02)
    return picture(Plot("Four learners; others join for half of the work", x, y, [least, published, ours]))
