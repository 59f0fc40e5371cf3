"""The files of a tape in its folder.

    00000001.tape    records with their values, appended to by one process: a *segment*
    00000002.tape    the next one begins with each snapshot, and with each process
    history.jsonl    heads of the records that a durable snapshot covers, one a line: their values are gone with their segments
    history.old.jsonl   the one before, once that was large

`00000001.cut.tape` says that a record could not be written after those in it: what happened then is in a snapshot at most. A segment
whose records are in the history may be there as well, after a crash; each record has a number, `n`, that tells.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from diloco.durable import fsync_directory
from diloco.tape.records import RecordFile, TapeError, TapeGone, open_regular

FOLDER: Final = "tape"
"""In the syncer's state directory."""
HISTORY: Final = "history.jsonl"
OLD_HISTORY: Final = "history.old.jsonl"
FORMAT: Final = 1
"""Version of the records."""
SEGMENT: Final = "segment"
"""Type of the record with which each segment begins."""

_LATEST: Final = 253402300800
"""Seconds since the epoch at which the year 10000 begins."""
_NAME: Final = re.compile(r"^(\d{8,})(\.cut)?\.tape$")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    number: int
    path: Path
    cut: bool
    """Whether a record is missing behind it."""


def segments(folder: Path) -> list[Segment]:
    """Return the segments in the folder, in order. Raises TapeError if it cannot be read."""
    try:
        found = [(_NAME.match(entry.name), entry) for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise TapeError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(Segment(int(match[1]), path, bool(match[2])) for match, path in found if match)


def segment_path(folder: Path, number: int, *, cut: bool = False) -> Path:
    return folder / f"{number:08d}{'.cut' if cut else ''}.tape"


def mark_cut(folder: Path, number: int) -> None:
    """Mark the last segment up to this number as cut. Idempotent. Raises OSError, TapeError."""
    if found := [segment for segment in segments(folder) if segment.number <= number]:
        last = found[-1]
        if not last.cut:
            last.path.replace(segment_path(folder, last.number, cut=True))
        fsync_directory(folder)


def heads(folder: Path) -> Iterator[dict[str, Any]]:
    """Return what all records of the tape in the folder say, in order, each once. Raises TapeError for a damaged segment. A line of the
    history that cannot be read is left out: it is for people only. The process that writes the tape may run."""
    last = 0
    while True:
        try:
            for head in _all_heads(folder):
                if head["n"] > last:
                    last = head["n"]
                    yield head
        except TapeGone:  # what it said has just come into the history
            continue
        return


def _all_heads(folder: Path) -> Iterator[dict[str, Any]]:
    for name in (OLD_HISTORY, HISTORY):
        yield from _lines(folder / name)
    for segment in segments(folder):
        yield from heads_of(segment.path)


def heads_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what the records of one segment say. Raises TapeError."""
    for record in RecordFile(path, values=False):
        if not _is_head(record.head):
            raise TapeError(
                f"the record at offset {record.offset} of {path} does not say its number, time and type: it is damaged. Put a good copy of "
                "the file back in its place"
            )
        yield record.head


def _is_head(found: Any) -> bool:
    """Return whether it says what every record says."""
    return (
        isinstance(found, dict)
        and type(found.get("n")) is int
        and isinstance(found.get("type"), str)
        and isinstance(at := found.get("at"), int | float)
        and 0 <= at < _LATEST
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            for line in file:
                try:
                    head = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if _is_head(head):
                    yield head
    except FileNotFoundError:
        return
    except OSError as error:
        raise TapeError(f"{path} cannot be read: {error.strerror or error}") from error


def retire(folder: Path, segment: Segment, most_bytes: int) -> None:
    """Keep what the segment's records say in the history, and give their values back. The history is two files of at most `most_bytes`
    and one segment's heads. Raises OSError, TapeError."""
    history = folder / HISTORY
    if history.exists() and history.stat().st_size >= most_bytes:
        history.replace(folder / OLD_HISTORY)
    with history.open("ab") as file:
        if file.tell() and not _ends_with_a_line(history):
            file.write(b"\n")  # a crash left half a line
        for record in RecordFile(segment.path, values=False):
            file.write(json.dumps(record.head, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    segment.path.unlink()


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
