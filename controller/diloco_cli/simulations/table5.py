"""`diloco simulate table-5`: quorum and grace with the paper's clock and with ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import click
from diloco.goodput import Use
from diloco.simulation.table5 import ARMS, LIMIT, UNITS, Pacing, Row, in_order, rows, worst

from diloco_cli.plots import COLOURS, Axis, Bars, Marks, Plot, Series, picture
from diloco_cli.simulations.output import (
    MERGED_AND_STALE,
    output_option,
    print_json,
    print_svg,
    print_table,
    print_text,
    seed_option,
)


@click.command("table-5", short_help="Quorum and grace, with the paper's clock and ours.")
@click.option("--seconds", type=click.FloatRange(min=100.0), default=5000.0, show_default=True, help="Virtual seconds of each arm.")
@seed_option
@output_option
def table_5(seconds: float, seed: int, output: str) -> None:
    """Show what quorum and grace do on 4 + 4 learners, the slower kind 18 % behind and each step 10 % uneven, beside Table 5 of Decoupled
    DiLoCo (arXiv 2604.21428). One coordinator runs with two clocks.

    The paper's takes an outer step when K learners have reported, and merges those that report by the end of the grace window. Ours takes
    one for each mean learner step, and pulls from every learner that has trained the fragment. Nothing is fitted.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    found = rows(seconds, seed)
    if output == "json":
        print_json(_lines(found))
        return
    if output == "svg":
        print_svg(plot_table_5(found))
        return
    print_table(
        ("CLOCK", "ARM", "GOODPUT", "PUBL.", "PRED.", "MERGED", "PRED.", "STALE", "TOKENS"),
        (_cells(row) for row in found),
        left=("CLOCK", "ARM"),
    )
    print_text(
        f"GOODPUT in percent; PUBL.: as published, PRED.: as predicted. {MERGED_AND_STALE} There are {UNITS}. "
        "TOKENS: percent of the trained tokens that came into a merge.",
        f"Largest error of the paper's clock: {worst(found):.1f} points (limit {LIMIT:g}). "
        f"The order of contributions {'holds' if in_order(found) else 'does not hold'}.",
        "The paper's texts: 54.4 with K = M, 51.4 with K = 1, 55.3 with K = 1 and grace. No model is trained here.",
    )


def plot_table_5(found: Sequence[Row]) -> Element:
    """Goodput on the left, learners in each merge on the right; bars for each arm and clock, and what was published."""
    at = range(len(ARMS))
    goodputs: list[Series] = []
    merges: list[Series] = []
    for index, pacing in enumerate(Pacing):
        rows = [row for row in found if row.pacing is pacing]
        name = "the paper's clock" if pacing is Pacing.PAPER else "ours"
        shift = 0.4 * (index - 0.5)
        goodputs.append(Bars(name, [(x, 100 * row.outcome.goodput) for x, row in zip(at, rows, strict=True)], COLOURS[index], shift, 0.38))
        merges.append(Bars(name, [(x, row.outcome.contributions) for x, row in zip(at, rows, strict=True)], COLOURS[index], shift, 0.38))
    goodputs.append(Marks("published", [(x - 0.2, arm.goodput) for x, arm in zip(at, ARMS, strict=True)], COLOURS[4], hollow=True))
    arms = Axis("", -0.6, len(ARMS) - 0.4, labels=[(x, arm.name) for x, arm in zip(at, ARMS, strict=True)])
    return picture(
        Plot("Goodput", arms, Axis("%", 0, 110), goodputs),
        Plot(f"Learners in each merge, of {UNITS}", arms, Axis("", 0, UNITS + 0.5), merges),
    )


def _cells(row: Row) -> tuple[str, ...]:
    goodput, contributions = row.predicted
    paper = row.pacing is Pacing.PAPER
    return (
        row.pacing.value,
        row.arm.name,
        f"{100 * row.outcome.goodput:.1f}",
        f"{row.arm.goodput}" if paper else "-",
        f"{goodput:.1f}",
        f"{row.outcome.contributions:.2f}",
        f"{contributions:.1f}",
        f"{row.outcome.staleness:.2f}",
        f"{100 * row.outcome.merged_tokens:.0f}",
    )


def _lines(found: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in found:
        goodput, contributions = row.predicted
        yield {
            "clock": row.pacing.value,
            "arm": row.arm.name,
            "quorum": row.arm.quorum,
            "graceSteps": row.arm.grace_steps,
            "goodput": round(row.outcome.goodput, 4),
            "published": row.arm.goodput / 100 if row.pacing is Pacing.PAPER else None,
            "contributionsPerMerge": round(row.outcome.contributions, 3),
            "staleness": round(row.outcome.staleness, 3),
            "predicted": {"goodput": goodput / 100, "contributionsPerMerge": contributions},
            "waiting": round(row.outcome.accounts.share(Use.WAITING), 4),
            "mergedTokens": round(row.outcome.merged_tokens, 4),
            "outerSteps": row.outcome.outer_steps,
        }
    yield {"figure": "table-5", "value": round(worst(found), 3), "unit": "points", "limit": LIMIT, "inOrder": in_order(found)}
