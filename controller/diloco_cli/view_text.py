"""The screen of `diloco up`: rich renderables from views. Pure.

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from diloco.wording import loss_text, plural
from diloco_operator.api.goodput import GoodputStatus
from diloco_operator.api.state import JobState
from diloco_operator.api.status import UnitState, UnitStatus
from diloco_operator.api.unit_figures import FIGURES, Figure
from diloco_operator.reconcile.units.states import phase_of
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diloco_cli.phase_looks import LOOKS
from diloco_cli.view_model import JobView, Line, seconds_left

_HEADLINE = 160
"""Characters of a message that a headline says in full."""
_WIDE = 120
"""Columns from which the table of units has one for messages: the figures take some 70 of them."""
STATE_STYLES = {
    JobState.NOT_ACCEPTED: "red",
    JobState.QUEUED: "dim",
    JobState.STARTING: "yellow",
    JobState.TRAINING: "green",
    JobState.DEGRADED: "red",
    JobState.SUSPENDED: "dim",
    JobState.COMPLETE: "blue",
    JobState.FAILED: "bold red",
}


def duration(seconds: float) -> str:
    """Return `45s`, `3m20s`, `1h05m`, `2d03h`."""
    whole = round(seconds)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def count(number: float) -> str:
    """Return `812`, `41.6k`, `1.31M`: three digits."""
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G"), (1e15, "T")):
        if abs(number) < limit or unit == "T":
            scaled = number / (limit / 1e3)
            return f"{scaled:.0f}{unit}" if scaled >= 100 or not unit else f"{scaled:.1f}{unit}" if scaled >= 10 else f"{scaled:.2f}{unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def ordinal(number: int) -> str:
    """Return `1st`, `12th`, `23rd`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def shortly(why: str) -> str:
    """Return the beginning of a long message, where the rest of it stands below."""
    first, more, _ = why.partition("; ")
    return f"{first}; …" if more and len(why) > _HEADLINE else why


def goodput_text(goodput: GoodputStatus) -> str:
    """Say where the time of the units went: `goodput 93.1 % of 2h05m of unit time; recovery 4.0 %, start 2.9 %; 2 interruptions`."""
    lost = ", ".join(f"{use.value} {100 * share:.1f} %" for use, share in goodput.badput.items() if round(100 * share, 1))
    text = f"goodput {100 * goodput.productive_share:.1f} % of {duration(goodput.unit_seconds.total)} of unit time"
    return f"{text}{'; ' if lost else ''}{lost}; {plural(goodput.interruptions, 'interruption')}"


def title(view: JobView, why: str) -> Text:
    """Render name, state, and `why` it is in this state."""
    if view.state is None:
        return Text.assemble((view.name, "bold"))
    reason = f" ({view.status.reason})" if view.status.reason not in ("", view.state) else ""
    return Text.assemble((view.name, "bold"), "  ", (view.state.value, STATE_STYLES[view.state]), f"{reason}: {why}")


def header(view: JobView, now: float) -> RenderableType:
    """Render name, state, progress bar, loss, speed, time left."""
    progress = view.status.progress
    left = seconds_left(view, now)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    steps = f"step {progress.step}/{progress.steps}" if progress.steps else "not started"
    loss = "" if progress.loss is None else f"loss {loss_text(progress.loss)}  "
    remaining = "" if left is None else f"  {duration(left)} left"
    bar = ProgressBar(total=max(1, progress.steps), completed=progress.step)
    grid.add_row(steps, bar, f"{loss}{count(progress.tokens_per_second)} tokens/s{remaining}")
    return Group(title(view, shortly(view.why())), grid)


def weight(unit: UnitStatus) -> str:
    """Return its share of the recent merges. A unit that has just left still has one: the shares sum to 100 %."""
    return f"{unit.weight:.0%}" if unit.weight or unit.state is UnitState.TRAINING else "-"


def figure_headings(*, wide: bool = False) -> tuple[str, ...]:
    """Return the headings of the figures of a unit that every table has, or of those that only wide ones have."""
    return tuple(figure.heading for figure in FIGURES.values() if figure.heading and figure.wide is wide)


def figure_cells(unit: UnitStatus, *, wide: bool = False) -> tuple[str, ...]:
    """Return the cells below `figure_headings`."""
    return tuple(_cell(unit, name, figure) for name, figure in FIGURES.items() if figure.heading and figure.wide is wide)


def _cell(unit: UnitStatus, name: str, figure: Figure) -> str:
    value = getattr(unit, name)
    if value is None or (figure.now and unit.state is not UnitState.TRAINING):
        return "-"
    match name:
        case "weight":
            return weight(unit)
        case "tokens" if unit.own_data:
            return f"{value} (own data)"
        case "refused":
            return ",".join(f"{reason}={times}" for reason, times in sorted(unit.refused.items()) if times) or "-"
        case _:
            return count(value) if isinstance(value, float) else str(value)


def units_table(units: Sequence[UnitStatus], width: int) -> RenderableType:
    """Return the live table, of units that have a message. Where `width` leaves its column too little, messages stand below the figures."""
    below = [(unit, _message(unit)) for unit in units if _message(unit)] if width < _WIDE else []
    figures = _figures_table(units, with_messages=width >= _WIDE)
    if not below:
        return figures
    messages = Table.grid(padding=(0, 2, 0, 0))
    messages.add_column(no_wrap=True, style="dim")
    messages.add_column(overflow="fold")
    for unit, message in below:
        messages.add_row(unit.name, message)
    return Group(figures, messages)


def _message(unit: UnitStatus) -> str:
    return f"{unit.reason}: {unit.message}" if unit.reason and unit.message else unit.reason or unit.message


def _figures_table(units: Sequence[UnitStatus], *, with_messages: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=with_messages)
    for name in ("UNIT", "STATE", "SLICE"):
        table.add_column(name, no_wrap=True)
    for name in ("ATTEMPT", "RESTARTS", *figure_headings()):
        table.add_column(name, no_wrap=True, justify="right")
    if with_messages:
        table.add_column("MESSAGE", ratio=1, overflow="fold")
    for unit in units:
        table.add_row(
            unit.name,
            Text(unit.state, style=LOOKS[phase_of(unit)].style),
            unit.slice or "-",
            str(unit.attempt),
            str(unit.restarts),
            *figure_cells(unit),
            *([_message(unit)] if with_messages else []),
        )
    return table


def stamp(when: datetime) -> str:
    """Return the time of day as a line shows it."""
    return when.strftime("%H:%M:%S")


def plain(when: datetime, line: Line) -> str:
    """Return `22:51:03 bytes-lm: Placed=True …`."""
    job = f"{line.job}: " if line.job else ""
    return f"{stamp(when)} {'! ' if line.warning else ''}{job}{line.text}"


@dataclass(frozen=True, slots=True)
class Screen:
    """The whole screen, nothing of it cut at its width. Lines that find no room under the jobs leave it, the oldest first."""

    views: Sequence[JobView]
    lines: Sequence[tuple[datetime, Line]]
    now: float
    footer: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        top: list[RenderableType] = []
        for view in self.views:
            top += [header(view, self.now), units_table(view.status.units, options.max_width), Text()]
        last = Text(self.footer, style="dim")
        room = options.size.height - sum(len(console.render_lines(part, options, pad=False)) for part in (*top, last))
        shown: list[Text] = []
        for when, line in reversed(self.lines):
            style = "red" if line.warning else "dim" if line.kind in ("log", "progress") else ""
            text = Text(plain(when.astimezone(), line), style=style, overflow="fold")
            room -= len(text.wrap(console, options.max_width))
            if room < 0:
                break
            shown.insert(0, text)
        yield from (*top, *shown, last)


def summary(view: JobView) -> RenderableType:
    """Return the summary at the end: state, held-out loss, and a row for each unit."""
    progress = view.status.progress
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("UNIT", no_wrap=True)
    for name in ("STATE", "TOKENS", "TOKENS/S", "WEIGHT", "RESTARTS", "TIME TO RECOVER"):
        table.add_column(name, no_wrap=True, justify="left" if name == "STATE" else "right")
    for unit in view.status.units:
        recovered = "-" if unit.recover_seconds is None else f"{unit.recover_seconds:.1f} s"
        table.add_row(
            unit.name, unit.state, f"{unit.tokens:,}", f"{unit.tokens_per_second:,.0f}", f"{unit.weight:.1%}", str(unit.restarts), recovered
        )
    figures = [f"step {progress.step} of {progress.steps}", f"{progress.tokens:,} tokens"]
    if progress.loss is not None:
        figures.append(f"loss {loss_text(progress.loss, 5)}")
    if progress.held_out_loss is not None:
        figures.append(f"held-out loss {loss_text(progress.held_out_loss, 5)}")
    goodput = view.status.goodput
    lines = [", ".join(figures), *([goodput_text(goodput)] if goodput is not None and goodput.unit_seconds.total else [])]
    return Group(title(view, view.why()), *(Text(f"  {line}") for line in lines), Text(), table)
