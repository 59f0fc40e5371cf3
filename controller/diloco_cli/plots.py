"""Plots: lines, marks and bars over axes, side by side in one SVG. The same figures give the same bytes. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from xml.etree.ElementTree import Element

from diloco_cli.chart_style import STYLE, UNIT_COLOURS
from diloco_cli.svg import Scale, canvas, element, polyline, ticks

COLOURS: Final = UNIT_COLOURS
_WIDTH, _HEIGHT = 760.0, 420.0
_LEFT, _RIGHT, _BOTTOM = 60.0, 16.0, 52.0
_LEGEND_ROW = 20.0
_PER_CHARACTER = 6.3
"""Most pixels of a character in text of 11 pixels."""


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    low: float
    high: float
    logarithmic: bool = False
    labels: Sequence[tuple[float, str]] | None = None
    """Values that have a label, with its text. None labels round values."""

    def scale(self, start: float, end: float) -> Callable[[float], float]:
        """The function from values to pixels, from `start` to `end`."""
        if not self.logarithmic:
            return Scale(self.low, self.high, start, end)
        log = Scale(math.log10(self.low), math.log10(self.high), start, end)
        return lambda value: log(math.log10(value))

    def marks(self) -> Sequence[tuple[float, str]]:
        """The labels: values and texts."""
        if self.labels is not None:
            return self.labels
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [(10.0**power, f"{10.0**power:g}") for power in powers]
        return [(value, f"{value:g}") for value in ticks(self.low, self.high, 6)]


class Series(Protocol):
    """Something on a plot. It has an entry in the legend if it has a name."""

    @property
    def name(self) -> str: ...

    def draw(self, x: Callable[[float], float], y: Callable[[float], float], area: Area) -> Iterator[Element]:
        """Yield its elements. `x` and `y` scale values to pixels."""
        ...

    def sample(self, x: float, y: float) -> Iterator[Element]:
        """Yield its symbol in the legend, 22 pixels wide, from pixel `x` on."""
        ...


@dataclass(frozen=True, slots=True)
class Area:
    """Edges of a plot's inside, in pixels."""

    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points. `marks` marks each point, for lines with few."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = ""
    """Value of `stroke-dasharray`, or "" for a solid line."""
    marks: bool = False

    def draw(self, x: Callable[[float], float], y: Callable[[float], float], area: Area) -> Iterator[Element]:
        yield self._line([(x(a), y(b)) for a, b in self.points])
        for a, b in self.points if self.marks else ():
            yield _mark(x(a), y(b), self.colour, hollow=False)

    def sample(self, x: float, y: float) -> Iterator[Element]:
        yield self._line([(x, y), (x + 22, y)])
        if self.marks:
            yield _mark(x + 11, y, self.colour, hollow=False)

    def _line(self, pixels: Sequence[tuple[float, float]]) -> Element:
        dashes = {"stroke_dasharray": self.dashes} if self.dashes else {}
        return polyline(pixels, class_="thin", stroke=self.colour, **dashes)


@dataclass(frozen=True, slots=True)
class Marks:
    """Points without a line, such as published results."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    hollow: bool = False

    def draw(self, x: Callable[[float], float], y: Callable[[float], float], area: Area) -> Iterator[Element]:
        for a, b in self.points:
            yield _mark(x(a), y(b), self.colour, hollow=self.hollow)

    def sample(self, x: float, y: float) -> Iterator[Element]:
        yield _mark(x + 11, y, self.colour, hollow=self.hollow)


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line across the plot, at one value of an axis."""

    name: str
    at: float
    colour: str
    vertical: bool = False

    def draw(self, x: Callable[[float], float], y: Callable[[float], float], area: Area) -> Iterator[Element]:
        if self.vertical:
            yield self._line(x(self.at), x(self.at), area.top, area.bottom)
        else:
            yield self._line(area.left, area.right, y(self.at), y(self.at))

    def sample(self, x: float, y: float) -> Iterator[Element]:
        yield self._line(x, x + 22, y, y)

    def _line(self, x1: float, x2: float, y1: float, y2: float) -> Element:
        return element("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke=self.colour, stroke_width=1.5, stroke_dasharray="2 3")


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each value of x, from the axis up."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    shift: float = 0.0
    """How far a bar's middle is from its x. Like `width` in values of x."""
    width: float = 0.8
    whiskers: Sequence[tuple[float, float]] = ()
    """Range of the value of each bar."""

    def draw(self, x: Callable[[float], float], y: Callable[[float], float], area: Area) -> Iterator[Element]:
        for a, b in self.points:
            left, right = x(a + self.shift - self.width / 2), x(a + self.shift + self.width / 2)
            yield element("rect", x=left, y=y(b), width=right - left, height=area.bottom - y(b), fill=self.colour)
        for (a, _), (least, largest) in zip(self.points if self.whiskers else (), self.whiskers, strict=True):
            middle = x(a + self.shift)
            yield element("line", x1=middle, x2=middle, y1=y(least), y2=y(largest), class_="axis")

    def sample(self, x: float, y: float) -> Iterator[Element]:
        yield element("rect", x=x + 5, y=y - 5, width=11, height=11, rx=2, fill=self.colour)


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = field(default_factory=tuple)


def picture(*plots: Plot) -> Element:
    """`drawing` with its style, for a file of its own."""
    svg = drawing(*plots)
    svg.insert(0, element("style", STYLE))
    return svg


def drawing(*plots: Plot, height: float = _HEIGHT) -> Element:
    """One SVG with the plots side by side, for a page that has the style of charts. One legend has each name once, so series with the same
    name must look alike."""
    named: dict[str, Series] = {}
    for plot in plots:
        for series in plot.series:
            if series.name:
                named.setdefault(series.name, series)
    rows = _legend_rows(list(named.values()))
    top = 46.0 + _LEGEND_ROW * len(rows)
    svg = canvas(_WIDTH, height, "; ".join(plot.title for plot in plots))
    for number, row in enumerate(rows):
        svg.extend(_legend(row, 46.0 + _LEGEND_ROW * number))
    plot_width = _WIDTH / len(plots)
    for number, plot in enumerate(plots):
        area = Area(plot_width * number + _LEFT, plot_width * (number + 1) - _RIGHT, top, height - _BOTTOM)
        svg.append(element("text", plot.title, x=plot_width * number + 14, y=24, class_="title"))
        svg.extend(_axes(plot, area))
        x, y = plot.x.scale(area.left, area.right), plot.y.scale(area.bottom, area.top)
        for series in plot.series:
            svg.extend(series.draw(x, y, area))
    return svg


def _axes(plot: Plot, area: Area) -> Iterator[Element]:
    x, y = plot.x.scale(area.left, area.right), plot.y.scale(area.bottom, area.top)
    for value, text in plot.y.marks():
        yield element("line", x1=area.left, x2=area.right, y1=y(value), y2=y(value), class_="grid")
        yield element("text", text, x=area.left - 8, y=y(value) + 4, text_anchor="end", class_="soft")
    for value, text in plot.x.marks():
        if plot.x.labels is None:
            yield element("line", x1=x(value), x2=x(value), y1=area.top, y2=area.bottom, class_="grid")
        yield element("text", text, x=x(value), y=area.bottom + 16, text_anchor="middle", class_="soft")
    yield element("line", x1=area.left, x2=area.right, y1=area.bottom, y2=area.bottom, class_="axis")
    middle = (area.left + area.right) / 2
    yield element("text", plot.x.name, x=middle, y=area.bottom + 38, text_anchor="middle", class_="soft")
    height = (area.top + area.bottom) / 2
    where = f"translate({area.left - 42:.1f} {height:.1f}) rotate(-90)"
    yield element("text", plot.y.name, transform=where, text_anchor="middle", class_="soft")


def _legend_rows(series: Sequence[Series]) -> list[list[Series]]:
    rows: list[list[Series]] = []
    used = _WIDTH
    for item in series:
        width = _entry_width(item)
        if used + width > _WIDTH - _RIGHT:
            rows.append([])
            used = _LEFT
        rows[-1].append(item)
        used += width
    return rows


def _entry_width(series: Series) -> float:
    return 28 + _PER_CHARACTER * len(series.name) + 18


def _legend(row: Sequence[Series], y: float) -> Iterator[Element]:
    x = _LEFT
    for series in row:
        yield from series.sample(x, y)
        yield element("text", series.name, x=x + 28, y=y + 4, class_="soft")
        x += _entry_width(series)


def _mark(x: float, y: float, colour: str, *, hollow: bool) -> Element:
    if hollow:
        return element("rect", x=x - 4, y=y - 4, width=8, height=8, fill="none", stroke=colour, stroke_width=1.5)
    return element("circle", cx=x, cy=y, r=3.5, fill=colour)
