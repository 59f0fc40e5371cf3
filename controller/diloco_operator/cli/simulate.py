"""`diloco simulate`: jobs on virtual time, with the coordinator of real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import starmap
from multiprocessing import get_context

import click
from diloco.simulation.goodput import Use
from diloco.simulation.job import Outcome
from diloco.simulation.table1 import CALIBRATION, CELLS, CHIPS_PER_SLICE, LLAMA_YEARS, Cell, Row, rms, seconds_of
from diloco.simulation.table1 import simulate as simulate_cell
from rich.console import Console
from rich.table import Table

_WIDTH = 130
"""Columns that the table takes."""
_BADPUT = tuple(use for use in Use if use is not Use.TRAINING)


@click.group(short_help="Simulate jobs: what they would yield where chips fail.")
def simulate() -> None:
    """Simulate jobs on virtual time, on the coordinator that runs in syncers. No process is started, and no model is trained."""


@simulate.command("table-1", short_help="Goodput and uptime by units and chips.")
@click.option(
    "--unit-seconds", type=click.FloatRange(min=100.0), default=100_000.0, show_default=True, help="Virtual seconds of all units."
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same figures on each machine.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default="cores", help="Processes side by side.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format of the output.")
def table_1(unit_seconds: float, seed: int, jobs: int, output: str) -> None:
    """Show goodput and uptime of 1 to 32 units on 150,000 to 2.4 million chips beside Table 1 of Decoupled DiLoCo (arXiv 2604.21428).

    The paper's chips fail once in a year each; the last column has the rate that Llama 3 reported, one failure in 5.8 years and
    accelerator. What the paper does not print was fitted on the cells marked "fit"; all others are predictions.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    cells = [(cell, years) for years in (1.0, LLAMA_YEARS) for cell in CELLS]
    outcomes = _simulated(partial(_outcome, unit_seconds, seed), cells, jobs)
    rows = [Row(cell, outcome) for cell, outcome in zip(CELLS, outcomes[: len(CELLS)], strict=True)]
    llama = outcomes[len(CELLS) :]
    if output == "json":
        for line in _lines(rows, llama):
            click.echo(line)
        return
    console = Console()
    console.width = max(console.width, _WIDTH)  # a narrower terminal wraps lines; nothing is cut
    console.print(_table(rows, llama))
    click.echo(_summary(rows))


def _simulated(simulate: Callable[[Cell, float], Outcome], cells: Sequence[tuple[Cell, float]], jobs: int) -> list[Outcome]:
    """In so many processes, which do not fork from one that has threads."""
    if jobs == 1:
        return list(starmap(simulate, cells))
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(simulate, *zip(*cells, strict=True)))


def _outcome(unit_seconds: float, seed: int, cell: Cell, years: float) -> Outcome:
    return simulate_cell(cell, seconds_of(cell, unit_seconds), seed, years)


def _summary(rows: list[Row]) -> str:
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    return (
        f"root mean square error: {rms(rows):.2f} points over the published cells, {rms(predicted):.2f} over those that were predicted.\n"
        f"Fitted: steps of {CALIBRATION.step_seconds:g} s, {CALIBRATION.down_seconds:g} s to go on without a slice of {CHIPS_PER_SLICE} "
        f"chips, {CALIBRATION.up_seconds:g} s to take one back, which comes back after {CALIBRATION.return_seconds:g} s in the mean; "
        f"{CALIBRATION.restart_seconds:g} s for a restart of all."
    )


def _table(rows: list[Row], llama: list[Outcome]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("UNITS", "CHIPS"):
        table.add_column(name, justify="right" if name == "CHIPS" else "left")
    for name in ("GOODPUT", "PUBLISHED", "UPTIME", "PUBLISHED", "", "LOST", "RECOVERY", "RECONFIG", "MISSING", "AT 5.8 YEARS"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for row, other in zip(rows, llama, strict=True):
        outcome, published = row.outcome, row.published
        kind = "fit" if row.fitted else "predicted" if published is not None else "not published"
        shares = (Use.LOST_WORK, Use.RECOVERY, Use.RECONFIGURATION, Use.MISSING)
        table.add_row(
            row.cell.row,
            f"{row.cell.chips:,}",
            f"{100 * outcome.goodput:.1f}",
            f"{published.goodput}" if published is not None else "-",
            f"{100 * outcome.uptime:.1f}",
            f"{published.uptime}" if published is not None else "-",
            kind,
            *(f"{100 * outcome.accounts.share(use):.1f}" for use in shares),
            f"{100 * other.goodput:.1f}",
        )
    return table


def _lines(rows: list[Row], llama: list[Outcome]) -> Iterator[str]:
    """A JSON object a cell, and one for all. Shares are 0..1, as everywhere in JSON."""
    for row, other in zip(rows, llama, strict=True):
        outcome, published = row.outcome, row.published
        yield json.dumps(
            {
                "units": row.cell.units,
                "chips": row.cell.chips,
                "elastic": row.cell.elastic,
                "goodput": round(outcome.goodput, 4),
                "uptime": round(outcome.uptime, 4),
                "published": {"goodput": published.goodput / 100, "uptime": published.uptime / 100} if published is not None else None,
                "fitted": row.fitted,
                "badput": {use.value: round(outcome.accounts.share(use), 4) for use in _BADPUT},
                "contributionsPerMerge": round(outcome.contributions, 2),
                "mergedTokens": round(outcome.merged_tokens, 4),
                "outerSteps": outcome.outer_steps,
                "goodputAtLlamaRate": round(other.goodput, 4),
            }
        )
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    yield json.dumps(
        {"figure": "table-1", "value": round(rms(rows), 3), "unit": "points rms", "limit": 1.5, "predicted": round(rms(predicted), 3)}
    )
