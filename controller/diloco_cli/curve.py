"""The loss curve of a job as lines of text, for a terminal. Pure.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diloco_operator.api.losses import LossPoint
from diloco_operator.api.status import Progress

FEWEST_POINTS = 3
_ROWS = 7
_MOST_COLUMNS = 100
_FEWEST_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Paper:
    """What the terminal or the file behind a pipe can show."""

    width: int
    """Columns of a line."""
    unicode: bool
    """False if only ASCII can be shown."""

    @classmethod
    def of(cls, width: int, encoding: str, environment: Mapping[str, str]) -> Paper:
        """The locale counts as well as the `encoding` of the output: in locale C, Python writes UTF-8 but the terminal shows only ASCII."""
        locales = {key: value for key in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environment.get(key))}
        if locales.get("LC_CTYPE") == "C.UTF-8" and locales.get("LANG", "C") in ("C", "POSIX"):
            del locales["LC_CTYPE"]  # Python itself sets it in the locale C (PEP 538)
        locale = next(iter(locales.values()), "")
        names = [name.lower().replace("-", "").replace("_", "") for name in (encoding, locale)]
        return cls(width, all("utf8" in name for name in names) and environment.get("TERM") not in _ASCII_TERMINALS)

    def narrower(self, columns: int) -> Paper:
        return replace(self, width=self.width - columns)


_ASCII_TERMINALS = ("dumb", "linux", "vt100", "vt102", "vt220")
"""The console of Linux (`linux`) reads UTF-8, but its font lacks the dots of Braille."""


def curve_lines(progress: Progress, paper: Paper) -> list[str]:
    """Draw training loss as a line and held-out loss as marks, over outer steps, as wide as `paper` within limits. Empty if there are fewer
    than FEWEST_POINTS."""
    training, held_out = progress.losses or (), progress.held_out_losses or ()
    if len(training) < FEWEST_POINTS:
        return []
    style = _UNICODE if paper.unicode else _ASCII
    everything = [*training, *held_out]
    steps = _Range.of([float(point.step) for point in everything])
    losses = _Range.of([point.loss for point in everything])
    labels = [_number(losses.at(row / (_ROWS - 1)), losses) for row in reversed(range(_ROWS))]
    shown = {0, _ROWS // 2, _ROWS - 1}
    margin = max(len(labels[row]) for row in shown)
    columns = max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, paper.width - margin - 2))
    cells = style.line(training, steps, losses, columns)
    for point in held_out:
        cells[_ROWS - 1 - losses.position(point.loss, _ROWS)][steps.position(point.step, columns)] = style.mark
    lines = [_title(training, held_out, style)]
    for row, line in enumerate(cells):
        label, axis = (labels[row], style.tick) if row in shown else ("", style.axis)
        lines.append(f"{label.rjust(margin)} {axis}{''.join(line)}".rstrip())
    lines.append(f"{' ' * margin} {style.corner}{style.bottom * columns}")
    lines.append(f"{' ' * (margin + 2)}{_steps_line(steps, columns)}")
    return lines


def _title(training: Sequence[LossPoint], held_out: Sequence[LossPoint], style: _Style) -> str:
    text = f"loss by outer step: {training[-1].loss:.4g} at step {training[-1].step}"
    return f"{text}; {style.mark} held-out loss {held_out[-1].loss:.4g} at step {held_out[-1].step}" if held_out else text


def _steps_line(steps: _Range, columns: int) -> str:
    """First, middle and last step below their columns, without the middle if there is no room."""
    first, last = f"{steps.low:.0f}", f"{steps.high:.0f}"
    line = first.ljust(columns - len(last)) + last
    middle_step = round((steps.low + steps.high) / 2)
    middle = f"{middle_step}"
    at = steps.position(middle_step, columns) - len(middle) // 2
    if at < len(first) + 2 or at + len(middle) + 2 > columns - len(last):
        return line
    return line[:at] + middle + line[at + len(middle) :]


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Range:
        low, high = min(values), max(values)
        room = max(abs(low), 1.0) / 10 if high / 2 == low / 2 else 0.0  # an axis needs an extent
        return cls(low - room, high + room)

    @property
    def half(self) -> float:
        """Half of the size, because the whole may overflow a float."""
        return self.high / 2 - self.low / 2

    def at(self, share: float) -> float:
        return self.low * (1 - share) + self.high * share

    def position(self, value: float, places: int) -> int:
        """Place of a value: 0 for `low`, `places` - 1 for `high`."""
        return round((value / 2 - self.low / 2) / self.half * (places - 1))


def _number(value: float, axis: _Range) -> str:
    """Write a number with enough digits to tell two labels of the axis apart."""
    if max(abs(axis.low), abs(axis.high)) >= 1e6 or axis.half < 1e-5:
        return f"{value:.3e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(2 * axis.half)))}f}"


@dataclass(frozen=True, slots=True)
class _Style:
    """The characters of a curve. A cell holds `across` x `down` dots."""

    across: int
    down: int
    mark: str
    axis: str
    tick: str
    corner: str
    bottom: str

    def line(self, points: Sequence[LossPoint], steps: _Range, losses: _Range, columns: int) -> list[list[str]]:
        """Draw the points as a line: rows of characters, from the top."""
        wide, high = columns * self.across, _ROWS * self.down
        dots = [[0] * columns for _ in range(_ROWS)]
        for x, y in _polyline([(steps.position(p.step, wide), high - 1 - losses.position(p.loss, high)) for p in points]):
            dots[y // self.down][x // self.across] |= 1 << ((x % self.across) * self.down + y % self.down)
        return [[self._character(bits) for bits in row] for row in dots]

    def _character(self, bits: int) -> str:
        if self is _ASCII:
            return " '.:"[bits]
        return chr(0x2800 + sum(_BRAILLE[dot] for dot in range(8) if bits >> dot & 1)) if bits else " "


_BRAILLE = (0x01, 0x02, 0x04, 0x40, 0x08, 0x10, 0x20, 0x80)
"""Unicode's bit of each dot of a Braille character, down the left column, then down the right one."""
_UNICODE = _Style(2, 4, mark="◆", axis="│", tick="┤", corner="└", bottom="─")
_ASCII = _Style(1, 2, mark="o", axis="|", tick="+", corner="+", bottom="-")


def _polyline(corners: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots on the straight lines from corner to corner."""
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(length + 1):
            yield x0 + round((x1 - x0) * i / length), y0 + round((y1 - y0) * i / length)
