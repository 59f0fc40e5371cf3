"""[table-13] The bandwidth between sites that training needs, beside Table 13 of Decoupled DiLoCo."""

from __future__ import annotations

from collections.abc import Iterator

from diloco.simulation.table13 import CELLS, LIMIT, PUBLISHED, UTILISATIONS, Cell, H, Method, like_for_like, of_a_link, required, rms
from matplotlib.figure import Figure as Drawing

from benchmarks.evidence.plots import COLOURS, label, plot
from benchmarks.figure import Figure

_STEP, _SITES = 1.0, 8


def draw(drawing: Drawing) -> None:
    """Bandwidth over utilisation at 8 sites and steps of 1 s."""
    axes = drawing.add_subplot()
    percent = [100 * utilisation for utilisation in UTILISATIONS]
    for method, colour in zip(Method, COLOURS, strict=False):
        cells = [Cell(method, _STEP, _SITES, utilisation) for utilisation in UTILISATIONS]
        axes.plot(percent, [required(cell) for cell in cells], color=colour, label=method.value)
        axes.plot(percent, [PUBLISHED[cell] for cell in cells], "o", color=colour)
        if method is not Method.DATA_PARALLEL:
            axes.plot(percent, [required(cell, H) for cell in cells], "--", color=colour, label=f"{method.value}, H = {H}")
            axes.axhline(of_a_link(method, _STEP), color=colour, linestyle=":", label=f"a learner's link of ours, {method.value[10:]}")
    axes.set_yscale("log")
    axes.set_ylim(0.2, 1000)
    axes.legend(loc="upper left", ncols=2, fontsize=8)
    title = f"{_SITES} sites, steps of {_STEP:g} s, 5 billion parameters; dots: published"
    label(axes, title, "time that accelerators compute, %", "Gbit/s")


def measure(*, smoke: bool) -> Iterator[Figure]:
    plot("table-13", draw, smoke=smoke)
    details = {"predicted_cells": len(CELLS) - len(PUBLISHED), "like_for_like": round(like_for_like(), 1)}
    yield Figure("table-13", rms(CELLS), "relative error, rms", LIMIT, rms(CELLS) <= LIMIT, len(PUBLISHED), details)
