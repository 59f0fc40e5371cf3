"""Draws what the simulator predicted beside what real jobs did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from xml.etree.ElementTree import Element

from diloco_cli.plots import COLOURS, Axis, Bars, Line, Marks, Plot, picture

from benchmarks.evidence.table4 import ideal
from benchmarks.truth.scavenged import UNITS, Row
from benchmarks.truth.simulated import JobResult

_WIDTH = 0.36
_HOUR = 3600.0


def plot_truth(predicted: Mapping[str, JobResult], measured: Mapping[str, JobResult]) -> Element:
    """Draw goodput, merges, and the units in each merge, of all settings."""
    pairs = {name: (predicted[name], result) for name, result in measured.items()}
    return picture(
        _panel("Goodput", "%", pairs, lambda result: result.goodput),
        _panel("Merges", "a second", pairs, lambda result: result.merges_per_hour / _HOUR),
        _panel("Units in each merge", "units", pairs, lambda result: result.units_in_each_merge),
    )


def plot_scavenged(rows: Sequence[Row]) -> Element:
    """Draw time over extra compute."""
    most = max(row.extra for row in rows)
    curve = [most * index / 60 for index in range(61)]
    law = Line("0.5 + 0.5 / (1 + x)", [(100 * extra, ideal(extra)) for extra in curve], "#999999")
    measured = Marks("real units", [(100 * row.extra, row.time) for row in rows], COLOURS[0])
    x, y = Axis("extra compute, %", 0, 100 * most), Axis(f"time, of that of the {UNITS} alone", 0.5, 1.02)
    return picture(Plot("Others come for half of the work, and go", x, y, [law, measured]))


def _panel(title: str, unit: str, pairs: Mapping[str, tuple[JobResult, JobResult]], of: Callable[[JobResult], float]) -> Plot:
    value_pairs = [(of(predicted), of(measured)) for predicted, measured in pairs.values()]
    bars = [
        Bars(name, [(place, pair[index]) for place, pair in enumerate(value_pairs)], colour, shift=(index - 0.5) * _WIDTH, width=_WIDTH)
        for index, (name, colour) in enumerate((("simulated before", COLOURS[1]), ("real job", COLOURS[0])))
    ]
    x = Axis("", -0.5, len(pairs) - 0.5, labels=[(place, name) for place, name in enumerate(pairs)])
    return Plot(title, x, Axis(unit, 0, 1.05 * max(value for pair in value_pairs for value in pair)), bars)
