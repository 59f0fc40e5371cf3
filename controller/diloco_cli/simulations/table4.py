"""`diloco simulate table-4`: how much sooner a job is done with learners that join for half of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import click
from diloco.simulation.table4 import LIMIT, PUBLISHED, UNITS, Row, ideal, rows, worst

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, picture
from diloco_cli.simulations.output import (
    MERGED_AND_STALE,
    output_option,
    print_json,
    print_svg,
    print_table,
    print_text,
    seed_option,
)


@click.command("table-4", short_help="Learners that join for half of the work.")
@click.option("--steps", type=click.IntRange(min=100), default=4000, show_default=True, help="Steps of each of the four learners alone.")
@seed_option
@output_option
def table_4(steps: int, seed: int, output: str) -> None:
    """Show how long four learners take for their tokens if others join when half of them are merged, beside Table 4 of Decoupled DiLoCo
    (arXiv 2604.21428). Nothing is fitted: 0.5 + 0.5 / (1 + x) of the time is what the others can give at most.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    found = rows(steps, seed)
    if output == "json":
        print_json(_lines(found))
        return
    if output == "svg":
        print_svg(plot_table_4(found))
        return
    print_table(
        ("EXTRA", "UNITS", "TIME", "PUBLISHED", "PREDICTED", "ERROR", "MERGED", "STALE"),
        (_cells(row) for row in found),
        left=(),
    )
    print_text(
        f"TIME: in that without extra learners. PREDICTED: 0.5 + 0.5 / (1 + x), and ERROR relative to it. {MERGED_AND_STALE}",
        f"Largest error: {100 * worst(found):.1f} % (limit {100 * LIMIT:g} %). The first work of a learner that joins is merged up to H "
        "steps later, which is what is missing.",
    )


def plot_table_4(found: Sequence[Row]) -> Element:
    """Time over extra compute."""
    curve = [3 * index / 60 for index in range(61)]
    least = Line("0.5 + 0.5 / (1 + x)", [(100 * extra, ideal(extra)) for extra in curve], "#999999")
    published = Marks("published", [(100 * row.extra, PUBLISHED[row.extra]) for row in found], COLOURS[1], hollow=True)
    ours = Marks("simulated", [(100 * row.extra, row.time) for row in found], COLOURS[0])
    x, y = Axis("extra compute, %", 0, 300), Axis("time, of that of the four", 0.5, 1.02)
    return picture(Plot("Four learners; others join for half of the work", x, y, [least, published, ours]))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{100 * row.extra:.0f} %",
        f"{UNITS} + {round(row.extra * UNITS)}",
        f"{row.time:.3f}",
        f"{PUBLISHED[row.extra]:.2f}",
        f"{ideal(row.extra):.3f}",
        f"{100 * row.error:+.1f} %",
        f"{row.outcome.contributions:.2f}",
        f"{row.outcome.staleness:.2f}",
    )


def _lines(found: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in found:
        yield {
            "extra": row.extra,
            "time": round(row.time, 4),
            "published": PUBLISHED[row.extra],
            "predicted": round(ideal(row.extra), 4),
            "error": round(row.error, 4),
            "seconds": round(row.outcome.seconds, 1),
            "contributionsPerMerge": round(row.outcome.contributions, 3),
            "staleness": round(row.outcome.staleness, 3),
        }
    yield {"figure": "table-4", "value": round(worst(found), 4), "unit": "relative error, largest", "limit": LIMIT}
