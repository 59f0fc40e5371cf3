"""Plots as SVG files, the same bytes for the same figures.

See docs/decisions/0216-plots.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from benchmarks import ROOT

FOLDER: Final = ROOT / "docs" / "results" / "plots"
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: people who do not tell red from green can tell them apart."""
_INCHES: Final = (7.0, 4.0)


def plot(name: str, draw: Callable[[Drawing], None], *, smoke: bool) -> None:
    """Draw `FOLDER`/`name`.svg. In a smoke run the drawing is thrown away."""
    with mpl.rc_context(
        {
            "svg.hashsalt": "diloco",  # names of clip paths; random otherwise
            "svg.fonttype": "none",  # text stays text
            "font.family": "sans-serif",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "legend.frameon": False,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
        }
    ):
        drawing = Drawing(figsize=_INCHES, layout="constrained")
        draw(drawing)
        if smoke:
            with tempfile.TemporaryDirectory() as folder:
                _save(drawing, Path(folder) / f"{name}.svg")
            return
        FOLDER.mkdir(parents=True, exist_ok=True)
        _save(drawing, FOLDER / f"{name}.svg")


def _save(drawing: Drawing, file: Path) -> None:
    drawing.savefig(file, format="svg", metadata={"Date": None})


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Name the axes. Every plot says what it shows without its page."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
