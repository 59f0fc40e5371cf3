"""The file of a record. Lines are appended, and a full file makes room for the next. A reader leaves out what it cannot read, and says so.

    <state directory>/record.jsonl        the newest lines
    <state directory>/record.old.jsonl    the lines before them, once one file was full

A command that is killed may leave a line that is cut short. The next command begins a new line behind it.

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
"""Limit of one file: about 300,000 lines, or five hours of the four units of `examples/quickstart.yaml`."""


class RecordWriter:
    """Appends lines. Lines that cannot be written are counted; they never stop the run."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = directory / NAME
        self._old = directory / OLD_NAME
        self._most_bytes = most_bytes
        self._file: BinaryIO | None = None
        self._torn = False
        self.dropped = 0
        """Lines that could not be written."""
        self.error = ""
        """Why the first dropped line could not be written. "" if none was dropped."""

    def write(self, *lines: Line) -> None:
        """Append these lines, and flush them so that readers see them."""
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
                return  # `error` says already what is wrong with the file


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class NoRecord(Exception):
    """There is no record, or it cannot be read. The message says what to do."""


class RecordReader:
    """The record of a state directory. Iterate over it once, line by line: it may be too large for memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._remarks: list[str] = []

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is missing in the record and why, in sentences for people. Complete after the last line."""
        return tuple(self._remarks)

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines, the oldest first. Raises NoRecord if there is none."""
        try:
            paths = [path for name in (OLD_NAME, NAME) if (path := self._directory / name).is_file()]
        except OSError as error:
            raise NoRecord(f"{self._directory} cannot be read: {error.strerror or error}") from error
        if not paths:
            remedy = "give the state directory of a `diloco up` (its option --state-dir, by default .diloco)"
            raise NoRecord(f"{self._directory} has no {NAME}: {remedy}")
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
            reason = "the command was ended while it wrote it, or writes it now"
            self._remarks.append(f"Line {torn} of {path.name}, its last one, is cut short: {reason}. It is left out.")
        if unreadable:
            count = f"{len(unreadable):,} lines" if len(unreadable) > 1 else "1 line"
            self._remarks.append(f"{count} of {path.name} cannot be read, the first is line {unreadable[0]}. Left out.")
