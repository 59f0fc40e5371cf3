"""[table-5] Quorum and grace on learners of two speeds with the paper's clock and ours, beside Table 5 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from diloco.simulation.table5 import LIMIT, in_order, rows, worst
from diloco_cli.simulations.table5 import plot_table_5

from benchmarks.figure import Figure
from benchmarks.plots import plot

SECONDS, SMOKE_SECONDS = 5000.0, 60.0


def measure(*, smoke: bool) -> Iterator[Figure]:
    found = rows(SMOKE_SECONDS if smoke else SECONDS, seed=1)
    plot("table-5", partial(plot_table_5, found), smoke=smoke)
    ordered = in_order(found)
    yield Figure("table-5", worst(found), "points", LIMIT, worst(found) <= LIMIT and ordered, len(found), {"in_order": ordered})
