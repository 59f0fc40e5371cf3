"""A line that says how a job goes, written anew with each change: in a terminal, or below a notebook's cell."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self, TextIO

from diloco_cli.status_text import headline
from diloco_cli.view_model import JobView


class ProgressLine:
    """A context manager; its exit ends the line."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._shown = 0

    def show(self, view: JobView) -> None:
        """Write a line over the one before."""
        text = " ".join(f"{view.name}: {headline(view)}".split())[: shutil.get_terminal_size().columns - 1]
        self._output.write("\r" + text.ljust(self._shown))
        self._output.flush()
        self._shown = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._output.write("\n")
            self._output.flush()
