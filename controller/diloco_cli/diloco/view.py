"""Output of `diloco up`: a live screen, plain lines, or JSON lines."""

from __future__ import annotations

import abc
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from diloco_cli.curve import Paper, curve_lines
from diloco_cli.screen import Screen, summary
from diloco_cli.view_model import JobView, Line, repeats_status, result
from diloco_cli.view_text import plain

_LINES = 10
_REFRESH_PER_SECOND = 4


class View(abc.ABC):
    def start(self) -> None:  # noqa: B027 - a view may need no beginning
        """The run calls this once, before it shows any job."""

    @abc.abstractmethod
    def line(self, line: Line) -> None:
        """Show a change."""

    def event(self, line: Line) -> None:
        """Show a Kubernetes Event. Most of them repeat a change of status."""
        if not repeats_status(line):
            self.line(line)

    def jobs(self, views: Sequence[JobView]) -> None:  # noqa: B027
        """Show all jobs. The run calls this at every change of one."""

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Show a message about the command itself."""

    @abc.abstractmethod
    def end(self, views: Sequence[JobView], closing: dict[str, Any], messages: Sequence[str]) -> None:
        """Restore the terminal and show the result: `closing` as JSON, `messages` as text."""

    def stop(self) -> None:  # noqa: B027
        """Restore the terminal. The run calls this last, also if it failed and there is no result."""


class UntilClosed(View):
    """Passes everything to another view until standard output has no reader any more, as after a Ctrl-C that ended `| tee`. Then it calls
    `closed`, once, and shows nothing more."""

    def __init__(self, view: View, closed: Callable[[], None]) -> None:
        self._view = view
        self._closed: Callable[[], None] | None = closed

    def start(self) -> None:
        self._show(self._view.start)

    def line(self, line: Line) -> None:
        self._show(self._view.line, line)

    def event(self, line: Line) -> None:
        self._show(self._view.event, line)

    def jobs(self, views: Sequence[JobView]) -> None:
        self._show(self._view.jobs, views)

    def note(self, text: str) -> None:
        self._show(self._view.note, text)

    def end(self, views: Sequence[JobView], closing: dict[str, Any], messages: Sequence[str]) -> None:
        self._show(self._view.end, views, closing, messages)

    def stop(self) -> None:
        self._show(self._view.stop)

    def _show[**P](self, show: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._closed is None:
            return
        try:
            show(*args, **kwargs)
        except BrokenPipeError:
            closed, self._closed = self._closed, None
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at the interpreter's exit fails, too
            closed()


class PlainView(View):
    """Prints a line for every change on standard output."""

    def line(self, line: Line) -> None:
        click.echo(plain(datetime.now().astimezone(), line))

    def note(self, text: str) -> None:
        self.line(Line("note", "", text))

    def end(self, views: Sequence[JobView], closing: dict[str, Any], messages: Sequence[str]) -> None:
        _print_summary(Console(width=120 if not Console().is_terminal else None, highlight=False), views, messages)


class LiveView(View):
    """A live screen on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._lines: deque[tuple[datetime, Line]] = deque(maxlen=_LINES)
        self._views: Sequence[JobView] = ()
        self._footer = "Ctrl-C drains and stops"
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=_REFRESH_PER_SECOND, transient=True)

    def _render(self) -> Any:
        return Screen(self._views, list(self._lines), time.time(), self._footer)

    def start(self) -> None:
        self._live.start()

    def line(self, line: Line) -> None:
        if line.kind != "progress":  # the progress bar shows it
            self._lines.append((datetime.now(UTC), line))

    def jobs(self, views: Sequence[JobView]) -> None:
        self._views = views

    def note(self, text: str) -> None:
        self._footer = text

    def end(self, views: Sequence[JobView], closing: dict[str, Any], messages: Sequence[str]) -> None:
        self.stop()
        for when, line in self._lines:
            self._console.print(plain(when.astimezone(), line), style="red" if line.warning else "dim", markup=False)
        _print_summary(self._console, views, messages)

    def stop(self) -> None:
        self._live.stop()


class JsonView(View):
    """One JSON object per line; the last one has type "result"."""

    def line(self, line: Line) -> None:
        self._write(line.as_json())

    def event(self, line: Line) -> None:
        self.line(line)

    def jobs(self, views: Sequence[JobView]) -> None:
        for job in result(views):
            # Loss histories grow with the job, and each status line would repeat them. The result has them.
            progress = {key: value for key, value in job["progress"].items() if key not in ("losses", "heldOutLosses")}
            self._write({"type": "status", **job, "progress": progress})

    def note(self, text: str) -> None:
        self._write({"type": "note", "message": text})

    def end(self, views: Sequence[JobView], closing: dict[str, Any], messages: Sequence[str]) -> None:
        self._write({"type": "result", **closing, "jobs": result(views), "message": " ".join(messages)})

    @staticmethod
    def _write(content: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        click.echo(json.dumps({"time": now, **content}))


def _print_summary(console: Console, views: Sequence[JobView], messages: Sequence[str]) -> None:
    for view in views:
        console.print()
        console.print(summary(view))
        if curve := curve_lines(view.status.progress, Paper.of(console.width, console.encoding, os.environ)):
            console.print()
            console.print("\n".join(curve), markup=False)
    if messages:
        console.print()
    for text in messages:
        console.print(text, markup=False)
