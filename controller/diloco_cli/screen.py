"""Rich renderables from views, for `diloco up` and `kubectl diloco top` on a terminal. Pure.

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from diloco.wording import loss_text
from diloco_operator.api.state import JobState
from diloco_operator.api.status import UnitStatus
from diloco_operator.reconcile.units.states import phase_of
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from diloco_cli.job_tables import NOTHING, Table, cell_text, elsewhere_table, parts_table, units_table
from diloco_cli.phase_looks import LOOKS
from diloco_cli.view_model import JobView, Line, seconds_left
from diloco_cli.view_text import as_of, count, duration, goodput_lines, plain, shortly

_WIDE = 120
"""Columns from which the table of units has one for messages. The figures take some 80."""
_TEXTS = ("NAMESPACE", "JOB", "UNIT", "PART", "CLUSTER", "STATE", "SLICE")
"""Columns without numbers, which are aligned to the left."""
_WHY = "WHY"
"""The column that takes the rest of the width."""
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


def title(view: JobView, why: str) -> Text:
    """Render the job's name and state, and `why` it is in this state."""
    if view.state is None:
        return Text.assemble((view.name, "bold"))
    return Text.assemble((view.name, "bold"), "  ", (view.state.value, STATE_STYLES[view.state]), f"{view.reason_text}: {why}")


def header(view: JobView, now: float) -> RenderableType:
    """Render name, state, progress bar, loss, speed, time left."""
    progress = view.status.progress
    left = seconds_left(view, now)
    grid = Grid.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    steps = f"step {progress.step}/{progress.steps}" if progress.steps else "not started"
    loss = "" if progress.loss is None else f"loss {loss_text(progress.loss)}  "
    remaining = "" if left is None else f"  {duration(left)} left"
    old = f" {as_of(view.status, now)}".rstrip()
    bar = ProgressBar(total=max(1, progress.steps), completed=progress.step)
    grid.add_row(steps, bar, f"{loss}{count(progress.tokens_per_second)} tokens/s{old}{remaining}")
    return Group(title(view, shortly(view.why())), grid)


def live_table(shown: Table, now: float, styles: Sequence[str] = (), *, cut: bool = False) -> Grid:
    """Render a table. `styles` has the style of each row's state. `cut` cuts the reason to one line."""
    grid = Grid(box=None, pad_edge=False, header_style="dim", expand=_WHY in shown.head)
    for name in shown.head:
        if name == _WHY:
            grid.add_column(name, ratio=1, overflow="ellipsis" if cut else "fold", no_wrap=cut)
        else:
            grid.add_column(name, no_wrap=True, justify="left" if name in _TEXTS else "right")
    state = shown.head.index("STATE")
    for number, row in enumerate(shown.rows):
        # Wrapped in Text, because rich would read markup in a plain string.
        cells = [Text(cell_text(value, now)) for value in row]
        cells[state].stylize(styles[number] if styles else "")
        grid.add_row(*cells)
    return grid


def live_units(units: Sequence[UnitStatus], now: float, width: int) -> RenderableType:
    """Render the table of units. On a narrow terminal the reasons stand below the figures, and times are left out."""
    shown, styles = units_table(units), [LOOKS[phase_of(unit)].style for unit in units]
    if width >= _WIDE:
        return live_table(shown, now, styles)
    figures = live_table(shown.without("SINCE", _WHY), now, styles)
    reasons = Grid.grid(padding=(0, 2, 0, 0))
    reasons.add_column(no_wrap=True, style="dim")
    reasons.add_column(overflow="fold")
    for row in shown.rows:
        if row[-1]:
            reasons.add_row(Text(cell_text(row[0], now)), Text(cell_text(row[-1], now)))
    return Group(figures, reasons) if reasons.row_count else figures


@dataclass(frozen=True, slots=True)
class Screen:
    """The whole screen. Long lines wrap and are not cut. If lines find no room under the jobs, the oldest leave first."""

    views: Sequence[JobView]
    lines: Sequence[tuple[datetime, Line]]
    now: float
    footer: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        top: list[RenderableType] = []
        for view in self.views:
            top += [header(view, self.now), live_units(view.status.units, self.now, options.max_width), Text()]
            top += [each for table in live_elsewhere(view, self.now) for each in (table, Text())]
        last = Text(self.footer, style="dim")
        room = options.size.height - sum(len(console.render_lines(part, options, pad=False)) for part in (*top, last))
        shown: list[Text] = []
        for when, line in reversed(self.lines):
            style = "dim" if line.kind in ("log", "progress") else ""
            if line.warning:
                style = "red"
            text = Text(plain(when.astimezone(), line), style=style, overflow="fold")
            room -= len(text.wrap(console, options.max_width))
            if room < 0:
                break
            shown.insert(0, text)
        yield from (*top, *shown, last)


def live_elsewhere(view: JobView, now: float) -> Iterator[Grid]:
    """Render tables of the parts in other clusters and of their units, if the job has any."""
    for shown in (parts_table(view.status.parts or ()), elsewhere_table(view.status)):
        if shown.rows:
            yield live_table(shown, now, cut=True)


def summary(view: JobView) -> RenderableType:
    """Render the summary at the end: state, figures, and a row for each unit."""
    progress = view.status.progress
    rows = [
        (
            unit.name, unit.state.value, f"{unit.tokens:,}", f"{unit.tokens_per_second:,.0f}", f"{unit.weight:.1%}", str(unit.restarts),
            NOTHING if unit.recover_seconds is None else f"{unit.recover_seconds:.1f} s",
        )
        for unit in view.status.units
    ]  # fmt: skip
    shown = Table(("UNIT", "STATE", "TOKENS", "TOKENS/S", "WEIGHT", "RESTARTS", "TIME TO RECOVER"), rows)
    figures = [f"step {progress.step} of {progress.steps}", f"{progress.tokens:,} tokens"]
    if progress.loss is not None:
        figures.append(f"loss {loss_text(progress.loss, 5)}")
    if progress.held_out_loss is not None:
        figures.append(f"held-out loss {loss_text(progress.held_out_loss, 5)}")
    lines = [", ".join(figures), *goodput_lines(view.status)]
    tables = [shown, *([parts_table(view.status.parts).without("HEARD")] if view.status.parts else [])]
    return Group(
        title(view, view.why()),
        *(Text(f"  {line}") for line in lines),
        *(each for table in tables for each in (Text(), live_table(table, 0.0))),
    )
