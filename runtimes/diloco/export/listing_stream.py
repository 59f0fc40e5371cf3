"""A list of snapshots over a pipe that may break: one JSON object in each line, and then a line with their number. Empty lines say that the
sender is still reading. The reader answers with a line once it has everything, as it does for a model (`stream`).

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import BinaryIO

from diloco.export.listing import SnapshotEntry, State, list_snapshots
from diloco.export.places import ExportError
from diloco.export.stream import LONGEST_LINE, empty_lines
from diloco.wording import plural


def send_listing(where: str, output: BinaryIO, answers: BinaryIO, *, job: str = "", check: bool = False) -> None:
    """Write the list, then wait for the answer, or for the end of `answers`. May raise ExportError after a part of the list."""
    sent, reading = 0, empty_lines(output)
    for listed in list_snapshots(where, job=job, check=check, reading=reading):
        output.write(json.dumps(asdict(listed)).encode() + b"\n")
        sent += 1
    output.write(json.dumps({"listed": sent}).encode() + b"\n")
    output.flush()
    answers.readline()


class ListingReader:
    """Reads the stream, in whatever pieces it comes."""

    def __init__(self) -> None:
        self.found: list[SnapshotEntry] = []
        self.complete = False
        """Whether everything has come."""
        self._line = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises ExportError if this is no such stream."""
        *lines, self._line = (self._line + piece).split(b"\n")
        if len(self._line) > LONGEST_LINE:
            raise _not_ours(self._line)
        for line in lines:
            if line and not self.complete:
                self._on_line(line)

    def end(self) -> None:
        """The stream has ended. Raises ExportError if something is missing."""
        if not self.complete:
            raise ExportError(f"the list ended after {plural(len(self.found), 'snapshot')}, and was not complete")

    def _on_line(self, line: bytes) -> None:
        try:
            content = json.loads(line)
            if content.keys() == {"listed"}:
                self.complete = int(content["listed"]) == len(self.found)
            else:
                self.found.append(SnapshotEntry(**content | {"state": State(content["state"])}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_ours(line) from error


def _not_ours(line: bytes) -> ExportError:
    return ExportError(f"this is no list of `python -m diloco.export`, use an image of this release: {line[:200]!r}")
