"""`diloco simulate table-1`: goodput and uptime of jobs on failing chips, beside the published ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import click
from diloco.goodput import BADPUT, Use
from diloco.simulation.job import Outcome
from diloco.simulation.table1 import CALIBRATION, CELLS, CHIPS_PER_SLICE, LIMIT, LLAMA_YEARS, Row, rms, simulate_cell

from diloco_operator.cli.simulations.output import in_processes, output_option, print_json, print_table, seed_option


@click.command("table-1", short_help="Goodput and uptime by units and chips.")
@click.option(
    "--unit-seconds", type=click.FloatRange(min=100.0), default=100_000.0, show_default=True, help="Virtual seconds of all units."
)
@seed_option
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default="cores", help="Processes side by side.")
@output_option
def table_1(unit_seconds: float, seed: int, jobs: int, output: str) -> None:
    """Show goodput and uptime of 1 to 32 units on 150,000 to 2.4 million chips beside Table 1 of Decoupled DiLoCo (arXiv 2604.21428).

    The paper's chips fail once in a year each; the last column has the rate that Llama 3 reported, one failure in 5.8 years and
    accelerator. What the paper does not print was fitted on the cells marked "fit"; all others are predictions.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    cells = [(cell, years) for years in (1.0, LLAMA_YEARS) for cell in CELLS]
    outcomes = in_processes(partial(simulate_cell, unit_seconds, seed), cells, jobs)
    rows = [Row(cell, outcome) for cell, outcome in zip(CELLS, outcomes[: len(CELLS)], strict=True)]
    llama = outcomes[len(CELLS) :]
    if output == "json":
        print_json(_lines(rows, llama))
        return
    print_table(_COLUMNS, (_cells(row, other) for row, other in zip(rows, llama, strict=True)), left=("UNITS", ""))
    click.echo(_summary(rows))


_COLUMNS = (
    *("UNITS", "CHIPS", "GOODPUT", "PUBLISHED", "UPTIME", "PUBLISHED", ""),
    *("LOST", "RECOVERY", "RECONFIG", "MISSING", "AT 5.8 YEARS"),
)


def _summary(rows: list[Row]) -> str:
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    return (
        f"root mean square error: {rms(rows):.2f} points over the published cells, {rms(predicted):.2f} over those that were predicted.\n"
        f"Fitted: steps of {CALIBRATION.step_seconds:g} s, {CALIBRATION.down_seconds:g} s to go on without a slice of {CHIPS_PER_SLICE} "
        f"chips, {CALIBRATION.up_seconds:g} s to take one back, which comes back after {CALIBRATION.return_seconds:g} s in the mean; "
        f"{CALIBRATION.restart_seconds:g} s for a restart of all."
    )


def _cells(row: Row, other: Outcome) -> tuple[str, ...]:
    outcome, published = row.outcome, row.published
    kind = "fit" if row.fitted else "predicted" if published is not None else "not published"
    shares = (Use.LOST_WORK, Use.RECOVERY, Use.RECONFIGURATION, Use.MISSING)
    return (
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


def _lines(rows: list[Row], llama: list[Outcome]) -> Iterator[dict[str, Any]]:
    """A JSON object a cell, and one for all. Shares are 0..1, as everywhere in JSON."""
    for row, other in zip(rows, llama, strict=True):
        outcome, published = row.outcome, row.published
        yield {
            "units": row.cell.units,
            "chips": row.cell.chips,
            "elastic": row.cell.elastic,
            "goodput": round(outcome.goodput, 4),
            "uptime": round(outcome.uptime, 4),
            "published": {"goodput": published.goodput / 100, "uptime": published.uptime / 100} if published is not None else None,
            "fitted": row.fitted,
            "badput": {use.value: round(outcome.accounts.share(use), 4) for use in BADPUT},
            "contributionsPerMerge": round(outcome.contributions, 2),
            "mergedTokens": round(outcome.merged_tokens, 4),
            "outerSteps": outcome.outer_steps,
            "goodputAtLlamaRate": round(other.goodput, 4),
        }
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    yield {"figure": "table-1", "value": round(rms(rows), 3), "unit": "points rms", "limit": LIMIT, "predicted": round(rms(predicted), 3)}
