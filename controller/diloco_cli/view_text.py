"""Texts of a job for people: times, counts, the figures of a unit, lines of changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from diloco.wording import plural
from diloco_operator.api.goodput import GoodputStatus
from diloco_operator.api.state import syncer_runs
from diloco_operator.api.status import Status, UnitState, UnitStatus
from diloco_operator.api.unit_figures import FIGURES, Figure

from diloco_cli.view_model import Line

_OLD = 300.0
"""Seconds after which figures are told with their age. The operator writes those of a job that trains every 10 s by default."""
_HEADLINE = 160
"""Most characters of a message that a headline shows in full."""


def duration(seconds: float) -> str:
    """Write seconds as `45s`, `3m20s`, `1h05m` or `2d03h`."""
    whole = round(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def as_of(status: Status, now: float) -> str:
    """Write `as of 12m20s ago` of figures that would have changed since if anyone wrote them: no operator may run. "" of others."""
    progress = status.progress
    trains = status.state is not None and syncer_runs(status.state) and progress.tokens_per_second
    age = now - progress.updated_at if trains and progress.updated_at is not None else 0.0
    return f"as of {duration(age)} ago" if age > _OLD else ""


def count(number: float) -> str:
    """Write a number with three digits: `812`, `41.6k`, `1.31M`."""
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G"), (1e15, "T")):
        if abs(number) < limit or unit == "T":
            scaled = number / (limit / 1e3)
            if scaled >= 100 or not unit:
                return f"{scaled:.0f}{unit}"
            return f"{scaled:.1f}{unit}" if scaled >= 10 else f"{scaled:.2f}{unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def ordinal(number: int) -> str:
    """Write `1st`, `12th`, `23rd`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def shortly(why: str) -> str:
    """The first part of a long message, for a headline above the whole message."""
    first, more, _ = why.partition("; ")
    return f"{first}; …" if more and len(why) > _HEADLINE else why


def goodput_text(goodput: GoodputStatus, where: str = "") -> str:
    """Tell where the time of the units went: `goodput 93.1 % of 2h05m of unit time; recovery 4.0 %, start 2.9 %; 2 interruptions`."""
    lost = ", ".join(f"{use.value} {100 * share:.1f} %" for use, share in goodput.badput.items() if round(100 * share, 1))
    text = f"goodput {100 * goodput.productive_share:.1f} % of {duration(goodput.unit_seconds.total)} of unit time{where}"
    return f"{text}{'; ' if lost else ''}{lost}; {plural(goodput.interruptions, 'interruption')}"


def goodput_lines(status: Status) -> Iterator[str]:
    """Yield where the time of the units went, and what they held: `12.4 h of tpu-v5p, 3.1 h of nvidia-h100-80gb; 1.20M tokens an
    accelerator-hour`. Nothing before it is measured."""
    goodput = status.goodput
    if goodput is not None and goodput.unit_seconds.total:
        yield goodput_text(goodput, " in this cluster" if status.parts or status.home else "")
    if goodput is not None and goodput.accelerator_hours:
        held = ", ".join(f"{hours_text(amount)} h of {kind}" for kind, amount in goodput.accelerator_hours.items())
        yield f"{held}; {tokens_an_hour(goodput.accelerator_hours, status.tokens_here)} tokens an accelerator-hour"


def hours_text(hours: float) -> str:
    """Write `1,234.5`, `12.4`, `3.1` or `0.0042`."""
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2g}"


def tokens_an_hour(hours: Mapping[str, float], tokens: int) -> str:
    """Tokens for each accelerator-hour. `hours` is by accelerator; "-" without any."""
    total = sum(hours.values())
    return count(tokens / total) if total else "-"


def weight(unit: UnitStatus) -> str:
    """The unit's share of the recent merges. A unit that has just left still has one, because the shares sum to 100 %."""
    return f"{unit.weight:.0%}" if unit.weight or unit.state is UnitState.TRAINING else "-"


def figure_headings(*, wide: bool = False) -> tuple[str, ...]:
    """Headings of the figures of a unit that every table has. With `wide`: of the figures that only wide tables have."""
    return tuple(figure.heading for figure in FIGURES.values() if figure.heading and figure.wide is wide)


def figure_cells(unit: UnitStatus, *, wide: bool = False) -> tuple[str, ...]:
    """The cells below `figure_headings`."""
    return tuple(_cell(unit, name, figure) for name, figure in FIGURES.items() if figure.heading and figure.wide is wide)


def _cell(unit: UnitStatus, name: str, figure: Figure) -> str:
    value = getattr(unit, name)
    if value is None or (figure.only_while_training and unit.state is not UnitState.TRAINING):
        return "-"
    match name:
        case "weight":
            return weight(unit)
        case "merge_share":
            return f"{value:.0%}"
        case "tokens" if unit.own_data:
            return f"{value} (own data)"
        case "refused":
            return ",".join(f"{reason}={times}" for reason, times in sorted(unit.refused.items()) if times) or "-"
        case _:
            return count(value) if isinstance(value, float) else str(value)


def stamp(when: datetime) -> str:
    return when.strftime("%H:%M:%S")


def plain(when: datetime, line: Line) -> str:
    """Write a line as `22:51:03 bytes-lm: Placed=True …`."""
    job = f"{line.job}: " if line.job else ""
    return f"{stamp(when)} {'! ' if line.warning else ''}{job}{line.text}"
