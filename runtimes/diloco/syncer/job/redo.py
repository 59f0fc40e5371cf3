"""What happened after a snapshot, made again from the tape: merges, leases, sessions. So a process that was killed has lost no merge that
a learner holds, and its sessions go on.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.algorithm.commit import Commit, Redo
from diloco.algorithm.state import CoreState, StateError
from diloco.contract import Training
from diloco.data.ledger import LedgerError
from diloco.syncer.job.version_checksums import VersionChecksums
from diloco.syncer.job.work import JobWork
from diloco.syncer.reporting.loss_history import LossHistory
from diloco.syncer.streams.sessions import StoredSessions
from diloco.tape.records import Record, RecordFile, TapeError, checksum
from diloco.tape.replay import chain_from, gradient_of, training_of
from diloco.tape.segments import SEGMENT, Segment, segments

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TapeEnd:
    """Where the tape of the processes before ends, and this one's begins."""

    segment: int = 1
    """The first segment of this process."""
    next: int = 1
    """Number of its first record."""
    incarnation: bytes | None = None
    """The incarnation of the state, in which nothing is missing that was broadcast. None: something may be, or there is no state."""


@dataclass(slots=True)
class Stored:
    """What a snapshot holds and the tape goes on with."""

    state: CoreState
    work: JobWork
    sessions: StoredSessions
    tokens: list[int]
    """Per fragment, committed tokens of the job when its version was made."""
    losses: LossHistory
    checksums: VersionChecksums


def end_of_tape(folder: Path) -> TapeEnd:
    """Return where a new tape begins: after all segments and records in `folder`. Raises TapeError."""
    end = TapeEnd()
    for segment in segments(folder):
        end.segment = segment.number + 1
        for record in RecordFile(segment.path, values=False):
            end.next = max(end.next, int(record.head["n"]) + 1)
    return end


def redo(folder: Path, position: Mapping[str, Any], stored: Stored, training: Training) -> TapeEnd:
    """Bring `stored`, a snapshot's, to the end of the tape. `position`: what the snapshot says of it. A torn record at the end is cut off.

    Raises TapeError for a damaged tape, and for one that does not follow on the snapshot.
    """
    first, unnoted = int(position["segment"]), int(position["next"])
    end = end_of_tape(folder)
    end.segment, end.next = max(end.segment, first), max(end.next, unnoted)
    found = segments(folder)
    chain = chain_from(found, first)
    redone = _Redone(stored, training, unnoted)
    before = 0
    for segment in chain:
        reader = RecordFile(segment.path, values=True)
        for record in reader:
            with _naming(segment, record):
                number = int(record.head["n"])
                check_follows(number, before, unnoted)
                redone.take(record)
            before = number
        if reader.torn is not None and not segment.cut:
            _cut_off(segment, reader.torn, is_last=segment is found[-1])
    redone.finish()
    if chain and chain[-1] is found[-1] and not chain[-1].cut:
        end.incarnation = redone.incarnation
    return end


class _Redone:
    def __init__(self, stored: Stored, training: Training, unnoted: int) -> None:
        self._stored = stored
        self._training = training
        self._unnoted = unnoted
        self._redo: Redo | None = None
        self.incarnation: bytes | None = None

    def take(self, record: Record) -> None:
        head, stored = record.head, self._stored
        kind = head["type"]
        if kind == SEGMENT:
            self._begin(head)
        elif kind == "merge":
            self._merge(head, record)
        elif head["n"] >= self._unnoted:
            stored.work.redo(kind, head)
            stored.sessions = stored.sessions.redo(kind, head)

    def finish(self) -> None:
        if self._redo is not None:
            self._stored.state = self._redo.state()
            if self._redo.merges:
                _log.info("took %d merges again that the snapshot does not hold, up to outer step %d", self._redo.merges, self._redo.t)

    def _begin(self, head: Mapping[str, Any]) -> None:
        self.finish()
        self._redo = Redo(self._stored.state, training_of(head, self._training))
        self.incarnation = bytes.fromhex(head["incarnation"])

    def _merge(self, head: Mapping[str, Any], record: Record) -> None:
        stored, commit = self._stored, Commit.from_json(head)
        if self._redo is None:
            raise StateError("a merge before the segment's first record")
        if self._redo.covers(commit):
            return
        update = self._redo.repeat(commit, gradient_of(record))
        found = checksum(memoryview(update.value))
        if found != int(head["checksum"], 16):
            raise StateError(f"the merge of outer step {commit.t} gives other values than it gave then")
        stored.checksums.add(commit.fragment, commit.t, found)
        stored.work.redo_merge(commit)
        stored.tokens[commit.fragment] = stored.work.ledger.tokens
        if head["loss"] is not None:
            stored.losses.training.add(commit.t, float(head["loss"]))


def check_follows(number: int, before: int, unnoted: int) -> None:
    """Raise StateError if records are missing between record `number` and `before`, or it stands twice.

    Args:
        number: of the record
        before: number of the record before it; 0 if it is the first that is read
        unnoted: records below this number may be missing, for the snapshot covers them. It may be durable before they are written
    """
    if before and not before < number <= max(before + 1, unnoted):
        raise StateError(f"it is record {number}, and the one before it is {before}: those between them are missing, or it stands twice")


@contextlib.contextmanager
def _naming(segment: Segment, record: Record) -> Iterator[None]:
    try:
        yield
    except (StateError, LedgerError, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, StateError | LedgerError) else f"{type(error).__name__}: {error}"
        raise TapeError(
            f"the record at offset {record.offset} of {segment.path} does not follow on the snapshot and the records before it: {why}. "
            f"Nothing was changed. To go on from before it, cut the file there (truncate -s {record.offset}) and remove the later ones."
        ) from error


def _cut_off(segment: Segment, offset: int, *, is_last: bool) -> None:
    if not is_last:
        raise TapeError(
            f"{segment.path} ends within the record at offset {offset}, and a later file is beside it. Put a good copy back in its place; "
            f"or remove the later files, to go on from the merge before it."
        )
    _log.warning("%s ends within a record, which was not broadcast; it is cut off at offset %d", segment.path, offset)
    try:
        os.truncate(segment.path, offset)
    except OSError as error:
        raise TapeError(f"{segment.path} cannot be cut off at offset {offset}: {error.strerror or error}") from error
