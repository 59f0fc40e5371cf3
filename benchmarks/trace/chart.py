"""Draw what the trace has printed: `python -m benchmarks.trace.chart LINES SVG`, of a file of JSON lines.

Left, tokens under each rule by those under first fit in random order; right, mean completion likewise. Bars are geometric means over the
seeds, whiskers the least and the largest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

type Line = Mapping[str, Any]
"""One figure, as printed."""
PANELS = {"tokens": "Tokens merged per hour", "mean_completion": "Mean completion"}
COLOURS = {
    "flow": "#0072b2",
    "flow-known": "#56b4e9",
    "flow-blind": "#b8c4cc",
    "first-fit-best": "#e69f00",
    "first-fit-random": "#d55e00",
    "gangs": "#7a5c8e",
}
"""Rule -> its colour; told apart by people who see few colours (Okabe and Ito)."""


def lines_of(text: str) -> list[Line]:
    """Return the figures of the trace among the lines. Raises ValueError if there are none."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith('{"figure": "placement-trace-')]
    if not found:
        raise ValueError("no line of placement-trace: give the file that `python -m benchmarks placement-trace` has printed")
    return found


def draw(lines: Sequence[Line], path: Path) -> None:
    style: Any = {
        "svg.hashsalt": "diloco",  # equal lines draw equal files
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels: Sequence[Axes] = figure.subplots(1, len(PANELS))
        for (measure, title), panel in zip(PANELS.items(), panels, strict=True):
            _panel(panel, lines, measure)
            panel.set_title(f"{title}, by first fit in random order", fontsize=10)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False, fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(axes: Axes, lines: Sequence[Line], measure: str) -> None:
    width = 0.8 / len(COLOURS)
    for index, (rule, colour) in enumerate(COLOURS.items()):
        ratios = [line["by_random"][rule][measure] for line in lines]
        at = [place + (index - (len(COLOURS) - 1) / 2) * width for place in range(len(lines))]
        means = [ratio["mean"] for ratio in ratios]
        whiskers = [[ratio["mean"] - ratio["least"] for ratio in ratios], [ratio["largest"] - ratio["mean"] for ratio in ratios]]
        axes.bar(at, means, width, color=colour, label=rule, yerr=whiskers, error_kw={"elinewidth": 0.8, "ecolor": "#444444"})
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(lines)), [f"load {line['load']}" for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace.chart", description="Draw what placement-trace has printed.")
    parser.add_argument("lines", type=Path, help="file of JSON lines")
    parser.add_argument("svg", type=Path, help="file to write")
    given = parser.parse_args()
    draw(lines_of(given.lines.read_text()), given.svg)


if __name__ == "__main__":
    main()
