"""[fig-12] The longest copy of a model, in steps, with which a unit that joins costs the others nothing, beside Figure 12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from diloco.simulation.fig12 import PREDICTED_FREE, PUBLISHED_FREE, Join, free_until, joins
from matplotlib.figure import Figure as Drawing

from benchmarks.evidence.plots import COLOURS, label, plot
from benchmarks.figure import Figure

SEEDS = 8


def draw(found: Sequence[Join], drawing: Drawing) -> None:
    axes = drawing.add_subplot()
    copies = [join.copy_steps for join in found]
    axes.plot(copies, [100 * join.alone for join in found], "s--", color=COLOURS[0], fillstyle="none", label="three learners alone")
    axes.plot(copies, [100 * join.beside for join in found], "o-", color=COLOURS[1], label="the three while a fourth joins")
    axes.axvline(PUBLISHED_FREE, color="#999999", linestyle=":", label="published: free until here")
    axes.set_ylim(0, 105)
    axes.legend(loc="upper right")
    label(axes, "What a unit that joins costs the others, H = 24", "steps that the link takes for one copy of the model", "merged work, %")


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = joins(1 if smoke else SEEDS, seed=1)
    free = free_until(found)
    plot("fig-12", partial(draw, found), smoke=smoke)
    details = {"published": PUBLISHED_FREE, "predicted": PREDICTED_FREE}
    yield Figure("fig-12", free, "steps of a copy", PUBLISHED_FREE, free >= PUBLISHED_FREE, len(found), details)
