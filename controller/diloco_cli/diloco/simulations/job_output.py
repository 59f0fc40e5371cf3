"""What `diloco simulate` shows: a column or a JSON object for each number of units, or a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from diloco.goodput import BADPUT
from diloco.simulation.job import Outcome

from diloco_cli.diloco.simulations.options import rate_text
from diloco_cli.plots import COLOURS, Axis, Line, Plot, picture


@dataclass(frozen=True, slots=True)
class Row:
    """Result of the job with one number of units."""

    units: int
    spares: int
    message: str
    """Why there are not more units, or "" if the job may not have more."""
    outcome: Outcome
    work: float
    """Merged tokens, as a share (0..1) of what all units that fit would train without failures, starts and compilation."""


def measures(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table: a name, and a figure for each number of units."""
    yield "SPARE SLICES", *(f"{row.spares}" for row in rows)
    yield "WORK", *(f"{100 * row.work:.1f}" for row in rows)
    yield "FAILURES", *(f"{row.outcome.failures}" for row in rows)
    if any(row.outcome.reclaimed for row in rows):
        yield "RECLAIMED", *(f"{row.outcome.reclaimed}" for row in rows)
    if any(row.outcome.moved for row in rows):
        yield "MOVED", *(f"{row.outcome.moved}" for row in rows)
    yield "UPTIME", *(f"{100 * row.outcome.uptime:.1f}" for row in rows)
    yield "MERGED", *(f"{row.outcome.contributions:.2f}" for row in rows)
    yield "STALENESS", *(f"{row.outcome.staleness:.2f}" for row in rows)
    if any(row.outcome.down_bits for row in rows):
        yield "UP", *(rate_text(row.outcome.up_bits / row.outcome.seconds) for row in rows)
        yield "DOWN", *(rate_text(row.outcome.down_bits / row.outcome.seconds) for row in rows)
    yield "GOODPUT", *(f"{100 * row.outcome.goodput:.1f}" for row in rows)
    for use in BADPUT:
        yield f"- {use.value}", *(f"{100 * row.outcome.accounts.share(use):.1f}" for row in rows)


def lines(rows: Sequence[Row], best: Row) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each number of units. Shares are 0..1."""
    for row in rows:
        outcome = row.outcome
        yield {
            "units": row.units,
            "spares": row.spares,
            "work": round(row.work, 4),
            "mostWork": row is best,
            "goodput": round(outcome.goodput, 4),
            "uptime": round(outcome.uptime, 4),
            "failures": outcome.failures,
            "reclaimed": outcome.reclaimed,
            "moved": outcome.moved,
            "badput": {use.value: round(outcome.accounts.share(use), 4) for use in BADPUT},
            "contributionsPerMerge": round(outcome.contributions, 3),
            "mergedTokens": round(outcome.merged_tokens, 4),
            "staleness": round(outcome.staleness, 3),
            "outerSteps": outcome.outer_steps,
            "bytes": {"up": round(outcome.up_bits / 8), "down": round(outcome.down_bits / 8)},
            "message": row.message,
        }


def plot_job(name: str, rows: Sequence[Row]) -> Element:
    """Draw work, goodput and uptime over the number of units, and beside it the units in each merge."""
    units = [row.units for row in rows]
    shares = [
        Line("work", [(row.units, 100 * row.work) for row in rows], COLOURS[0], marks=True),
        Line("goodput", [(row.units, 100 * row.outcome.goodput) for row in rows], COLOURS[2], dashes="6 4", marks=True),
        Line("uptime", [(row.units, 100 * row.outcome.uptime) for row in rows], COLOURS[5], dashes="2 3", marks=True),
    ]
    merged = [
        Line("", [(row.units, row.units) for row in rows], "#999999"),
        Line("units in each merge", [(row.units, row.outcome.contributions) for row in rows], COLOURS[1], marks=True),
    ]
    x = Axis("units", min(units) - 0.5, max(units) + 0.5, labels=[(number, f"{number}") for number in units])
    return picture(
        Plot(f"{name}: where the time goes", x, Axis("%", 0, 105), shares),
        Plot("Units in each merge; grey: all", x, Axis("", 0, max(units) * 1.05), merged),
    )
