"""[fig-12] The longest copy of a model, in steps, with which a unit that joins costs the others nothing, beside Figure 12."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from diloco.simulation.fig12 import PREDICTED_FREE, PUBLISHED_FREE, free_until, joins
from diloco_cli.simulations.fig12 import plot_fig_12

from benchmarks.figure import Figure
from benchmarks.plots import plot

SEEDS = 8


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = joins(1 if smoke else SEEDS, seed=1)
    free = free_until(found)
    plot("fig-12", partial(plot_fig_12, found), smoke=smoke)
    details = {"published": PUBLISHED_FREE, "predicted": PREDICTED_FREE}
    yield Figure("fig-12", free, "steps of a copy", PUBLISHED_FREE, free >= PUBLISHED_FREE, len(found), details)
