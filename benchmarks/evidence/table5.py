"""[table-5] Quorum and grace on learners of two speeds with the paper's clock and ours, beside Table 5 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from diloco.simulation.table5 import ARMS, LIMIT, UNITS, Pacing, Row, in_order, rows, worst
from matplotlib.figure import Figure as Drawing

from benchmarks.evidence.plots import COLOURS, label, plot
from benchmarks.figure import Figure

SECONDS, SMOKE_SECONDS = 5000.0, 60.0


def draw(found: Sequence[Row], drawing: Drawing) -> None:
    """Goodput on the left, learners in each merge on the right; bars for each arm and clock, and what was published."""
    left, right = drawing.subplots(1, 2)
    at = list(range(len(ARMS)))
    for index, pacing in enumerate(Pacing):
        of_clock = [row for row in found if row.pacing is pacing]
        places = [x + 0.4 * (index - 0.5) for x in at]
        name = "the paper's clock" if pacing is Pacing.PAPER else "ours"
        left.bar(places, [100 * row.outcome.goodput for row in of_clock], 0.38, color=COLOURS[index], label=name)
        right.bar(places, [row.outcome.contributions for row in of_clock], 0.38, color=COLOURS[index])
    left.plot([x - 0.2 for x in at], [arm.goodput for arm in ARMS], "ko", label="published")
    for axes in (left, right):
        axes.set_xticks(at, [arm.name for arm in ARMS])
        axes.grid(axis="x", visible=False)
    left.set_ylim(0, 118)
    right.set_ylim(0, UNITS + 0.5)
    left.legend(loc="upper center", ncols=3, fontsize=8, columnspacing=0.8, handletextpad=0.4)
    label(left, "Goodput", "", "%")
    label(right, f"Learners in each merge, of {UNITS}", "", "")


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = rows(SMOKE_SECONDS if smoke else SECONDS, seed=1)
    plot("table-5", partial(draw, found), smoke=smoke)
    ordered = in_order(found)
    yield Figure("table-5", worst(found), "points", LIMIT, worst(found) <= LIMIT and ordered, len(found), {"in_order": ordered})
