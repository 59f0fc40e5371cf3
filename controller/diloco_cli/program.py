"""How both programs end if their standard output is full or closed."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import click


class Program(click.Group):
    """A group of commands that exits with 1 if its output cannot be written."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # If a shell closed the streams (>&-), Python sets them to None, but libraries expect them.
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open as long as the program
        if sys.stdout is not sys.__stdout__ or not isinstance(sys.stdout, io.TextIOWrapper):
            return super().main(*args, **kwargs)  # a test captures the output, or it was closed
        usual, output = sys.stdout, _Output(sys.stdout.fileno(), "w", closefd=False)
        # A terminal may have no sign for what a message has, such as `…` in latin-1: a question mark is better than no output.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(output), usual.encoding, "replace", line_buffering=usual.line_buffering, write_through=usual.write_through
        )
        try:
            return super().main(*args, **kwargs)
        except (OSError, SystemExit):
            output.flush_all(sys.stdout)
            # A pipe whose reader has gone, as after `| head`, is no error to report.
            if output.lost is None or output.lost.errno == errno.EPIPE:
                raise
        click.echo(f"Error: standard output cannot be written: {output.lost.strerror}", err=True)
        raise SystemExit(1)


class _Output(io.FileIO):
    """Remembers the error with which the operating system refused output."""

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.lost is not None:
            return len(memoryview(data).cast("B"))  # as if written: the interpreter flushes once more at its exit
        try:
            return super().write(data)
        except OSError as error:
            self.lost = error
            raise

    def flush_all(self, text: io.TextIOBase) -> None:
        """Write what `text` still buffers. An error goes to `lost`."""
        try:
            text.flush()
        except OSError:
            assert self.lost is not None
