"""SVG as a tree of elements, and the scales of charts. Every text is escaped when the tree is written. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, tostring

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Replace characters that XML does not allow."""
    return _NOT_IN_XML.sub("\ufffd", text)


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """Make an element. In names of attributes `_` becomes `-`, and at the end it goes (`class_`). Floats are rounded to a tenth."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + clean(child)
        else:
            made.text = (made.text or "") + clean(child)
    return made


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else clean(str(value))


def as_file(svg: Element) -> str:
    """The content of an SVG file."""
    return tostring(svg, encoding="unicode") + "\n"


def canvas(width: float, height: float, label: str) -> Element:
    """An SVG of this size in pixels, for a page that has the style of charts. `label` is for people who cannot see it."""
    return element(
        "svg",
        element("rect", x=0, y=0, width=width, height=height, class_="paper"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
        class_="chart",
        aria_label=label,
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels. Values beyond `low` and `high` are clipped."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most `most` + 1."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def time_ticks(seconds: float, most: int) -> list[int]:
    """Round times from 0 to `seconds`, in seconds, at most `most` + 1."""
    days = math.ceil(seconds / most / 86400) * 86400
    step = next((step for step in _TIME_STEPS if seconds / step <= most), days)
    return list(range(0, int(seconds) + 1, step))


def clock_text(seconds: float) -> str:
    """Write seconds as `1:05` or `2:00:00`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def polyline(points: Iterable[tuple[float, float]], **attributes: object) -> Element:
    """A line through these pixels."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", points=text, fill="none", **attributes)


def thinned(points: Iterable[tuple[float, float]], seconds: float, most: int, *, largest: bool) -> Iterator[tuple[float, float]]:
    """Yield at most `most` of the points (time, value), which are in the order of time: of each of `most` equal parts of `seconds` the
    last, or with `largest` the one with the largest value."""
    chosen: tuple[float, float] | None = None
    previous_part = -1
    for at, value in points:
        part = min(most - 1, int(at / seconds * most)) if seconds > 0 else 0
        if chosen is not None and part != previous_part:
            yield chosen
            chosen = None
        previous_part = part
        if chosen is None or not largest or value >= chosen[1]:
            chosen = (at, value)
    if chosen is not None:
        yield chosen
