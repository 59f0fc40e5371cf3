"""[table-1] Goodput and uptime of 1 to 32 units on failing chips, beside Table 1 of Decoupled DiLoCo."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

from diloco.simulation.table1 import CELLS, CHIPS, LIMIT, NOISE, PUBLISHED, UNITS, Cell, Row, rms, simulate_cell
from diloco_operator.cli.simulations.output import in_processes
from matplotlib.figure import Figure as Drawing

from benchmarks.evidence.plots import COLOURS, label, plot
from benchmarks.figure import Figure

SMOKE_NOISE, SMOKE_SECONDS = 100.0, 100.0
SEED = 1


def draw(rows: Sequence[Row], drawing: Drawing) -> None:
    """Goodput over chips, a line for each number of units, with the published cells as marks."""
    axes = drawing.add_subplot()
    found = {row.cell: 100 * row.outcome.goodput for row in rows}
    lines = [(1, False), *((units, True) for units in UNITS)]
    for (units, elastic), colour in zip(lines, COLOURS, strict=True):
        cells = [Cell(units, chips, elastic) for chips in CHIPS]
        name = f"{units}" if elastic else "1, not elastic"
        axes.plot(CHIPS, [found[cell] for cell in cells], color=colour, label=name, linestyle="-" if elastic else ":")
        marks = [(cell.chips, PUBLISHED[cell].goodput) for cell in cells if cell in PUBLISHED]
        axes.plot(*zip(*marks, strict=True) if marks else ((), ()), "o", color=colour, markersize=5)
    axes.set_xscale("log")
    axes.set_xticks(CHIPS, [f"{chips / 1e6:g}M" if chips >= 1_000_000 else f"{chips // 1000}k" for chips in CHIPS])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.legend(title="units", loc="lower left", ncols=2)
    label(axes, "Goodput where each chip fails once in a year; dots: published", "chips", "goodput, %")


def measure(*, smoke: bool) -> Iterator[Figure]:
    jobs = 1 if smoke else os.cpu_count() or 1
    least = SMOKE_SECONDS if smoke else None
    simulate = partial(simulate_cell, SMOKE_NOISE if smoke else NOISE, SEED, least=least)
    rows = in_processes(simulate, [(cell,) for cell in CELLS], jobs)
    plot("table-1", partial(draw, rows), smoke=smoke)
    predicted = rms(row for row in rows if not row.fitted)
    details = {"predicted": round(predicted, 3), "noise": round(max(row.noise for row in rows), 3)}
    yield Figure("table-1", rms(rows), "points rms", LIMIT, rms(rows) <= LIMIT, len(rows), details)
