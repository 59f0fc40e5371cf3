"""A model over a pipe that may break: a line of JSON that announces the file, the file, and a line of JSON with its checksum. Empty lines
before the announcement say that the sender is still reading, so that no proxy takes the connection for dead.

    {"format": 1, "bytes": 1234, "step": 240, "job": "bytes-lm", "snapshot": "/var/lib/diloco/…", "tensors": 12, "parameters": 300, …}
    …1234 bytes…
    {"sha256": "…"}

The reader answers with a line once it has everything. The sender waits for it, because what a container writes right before it ends may be
lost.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import BinaryIO

from diloco.export.model_file import ModelFile
from diloco.export.places import ExportError

FORMAT = 1
RECEIVED = b"received\n"
LONGEST_LINE = 1 << 16
_SILENT_READS = 128
"""MiB that are read between two empty lines, which takes some seconds on a slow volume."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The first line of a stream: what comes."""

    format: int
    bytes: int
    step: int
    job: str
    snapshot: str
    remark: str
    tensors: int
    parameters: int


def announcement(model: ModelFile) -> Announcement:
    snapshot = model.snapshot
    return Announcement(FORMAT, model.size, snapshot.t, snapshot.job, snapshot.name, snapshot.remark, model.tensors, model.parameters)


def empty_lines(output: BinaryIO) -> Callable[[], None]:
    """Return a function to call after each MiB that is read and not sent. Now and then it writes an empty line."""
    reads = 0

    def reading() -> None:
        nonlocal reads
        reads += 1
        if reads % _SILENT_READS == 0:
            output.write(b"\n")
            output.flush()

    return reading


def send(model: ModelFile, output: BinaryIO, answers: BinaryIO) -> None:
    """Write the stream, then wait for the answer, or for the end of `answers`. May raise ExportError after a part of the stream."""
    digest = hashlib.sha256()
    begun = False
    for piece in model.pieces(empty_lines(output)):
        if not begun:
            output.write(json.dumps(asdict(announcement(model))).encode() + b"\n")
            begun = True
        output.write(piece)
        digest.update(piece)
    output.write(json.dumps({"sha256": digest.hexdigest()}).encode() + b"\n")
    output.flush()
    answers.readline()


class StreamReader:
    """Reads a stream, in whatever pieces it comes. Calls `begin` with the announcement, and `write` with the bytes of the file."""

    def __init__(self, begin: Callable[[Announcement], None], write: Callable[[bytes], None]) -> None:
        self._begin = begin
        self._write = write
        self._digest = hashlib.sha256()
        self._line = b""
        self._left = 0
        self._announced: Announcement | None = None
        self.complete = False
        """Whether everything has come and the checksum is right."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises ExportError if this is no such stream."""
        rest = piece
        while rest and not self.complete:
            if self._left:
                part, rest = rest[: self._left], rest[self._left :]
                self._left -= len(part)
                self._digest.update(part)
                self._write(part)
                continue
            line, newline, rest = rest.partition(b"\n")
            self._line += line
            if len(self._line) > LONGEST_LINE:
                raise _not_ours(self._line)
            if newline:
                self._on_line(self._line)
                self._line = b""

    def end(self) -> None:
        """The stream has ended. Raises ExportError if something is missing."""
        if self.complete:
            return
        if self._announced is None:
            raise ExportError(f"the stream ended before the model began{f': {self._line[:200]!r}' if self._line else ''}")
        came = self._announced.bytes - self._left
        raise ExportError(f"the stream ended after {came} of {self._announced.bytes} bytes, without its checksum")

    def _on_line(self, line: bytes) -> None:
        if not line:
            return
        try:
            content = json.loads(line)
            if self._announced is None:
                announced = Announcement(**content)
            else:
                expected = str(content["sha256"])
        except (ValueError, TypeError, KeyError) as error:
            raise _not_ours(line) from error
        if self._announced is not None:
            if expected != self._digest.hexdigest():
                raise ExportError("the bytes that came do not have the checksum of those that were sent")
            self.complete = True
            return
        if announced.format != FORMAT or not isinstance(announced.bytes, int) or announced.bytes <= 0:
            raise ExportError(f"the stream has format {announced.format!r}, this program reads {FORMAT}: use an image of this release")
        self._announced = announced
        self._left = announced.bytes
        self._begin(announced)


def _not_ours(line: bytes) -> ExportError:
    return ExportError(f"the stream is not one of `python -m diloco.export`: {line[:200]!r}")
