"""[table-1] Goodput and uptime of 1 to 32 units on failing chips, beside Table 1 of Decoupled DiLoCo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from diloco.simulation.table1 import CELLS, LIMIT, NOISE, rms, simulate_cell
from diloco_cli.simulations.output import in_processes
from diloco_cli.simulations.table1 import plot_table_1

from benchmarks.figure import Figure
from benchmarks.plots import plot

SMOKE_NOISE, SMOKE_SECONDS = 100.0, 100.0
SEED = 1


def measure(*, smoke: bool) -> Iterator[Figure]:
    jobs = 1 if smoke else os.cpu_count() or 1
    least = SMOKE_SECONDS if smoke else None
    simulate = partial(simulate_cell, SMOKE_NOISE if smoke else NOISE, SEED, least=least)
    rows = in_processes(simulate, [(cell,) for cell in CELLS], jobs)
    plot("table-1", partial(plot_table_1, rows), smoke=smoke)
    predicted = rms(row for row in rows if not row.fitted)
    details = {"predicted": round(predicted, 3), "noise": round(max(row.noise for row in rows), 3)}
    yield Figure("table-1", rms(rows), "points rms", LIMIT, rms(rows) <= LIMIT, len(rows), details)
