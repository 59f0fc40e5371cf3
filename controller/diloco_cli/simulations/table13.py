"""`diloco simulate table-13`: the bandwidth between sites beside the published one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

import click
from diloco.simulation.table13 import (
    CALIBRATION,
    CELLS,
    LIMIT,
    PUBLISHED,
    UTILISATIONS,
    Cell,
    H,
    Method,
    error,
    like_for_like,
    of_a_link,
    required,
    rms,
)

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, Rule, Series, picture
from diloco_cli.simulations.output import output_option, print_json, print_svg, print_table, print_text


@click.command("table-13", short_help="Bandwidth between sites, by method and utilisation.")
@output_option
def table_13(output: str) -> None:
    """Show the bandwidth with which the accelerators of 2 and 8 sites compute for 50 to 99 % of the time, in Gbit/s, beside Table 13 of
    Decoupled DiLoCo (arXiv 2604.21428): 5 billion parameters, steps of 1 s and 5 s.

    The 45 published cells are the fit of a closed form; the 15 others, 5 s between 2 sites, are predictions. The decoupled cells behave as
    if each fragment were exchanged every 102 steps. The column H = 24 has what the same form gives with the interval of the paper's models.

    \b
    Exit status:
      0  done, whatever the errors are
    """
    if output == "json":
        print_json(lines())
        return
    if output == "svg":
        print_svg(plot_table_13())
        return
    print_table(
        ("METHOD", "STEP", "SITES", "BUSY", "GBIT/S", "PUBLISHED", "ERROR", "H = 24", ""),
        (_row(cell) for cell in CELLS),
        left=("METHOD", ""),
    )
    print_text(
        f"Root mean square of the errors: {100 * rms(CELLS):.1f} % over {len(PUBLISHED)} published cells (limit {100 * LIMIT:g} %).",
        f"The decoupled cells as published need H = {CALIBRATION.sync_interval}; the paper's models are trained with H = {H}. The ratio of "
        f"198 to 0.84 Gbit/s (8 sites, 1 s, 95 %) compares bf16 with int4 as well. Like for like, both bf16 and H = {H}, it is "
        f"{like_for_like():.0f}.",
        f"Ours: no learner waits for a link, and there is no ring. In each direction a learner's link carries "
        f"{of_a_link(Method.BFLOAT16, 1.0):.2f} Gbit/s with bf16 and steps of 1 s, {of_a_link(Method.INT4, 1.0):.2f} with int4, "
        "however many units there are. The syncer's link carries that of each unit.",
    )


def plot_table_13() -> Element:
    """Bandwidth over utilisation at 8 sites and steps of 1 s."""
    step, sites = 1.0, 8
    series: list[Series] = []
    for method, colour in zip(Method, COLOURS, strict=False):
        cells = [Cell(method, step, sites, utilisation) for utilisation in UTILISATIONS]
        percent = [100 * utilisation for utilisation in UTILISATIONS]
        series.append(Line(method.value, [(x, required(cell)) for x, cell in zip(percent, cells, strict=True)], colour))
        series.append(Marks("", [(x, PUBLISHED[cell]) for x, cell in zip(percent, cells, strict=True)], colour))
        if method is not Method.DATA_PARALLEL:
            honest = [(x, required(cell, H)) for x, cell in zip(percent, cells, strict=True)]
            series.append(Line(f"{method.value}, H = {H}", honest, colour, dashes="6 4"))
            series.append(Rule(f"a learner's link of ours, {method.value[10:]}", of_a_link(method, step), colour))
    x, y = Axis("time that accelerators compute, %", 50, 100), Axis("Gbit/s", 0.2, 1000, logarithmic=True)
    return picture(Plot(f"{sites} sites, steps of {step:g} s, 5 billion parameters; dots: published", x, y, series))


def _row(cell: Cell) -> tuple[str, ...]:
    published, off = PUBLISHED.get(cell), error(cell)
    return (
        cell.method.value,
        f"{cell.step_seconds:g} s",
        f"{cell.sites}",
        f"{100 * cell.utilisation:.0f} %",
        _gigabits(required(cell)),
        f"{published:g}" if published is not None else "-",
        f"{100 * off:+.1f} %" if off is not None else "-",
        _gigabits(required(cell, H)) if cell.method is not Method.DATA_PARALLEL else "-",
        "fit" if published is not None else "predicted",
    )


def _gigabits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def lines() -> Iterator[dict[str, Any]]:
    """Yield a JSON object a cell, and one for all. Shares are 0..1, bandwidths Gbit/s."""
    for cell in CELLS:
        off = error(cell)
        yield {
            "method": cell.method.value,
            "stepSeconds": cell.step_seconds,
            "sites": cell.sites,
            "utilisation": cell.utilisation,
            "gigabits": round(required(cell), 4),
            "published": PUBLISHED.get(cell),
            "fitted": cell in PUBLISHED,
            "error": round(off, 4) if off is not None else None,
            "gigabitsAtH24": round(required(cell, H), 4) if cell.method is not Method.DATA_PARALLEL else None,
        }
    yield {"figure": "table-13", "value": round(rms(CELLS), 4), "unit": "relative error, rms", "limit": LIMIT, "cells": len(PUBLISHED)}
