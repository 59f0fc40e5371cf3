"""The charts of a job's history: SVG elements over one axis of time. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from diloco.wording import loss_text
from diloco_local.record.effects import participle_of
from diloco_local.record.history import JobHistory, Traffic, UnitHistory
from diloco_operator.api.phases import Phase

from diloco_cli.chart_style import STYLE, UNIT_COLOURS
from diloco_cli.phase_looks import LOOKS
from diloco_cli.svg import Scale, canvas, clock_text, element, polyline, thinned, ticks, time_ticks
from diloco_cli.view_text import count, duration

WIDTH = 860
_LEFT, _RIGHT = 96, 20
_POINTS = 400
"""Most points of a line. `thinned` chooses them."""

type Draw = Callable[[Chart], Iterator[Element]]


class Chart:
    """A chart: a title, an area with the axis of time, and what a `Draw` adds."""

    def __init__(self, job: JobHistory, title: str, height: float, top: float = 0.0, *, names_faults: bool = True) -> None:
        """`height` (of the area) and `top` (of the chart in its SVG) are pixels. `names_faults` writes what the line of a fault is."""
        self._names_faults = names_faults
        self.job = job
        self.seconds = max(job.end, 1.0)
        self._title = title
        self.top = top + 44.0
        self.bottom = self.top + height
        self.full_height = 44.0 + height + 30.0
        self.x = Scale(0.0, self.seconds, _LEFT, WIDTH - _RIGHT)

    def parts(self, draw: Draw) -> Iterator[Element]:
        """Yield all elements, the lowest layer first."""
        yield element("text", self._title, x=_LEFT - 84, y=self.top - 26, class_="title")
        yield from self._time_axis()
        yield from draw(self)
        yield from self._marks()

    def y(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.bottom, self.top)

    def value_axis(self, scale: Scale, values: Sequence[float], text: Callable[[float], str]) -> Iterator[Element]:
        """Yield a line and a label at each value."""
        for value in values:
            y = scale(value)
            yield element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
            yield element("text", text(value), x=_LEFT - 8, y=y + 4, text_anchor="end", class_="soft")

    def legend(self, entries: Sequence[tuple[str, str]], x: float = 200.0) -> Iterator[Element]:
        """Yield texts with their colours side by side, right of the title, from pixel `x` on."""
        for text, colour in entries:
            yield element("rect", x=x, y=self.top - 36, width=11, height=11, rx=2, fill=colour)
            yield element("text", text, x=x + 16, y=self.top - 26, class_="soft")
            x += 34.0 + 6.1 * len(text)

    def _time_axis(self) -> Iterator[Element]:
        for at in time_ticks(self.seconds, 9):
            x = self.x(at)
            yield element("line", x1=x, x2=x, y1=self.top, y2=self.bottom, class_="grid")
            yield element("text", clock_text(at), x=x, y=self.bottom + 16, text_anchor="middle", class_="soft")

    def _marks(self) -> Iterator[Element]:
        for at in self.job.runs:
            line = element("line", x1=self.x(at), x2=self.x(at), y1=self.top, y2=self.bottom, class_="run")
            line.append(element("title", f"{clock_text(at)}: the command began again"))
            yield line
        previous = -1000.0
        for fault in self.job.faults:
            x = self.x(fault.at)
            yield element("line", x1=x, x2=x, y1=self.top - 4, y2=self.bottom, class_="fault")
            if self._names_faults and x - previous > 110:
                anchor, shift = ("end", -5) if x > WIDTH - 160 else ("start", 5)
                text = f"{fault.unit} {participle_of(fault.signal)}"
                yield element("text", text, x=x + shift, y=self.top + 3, text_anchor=anchor, class_="fault-text")
                previous = x


def chart_svg(charts: Sequence[tuple[Chart, Draw]], label: str) -> Element:
    """One SVG with charts below each other, for a page that has the style of charts. For `label` see `canvas`."""
    height = max(chart.bottom for chart, _ in charts) + 30
    svg = canvas(WIDTH, height, label)
    for chart, draw in charts:
        svg.extend(chart.parts(draw))
    return svg


def loss(chart: Chart) -> Iterator[Element]:
    """Draw the training loss as a line, and the held-out loss as a mark at the end."""
    points = [(merge.at, merge.loss) for merge in chart.job.merges if merge.loss is not None]
    if not points:
        yield element("text", "no loss on record", x=_LEFT + 8, y=chart.top + 20, class_="soft")
        return
    held_out = chart.job.held_out_loss
    values = [value for _, value in points] + ([held_out] if held_out is not None else [])
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or max(abs(high), 1.0) / 10
    low, high = low - (3 * room if held_out is not None else room), high + room  # more room below, where the mark has its text
    scale = chart.y(low, high)
    yield from chart.value_axis(scale, ticks(low, high, 5), lambda value: f"{value:g}")
    yield polyline(((chart.x(at), scale(value)) for at, value in thinned(points, chart.seconds, _POINTS, largest=False)), class_="main")
    if held_out is not None:
        x, y = chart.x(chart.seconds), scale(held_out)
        yield element("circle", element("title", f"held-out loss {loss_text(held_out, 5)}"), cx=x - 3, cy=y, r=4, class_="mark")
        yield element("text", f"held-out {loss_text(held_out)}", x=x + 2, y=y + 17, text_anchor="end", class_="soft")


_ROW = 26.0
MOST_ROWS = 64
"""Most units that get a row."""


def units_height(job: JobHistory) -> float:
    """Height that the chart `units` needs, in pixels."""
    return _ROW * max(1, min(len(job.units), MOST_ROWS)) + 4


def units(chart: Chart) -> Iterator[Element]:
    """Draw a row for each unit, with bars in the colours of its phases."""
    shown = _by_name(chart.job)[:MOST_ROWS]
    phases = {span.phase for unit in shown for span in unit.spans if span.start < chart.seconds}
    yield from chart.legend([(phase.value, LOOKS[phase].colour) for phase in Phase if phase in phases])
    for row, unit in enumerate(shown):
        y = chart.top + 4 + row * _ROW
        yield element("text", unit.name, x=_LEFT - 8, y=y + 14, text_anchor="end")
        for span in unit.spans:
            x = chart.x(span.start)
            width = max(1.0, chart.x(min(span.end, chart.seconds)) - x)
            if span.start >= chart.seconds:
                continue
            text = f"{unit.name}: {span.phase.value}, attempt {span.attempt}, {clock_text(span.start)} to {clock_text(span.end)}"
            bar = element("rect", x=x, y=y, width=width, height=_ROW - 6, fill=LOOKS[span.phase].colour)
            bar.append(element("title", f"{text}, {duration(span.seconds)}"))
            yield bar
        yield from _kills(chart, unit, y)


def _kills(chart: Chart, unit: UnitHistory, y: float) -> Iterator[Element]:
    for fault in chart.job.faults:
        if fault.unit == unit.name:
            x = chart.x(fault.at)
            cross = element("text", "✕", x=x, y=y + 15, text_anchor="middle", class_="title")
            cross.append(element("title", f"{fault.signal} at outer step {fault.step}"))
            yield cross


def contributions(chart: Chart) -> Iterator[Element]:
    """Draw how many units contributed to merges. Each bar is the mean over its part of the time."""
    most = max([len(chart.job.units), *(len(merge.units) for merge in chart.job.merges)], default=1)
    scale = chart.y(0, max(1, most))
    yield from chart.value_axis(scale, ticks(0, most, min(most, 5)), lambda value: f"{value:g}")
    buckets: dict[int, list[int]] = {}
    number = 160
    for merge in chart.job.merges:
        buckets.setdefault(min(number - 1, int(merge.at / chart.seconds * number)), []).append(len(merge.units))
    for bucket, counts in sorted(buckets.items()):
        start, end = bucket * chart.seconds / number, (bucket + 1) * chart.seconds / number
        mean, x = sum(counts) / len(counts), chart.x(start)
        y = scale(mean)
        bar = element("rect", x=x, y=y, width=max(1.0, chart.x(end) - x - 0.5), height=max(0.5, chart.bottom - y), class_="bar")
        bar.append(element("title", f"{clock_text(start)}: {len(counts)} merges of {mean:.2f} units, the smallest of {min(counts)}"))
        yield bar


def steps(chart: Chart) -> Iterator[Element]:
    """Draw the longest local step of each unit in each part of the time, waits included."""
    shown = [unit for unit in _by_name(chart.job) if unit.gaps][: len(UNIT_COLOURS)]
    lines = {unit.name: list(thinned(((gap.end, gap.seconds) for gap in unit.gaps), chart.seconds, 200, largest=True)) for unit in shown}
    high = max((value for points in lines.values() for _, value in points), default=1.0) * 1.05
    scale = chart.y(0.0, high)
    yield from chart.value_axis(scale, ticks(0.0, high, 4), lambda value: f"{value:g} s")
    colours = unit_colours(chart.job)
    yield from chart.legend([(unit.name, colours[unit.name]) for unit in shown])
    for unit in shown:
        line: list[tuple[float, float]] = []
        for point in lines[unit.name]:
            if line and any(line[-1][0] < at <= point[0] for at in unit.first_steps):  # a new attempt begins a new line
                yield _line(chart, scale, line, colours[unit.name])
                line = []
            line.append(point)
        yield _line(chart, scale, line, colours[unit.name])


def _line(chart: Chart, scale: Scale, points: Sequence[tuple[float, float]], colour: str) -> Element:
    return polyline(((chart.x(at), scale(value)) for at, value in points), stroke=colour, class_="thin")


def traffic(chart: Chart) -> Iterator[Element]:
    """Draw the bytes a second of all exchanges, a line for each direction."""
    rates = [
        (after.at, (after.received - before.received) / (after.at - before.at), (after.sent - before.sent) / (after.at - before.at))
        for before, after in pairwise(_spread(chart))
        if after.at > before.at
    ]
    high = max(10.0, 1.05 * max((max(received, sent) for _, received, sent in rates), default=0.0))  # at least 10, for whole bytes
    scale = chart.y(0.0, high)
    yield from chart.value_axis(scale, ticks(0.0, high, 4), lambda value: f"{count(value)}B/s")
    colours = {"to the syncer": UNIT_COLOURS[0], "from the syncer": UNIT_COLOURS[1]}
    yield from chart.legend(list(colours.items()))
    for number, colour in enumerate(colours.values(), 1):
        yield _line(chart, scale, [(rate[0], rate[number]) for rate in rates], colour)


def _spread(chart: Chart) -> Iterator[Traffic]:
    """Yield counts that are far enough apart in time for a rate."""
    spacing, last = max(1.0, chart.seconds / 150), float("-inf")
    for counts in chart.job.traffic:
        if counts.at - last >= spacing:
            last = counts.at
            yield counts


def unit_colours(job: JobHistory) -> dict[str, str]:
    """The colour of each unit's lines, the same in all charts."""
    return {unit.name: UNIT_COLOURS[number % len(UNIT_COLOURS)] for number, unit in enumerate(_by_name(job))}


def _by_name(job: JobHistory) -> list[UnitHistory]:
    return [job.units[name] for name in sorted(job.units)]


def picture(job: JobHistory) -> Element:
    """Loss and units over time as one SVG with its style, for a file of its own."""
    first = Chart(job, "Training loss", 170)
    second = Chart(job, "Units", units_height(job), top=first.full_height, names_faults=False)
    kills = ", ".join(f"{fault.unit} gets SIG{fault.signal} at {clock_text(fault.at)}" for fault in job.faults)
    svg = chart_svg([(first, loss), (second, units)], f"Loss and units of {job.title} over time{'; ' + kills if kills else ''}")
    svg.insert(0, element("style", STYLE))
    return svg


def history_charts(job: JobHistory) -> Iterator[Element]:
    """Yield the charts for a page about the job, without those for which the record has nothing."""
    charts: list[tuple[str, float, Draw, bool]] = [
        ("Training loss", 190, loss, bool(job.merges)),
        ("Units", units_height(job), units, True),
        ("Units in each merge", 110, contributions, bool(job.merges)),
        ("Longest step", 130, steps, any(unit.gaps for unit in job.units.values())),
        ("Exchanged", 110, traffic, bool(job.traffic)),
    ]
    for title, height, draw, known in charts:
        if known:
            yield chart_svg([(Chart(job, title, height, names_faults=draw is loss), draw)], f"{title} of {job.title} over time")
        if draw is units and len(job.units) > MOST_ROWS:
            yield element("p", f"{len(job.units) - MOST_ROWS} units more have no row above.", class_="soft")
