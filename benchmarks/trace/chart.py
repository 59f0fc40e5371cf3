"""Draws the results of the trace.

On the left are tokens under each rule ÷ those under first fit in random order, on the right mean completion likewise. Bars are geometric
means over the seeds; whiskers show the least and the largest ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element

from diloco_cli.plots import COLOURS, Axis, Bars, Plot, Rule, picture

type ByRule = Mapping[str, Mapping[str, Any]]
"""Rule -> measure -> mean, least and largest ratio to first fit in random order, see `outcome.over_seeds`."""
PANELS: Final = {"tokens": "Tokens merged per hour", "mean_completion": "Mean completion"}
COLOUR_OF: Final = {
    "flow": COLOURS[0],
    "flow-known": COLOURS[5],
    "flow-blind": COLOURS[7],
    "first-fit-best": COLOURS[4],
    "first-fit-random": COLOURS[1],
    "gangs": COLOURS[3],
}
_GROUP: Final = 0.8
"""Width of all bars of a load together."""


def draw(by_load: Mapping[float, ByRule]) -> Element:
    """Draw these loads, in their order."""
    return picture(*(_panel(list(by_load.values()), list(by_load), measure, title) for measure, title in PANELS.items()))


def _panel(found: Sequence[ByRule], loads: Sequence[float], measure: str, title: str) -> Plot:
    width = _GROUP / len(COLOUR_OF)
    bars = []
    for index, (rule, colour) in enumerate(COLOUR_OF.items()):
        ratios = [each[rule][measure] for each in found]
        bars.append(
            Bars(
                rule,
                [(place, ratio["mean"]) for place, ratio in enumerate(ratios)],
                colour,
                shift=(index - (len(COLOUR_OF) - 1) / 2) * width,
                width=width,
                whiskers=[(ratio["least"], ratio["largest"]) for ratio in ratios],
            )
        )
    most = max(each[rule][measure]["largest"] for each in found for rule in COLOUR_OF)
    x = Axis("", -0.5, len(loads) - 0.5, labels=[(place, f"load {load}") for place, load in enumerate(loads)])
    return Plot(title, x, Axis("÷ first fit in random order", 0, 1.05 * most), [*bars, Rule("", 1.0, "#999999")])
