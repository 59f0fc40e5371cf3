"""[table-4] Time that extra learners save which join for half of the work, beside Table 4 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from diloco.simulation.table4 import LIMIT, PUBLISHED, Row, ideal, rows, worst
from matplotlib.figure import Figure as Drawing

from benchmarks.evidence.plots import COLOURS, label, plot
from benchmarks.figure import Figure

STEPS, SMOKE_STEPS = 4000, 50


def draw(found: Sequence[Row], drawing: Drawing) -> None:
    axes = drawing.add_subplot()
    curve = [3 * index / 60 for index in range(61)]
    axes.plot([100 * extra for extra in curve], [ideal(extra) for extra in curve], color="#999999", label="0.5 + 0.5 / (1 + x)")
    extra = [100 * row.extra for row in found]
    axes.plot(extra, [PUBLISHED[row.extra] for row in found], "s", color=COLOURS[1], markersize=8, fillstyle="none", label="published")
    axes.plot(extra, [row.time for row in found], "o", color=COLOURS[0], label="simulated")
    axes.set_ylim(0.5, 1.02)
    axes.legend(loc="upper right")
    label(axes, "Four learners; others join for half of the work", "extra compute, %", "time, of that of the four")


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = rows(SMOKE_STEPS if smoke else STEPS, seed=1)
    plot("table-4", partial(draw, found), smoke=smoke)
    yield Figure("table-4", worst(found), "relative error, largest", LIMIT, worst(found) <= LIMIT, len(found))
