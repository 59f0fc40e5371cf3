"""The files of a tape in its folder.

    00000001.tape    a *segment*: records with their values, which one process has appended
    00000002.tape    each snapshot and each process begins a new segment
    history.jsonl    heads of records that a durable snapshot covers, one in each line; their values went with their segments
    history.old.jsonl   the former history, once it was large

The name `00000001.cut.tape` says that a record after those in the file could not be written. What happened then may be in a later snapshot,
and is nowhere else. After a crash a record may be in the history and in a segment; its number `n` tells that it is the same.

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
"""Name of the tape's folder in the syncer's state directory."""
HISTORY: Final = "history.jsonl"
OLD_HISTORY: Final = "history.old.jsonl"
FORMAT: Final = 1
"""Version of the records."""
SEGMENT: Final = "segment"
"""Type of the first record of each segment."""

_LATEST: Final = 253402300800
"""When the year 10000 begins, in seconds since the epoch: a later time in a record is damage."""
_NAME: Final = re.compile(r"^(\d{8,})(\.cut)?\.tape$")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    number: int
    path: Path
    cut: bool
    """Whether a record is missing after the segment."""


def segments(folder: Path) -> list[Segment]:
    """The segments in the folder, in order. Raises TapeError if it cannot be read."""
    try:
        entries = [(_NAME.match(entry.name), entry) for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise TapeError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(Segment(int(match[1]), path, bool(match[2])) for match, path in entries if match)


def segment_path(folder: Path, number: int, *, cut: bool = False) -> Path:
    return folder / f"{number:08d}{'.cut' if cut else ''}.tape"


def mark_cut(folder: Path, first: int) -> None:
    """Mark the segments from number `first` on as cut. If that one was never begun, the last one before it is cut, too. Idempotent. Raises
    OSError, TapeError."""
    on_volume = segments(folder)
    until_first = [segment for segment in on_volume if segment.number <= first]
    for segment in (*until_first[-1:], *on_volume[len(until_first) :]):
        if not segment.cut:
            segment.path.replace(segment_path(folder, segment.number, cut=True))
    if on_volume:
        fsync_directory(folder)


def heads(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the heads of all records of the tape in the folder, in order, each once. Works while another process writes the tape. Raises
    TapeError for a damaged segment; a line of the history that cannot be read is left out, because the history is for people only."""
    last = 0
    while True:
        try:
            for head in _all_heads(folder):
                if head["n"] > last:
                    last = head["n"]
                    yield head
        except TapeGone:  # the segment's heads have just moved to the history: read again from there
            continue
        return


def _all_heads(folder: Path) -> Iterator[dict[str, Any]]:
    for name in (OLD_HISTORY, HISTORY):
        yield from _lines(folder / name)
    for segment in segments(folder):
        yield from heads_of(segment.path)


def heads_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the heads of one segment. Raises TapeError."""
    for record in RecordFile(path, values=False):
        if not _is_head(record.head):
            raise TapeError(
                f"the record at offset {record.offset} of {path} does not say its number, time and type: it is damaged. Put a good copy of "
                "the file back in its place"
            )
        yield record.head


def _is_head(found: Any) -> bool:
    """Whether the value has number, type and time, as every head has."""
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
    """Move the heads of a segment to the history, and delete the segment with its values. The history is two files, each of at most
    `most_bytes` and one segment's heads. Raises OSError, TapeError."""
    history = folder / HISTORY
    if history.exists() and history.stat().st_size >= most_bytes:
        history.replace(folder / OLD_HISTORY)
    with history.open("ab") as file:
        if file.tell() and not _ends_with_a_line(history):
            file.write(b"\n")  # after a crash the last line may be half a line
        for record in RecordFile(segment.path, values=False):
            file.write(json.dumps(record.head, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    segment.path.unlink()


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
