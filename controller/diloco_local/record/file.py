"""The file of a record: lines are appended, a full file makes room for the next one, and what cannot be read is left out and said.

    <state directory>/record.jsonl        the newest lines
    <state directory>/record.old.jsonl    those before, once there were more than one file takes

A command that is killed leaves a line that is cut short. The next one begins a line of its own behind it.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from diloco_local.record.lines import Line, RunBegan, line_bytes, parse_line

NAME, OLD_NAME = "record.jsonl", "record.old.jsonl"
MOST_BYTES = 64 << 20
"""The most bytes of one file: some 300,000 lines, five hours of the four units of `examples/quickstart.yaml`."""


class RecordWriter:
    """Appends lines. What cannot be written is counted and never stops the run."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = directory / NAME
        self._old = directory / OLD_NAME
        self._most_bytes = most_bytes
        self._file: BinaryIO | None = None
        self._torn = False
        self.dropped = 0
        """Lines that could not be written."""
        self.error = ""
        """Why the first of these could not be written."""

    def write(self, *lines: Line) -> None:
        """Append these lines, and let readers see them."""
        for number, line in enumerate(lines):
            try:
                self._append(line_bytes(line))
            except OSError as error:
                self._fail(error, len(lines) - number)
                return
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._fail(error, len(lines))

    def close(self) -> None:
        """Write no more."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._fail(error, 0)

    def _append(self, data: bytes) -> None:
        file = self._file or self._open()
        if self._torn:
            file.write(b"\n")
            self._torn = False
        if file.tell() and file.tell() + len(data) > self._most_bytes:
            file.close()
            self._path.replace(self._old)
            file = self._open()
        file.write(data)

    def _open(self) -> BinaryIO:
        self._file = file = self._path.open("ab")
        file.seek(0, os.SEEK_END)
        self._torn = _ends_within_a_line(self._path)
        return file

    def _fail(self, error: OSError, lines: int) -> None:
        self.dropped += lines
        self.error = self.error or f"{self._path} cannot be written: {error.strerror or error}"
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # said already


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class NoRecord(Exception):
    """There is none, or it cannot be read. The message says what to do."""


class RecordReader:
    """The record of a state directory. Iterate over it once: it may be larger than one would hold in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._remarks: list[str] = []

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is missing in it and why, in sentences for people; complete after the last line."""
        return tuple(self._remarks)

    def __iter__(self) -> Iterator[Line]:
        """Yield the oldest line first, and one at least. Raises NoRecord."""
        try:
            paths = [path for name in (OLD_NAME, NAME) if (path := self._directory / name).is_file()]
        except OSError as error:
            raise NoRecord(f"{self._directory} cannot be read: {error.strerror or error}") from error
        if not paths:
            why = "give the state directory of a `diloco up` (its option --state-dir, by default .diloco)"
            raise NoRecord(f"{self._directory} has no {NAME}: {why}")
        first: Line | None = None
        for path in paths:
            try:
                with path.open("rb") as file:
                    for line in self._lines_of(path, file):
                        first = first or line
                        yield line
            except OSError as error:
                raise NoRecord(f"{path} cannot be read: {error.strerror or error}") from error
        if first is None:
            raise NoRecord(f"{paths[-1]} has no line that can be read. {' '.join(self._remarks)}".rstrip())
        if not isinstance(first, RunBegan):
            self._remarks.append("The beginning is missing: a record keeps its newest lines, at most two files of 64 MiB.")

    def _lines_of(self, path: Path, file: BinaryIO) -> Iterator[Line]:
        unreadable: list[int] = []
        torn = 0
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = parse_line(text)
            except ValueError:
                if text.endswith(b"\n"):
                    unreadable.append(number)
                else:
                    torn = number
                continue
            yield line
        if torn:
            why = "the command was ended while it wrote it, or writes it now"
            self._remarks.append(f"Line {torn} of {path.name}, its last one, is cut short: {why}. It is left out.")
        if unreadable:
            count = f"{len(unreadable):,} lines" if len(unreadable) > 1 else "1 line"
            self._remarks.append(f"{count} of {path.name} cannot be read, the first is line {unreadable[0]}. Left out.")
