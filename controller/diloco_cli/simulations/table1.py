"""`diloco simulate table-1`: goodput and uptime of jobs on failing chips, beside the published ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import click
from diloco.goodput import BADPUT, Use
from diloco.simulation.job import Outcome
from diloco.simulation.table1 import (
    CALIBRATION,
    CELLS,
    CHIPS,
    CHIPS_PER_SLICE,
    LIMIT,
    LLAMA_NOISE,
    LLAMA_YEARS,
    NOISE,
    PUBLISHED,
    UNITS,
    Cell,
    Row,
    rms,
    simulate_cell,
)
from diloco.wording import plural

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, Series, picture
from diloco_cli.simulations.output import (
    MERGED_AND_STALE,
    in_processes,
    output_option,
    print_json,
    print_svg,
    print_table,
    print_text,
    seed_option,
)


@click.command("table-1", short_help="Goodput and uptime by units and chips.")
@click.option(
    "--noise",
    type=click.FloatRange(min=0.01),
    default=NOISE,
    show_default=True,
    help="Standard error of each goodput, in points, for which a cell is simulated long enough.",
)
@seed_option
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default="cores", help="Processes side by side.")
@output_option
def table_1(noise: float, seed: int, jobs: int, output: str) -> None:
    """Show goodput and uptime of 1 to 32 units on 150,000 to 2.4 million chips beside Table 1 of Decoupled DiLoCo (arXiv 2604.21428).

    The paper's chips fail once in a year each; the last column has the rate that Llama 3 reported, one failure in 5.8 years and
    accelerator. What the paper does not print was fitted on the cells marked "fit"; all others are predictions.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    cells = [(noise, seed, cell, 1.0) for cell in CELLS] + [(noise * LLAMA_NOISE / NOISE, seed, cell, LLAMA_YEARS) for cell in CELLS]
    found = in_processes(simulate_cell, cells, jobs)
    rows, llama = found[: len(CELLS)], [row.outcome for row in found[len(CELLS) :]]
    if output == "json":
        print_json(_lines(rows, llama))
        return
    if output == "svg":
        print_svg(plot_table_1(rows))
        return
    print_table(_COLUMNS, (_cells(row, other) for row, other in zip(rows, llama, strict=True)), left=("UNITS", ""))
    print_text("", "Where the rest of the time went, percent:")
    print_table(
        ("UNITS", "CHIPS", *(use.value.upper() for use in _SHOWN)),
        ((*_job(row), *(f"{100 * row.outcome.accounts.share(use):.1f}" for use in _SHOWN)) for row in rows),
        left=("UNITS",),
    )
    print_text(*_summary(rows))


_COLUMNS = ("UNITS", "CHIPS", "GOODPUT", "UPTIME", "", "MERGED", "STALE", "TOKENS", "5.8 Y")


def plot_table_1(rows: Sequence[Row]) -> Element:
    """Goodput over chips, a line for each number of units, with the published cells as marks."""
    found = {row.cell: 100 * row.outcome.goodput for row in rows}
    series: list[Series] = []
    for (units, elastic), colour in zip([(1, False), *((units, True) for units in UNITS)], COLOURS, strict=False):
        cells = [Cell(units, chips, elastic) for chips in CHIPS]
        name = plural(units, "unit") if elastic else "1 unit, not elastic"
        series.append(Line(name, [(cell.chips, found[cell]) for cell in cells], colour, dashes="" if elastic else "2 3"))
        series.append(Marks("", [(cell.chips, PUBLISHED[cell].goodput) for cell in cells if cell in PUBLISHED], colour))
    labels = [(chips, _chips(chips)) for chips in CHIPS]
    x = Axis("chips", CHIPS[0], CHIPS[-1], logarithmic=True, labels=labels)
    return picture(Plot("Goodput where each chip fails once in a year; dots: published", x, Axis("goodput, %", 0, 100), series))


def _chips(chips: int) -> str:
    return f"{chips / 1e6:g}M" if chips >= 1_000_000 else f"{chips // 1000}k"


def _summary(rows: list[Row]) -> tuple[str, ...]:
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    columns = (
        f"Percent; in brackets what was published. {_FIXED}: not elastic. fit: with these the times were chosen; all others are "
        f"predictions. {MERGED_AND_STALE} TOKENS: of those of completed steps, what came into a merge. 5.8 Y: goodput with one failure in "
        f"{LLAMA_YEARS:g} years and accelerator."
    )
    errors = (
        f"Root mean square error: {rms(rows):.2f} points over the published cells (limit {LIMIT:g}), {rms(predicted):.2f} over those that "
        f"were predicted. Standard error of a goodput: {max(row.noise for row in rows):.2f} points at most."
    )
    fitted = (
        f"Fitted: steps of {CALIBRATION.step_seconds:g} s, {CALIBRATION.down_seconds:g} s to go on without a slice of {CHIPS_PER_SLICE} "
        f"chips, {CALIBRATION.up_seconds:g} s to take one back, which comes back after {CALIBRATION.return_seconds:g} s in the mean; "
        f"{CALIBRATION.restart_seconds:g} s for a restart of all."
    )
    return columns, errors, fitted


_FIXED = "fixed"
_SHOWN = (Use.LOST_WORK, Use.RECOVERY, Use.RECONFIGURATION, Use.MISSING)


def _job(row: Row) -> tuple[str, str]:
    return (
        f"{row.cell.units}" if row.cell.elastic else f"{row.cell.units}, {_FIXED}",
        _chips(row.cell.chips),
    )


def _cells(row: Row, other: Outcome) -> tuple[str, ...]:
    outcome, published = row.outcome, row.published
    return (
        *_job(row),
        _beside(outcome.goodput, published.goodput if published is not None else None),
        _beside(outcome.uptime, published.uptime if published is not None else None),
        "fit" if row.fitted else "",
        f"{outcome.contributions:.2f}",
        f"{outcome.staleness:.2f}",
        f"{100 * outcome.merged_tokens:.0f}",
        f"{100 * other.goodput:.1f}",
    )


def _beside(share: float, published: int | None) -> str:
    """Return percent, and what was published; both aligned."""
    return f"{100 * share:.1f} " + (f"({published})" if published is not None else "").rjust(5)


def _lines(rows: list[Row], llama: list[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield a JSON object a cell, and one for all. Shares are 0..1, as everywhere in JSON."""
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
            "staleness": round(outcome.staleness, 3),
            "outerSteps": outcome.outer_steps,
            "noise": round(row.noise / 100, 5),
            "goodputAtLlamaRate": round(other.goodput, 4),
        }
    predicted = [row for row in rows if row.published is not None and not row.fitted]
    yield {"figure": "table-1", "value": round(rms(rows), 3), "unit": "points rms", "limit": LIMIT, "predicted": round(rms(predicted), 3)}
