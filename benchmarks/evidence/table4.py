"""[table-4] Time that extra learners save which join for half of the work, beside Table 4 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from diloco.simulation.table4 import LIMIT, rows, worst
from diloco_cli.simulations.table4 import plot_table_4

from benchmarks.figure import Figure
from benchmarks.plots import plot

STEPS, SMOKE_STEPS = 4000, 50


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = rows(SMOKE_STEPS if smoke else STEPS, seed=1)
    plot("table-4", partial(plot_table_4, found), smoke=smoke)
    yield Figure("table-4", worst(found), "relative error, largest", LIMIT, worst(found) <= LIMIT, len(found))
