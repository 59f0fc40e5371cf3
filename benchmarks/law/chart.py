"""The law of learning as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from diloco_cli.plots import COLOURS, Axis, Line, Marks, Plot, picture

from benchmarks.law.registered import Found

PUBLISHED: Final[Mapping[int, float]] = {1: -0.1, 2: 0.7, 4: 2.0, 8: 3.9}
"""Percent at 35 M parameters, arXiv 2503.09799, Table 4."""


def plot_law(found: Found) -> Element:
    """Gap to data parallel over the number of units: each seed, the mean, the larger size, and what is published for 35 M."""
    units = sorted(found.gaps)
    places = {number: float(index) for index, number in enumerate(units)}
    seeds = [(places[number], 100 * gap) for number in units for gap in found.gaps[number].by_seed]
    means = [(places[number], 100 * found.gaps[number].mean) for number in units]
    larger = [(places[number], 100 * gap) for number, gap in sorted(found.larger.items())]
    published = [(places[number], PUBLISHED[number]) for number in units if number in PUBLISHED]
    values = [0.0, *(value for of_one in (seeds, larger, published) for _, value in of_one)]
    low, high = min(values), max(values)
    room = 0.08 * (high - low)
    return picture(
        Plot(
            "Loss above data parallel at equal tokens",
            Axis("units", -0.3, len(units) - 0.7, labels=[(place, str(number)) for number, place in places.items()]),
            Axis("%", low - room, high + room),
            [
                Line("published, 35 M", published, "#999999"),
                Line("98 k, mean", means, COLOURS[0]),
                Marks("98 k, each seed", seeds, COLOURS[0]),
                Line("332 k, one seed", larger, COLOURS[1]),
            ],
        )
    )
