"""Writes the tape of a job in the background: in order, in a thread, and synced before a merge counts.

Events are noted as they happen. A merge is committed: once its record is durable, with all that was noted before it, `then` is called.
Only then the merge may take its place and be broadcast. Records that come while a write runs are written together, with one sync.

Merges wait for their *base*, the snapshot that the first segment's records follow on: without it a record is worth nothing. If the base or
a record cannot be written, the tape is *lost* until the next snapshot is begun. Training goes on meanwhile, as it does when a snapshot
fails; a restart then goes back to what is on the volume. That snapshot waits for merges without a record to take their place: what it
lacks would be missing before the records that follow on it.

Before anything goes on without a record, every segment that lacks one is marked as cut. Otherwise a restart would take the tape for
complete, under the same incarnation, and learners that hold more would resume: a version would have two contents. If the mark cannot be
written either, merges and leases wait until it can. The tape may be lost again while the snapshot is written on which it shall go on: then
the segment of that snapshot is marked, and only the next snapshot ends the loss.

See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from diloco.durable import fsync_directory
from diloco.free_space import demand, remedy
from diloco.tape.records import Head, TapeError, checksum, write_record
from diloco.tape.segments import FORMAT, SEGMENT, mark_cut, retire, segment_path, segments

_log = logging.getLogger(__name__)

MOST_HISTORY: Final = 16 << 20
"""Bytes at which a file of the history is full; there are two."""
_sync_data: Final = getattr(os, "fdatasync", os.fsync)
_HEAD: Final = 512
"""Estimated bytes of a head."""
_BUFFER: Final = 1 << 16
MOST_WAITING: Final = 1 << 16
"""The most records that may wait for the disk. With more, the disk counts as hanging, and the tape is lost."""
NOTES_WAIT: Final = 0.2
"""Seconds that notes wait for a merge to be written with, because each write costs a thread's turn."""
_MARK_AGAIN: Final = 1.0
"""Seconds until a mark that could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the records begin that follow on a snapshot."""

    segment: int
    """The first segment with such records."""
    next: int
    """Number of the first record after the snapshot was taken. The snapshot may lack merges before it, as the fragments' versions show."""

    def to_json(self) -> dict[str, int]:
        return {"segment": self.segment, "next": self.next}


@dataclass(slots=True)
class _Waiting:
    """A record that waits to be written. A record of the type `segment` begins a new segment."""

    kind: str
    what: Mapping[str, Any]
    number: int = 0
    """The record's number, once it has its place in the order."""
    segment: int = 0
    """The record's segment, from then on."""
    at: float = 0.0
    gradient: memoryview | None = field(default=None, repr=False)
    result: memoryview | None = field(default=None, repr=False)
    checksum: int = 0
    """Checksum of `result`, once the record was written. 0 before."""
    then: Callable[[int], None] | None = None


class TapeWriter:
    """One process's writer of the tape. For one event loop."""

    def __init__(
        self,
        folder: Path,
        segment_head: Head,
        *,
        segment: int,
        next_number: int,
        based: bool,
        changed: Callable[[], None],
        most_history: int = MOST_HISTORY,
    ) -> None:
        """Begins the first segment of this process.

        Args:
            segment_head: the content of each segment's first record.
            segment: number of the first segment.
            next_number: number of the first record.
            based: the records follow on a state that is on the volume, so merges need not wait for a snapshot.
            changed: called when `error` has changed.
            most_history: bytes at which a file of the history is full.
        """
        self._folder = folder
        self._segment_head = dict(segment_head)
        self._segment = segment
        self._next = next_number
        self._based = based
        self._changed = changed
        self._most_history = most_history
        self._waiting: list[_Waiting] = []
        self._held: list[_Waiting] = []
        """Merges that wait for the base, or for the mark."""
        self._after: list[Callable[[], None]] = []
        """Called once the waiting records are written."""
        self._held_after: list[Callable[[], None]] = []
        """Called once the mark is written."""
        self._marking: asyncio.Task[None] | None = None
        self._under_way: dict[int, int] = {}
        """The segment with the record of each merge that is not applied yet, by outer step."""
        self._unrecorded: set[int] = set()
        """Merges that are not applied yet and for which the segment of the next snapshot will have no record, by outer step."""
        self._file: BinaryIO | None = None
        self._retirement = asyncio.Lock()
        """Held while segments are retired: two snapshots can end at about the same time, such as the last two of a job."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Writes notes if no merge comes."""
        self._lost = False
        self._marked = False
        """While the tape is lost: whether the volume says so."""
        self._first_missing = 0
        """While the tape is lost: the first segment that lacks a record."""
        self._begun: Position | None = None
        """Where the records begin that follow on the newest snapshot, also if that is still being written."""
        self.wants_snapshot = False
        """Some record is missing, so a snapshot is due."""
        self.bytes = 0
        """Estimated bytes of records that neither a durable snapshot nor the one that is being written covers."""
        self._covered = 0
        """Estimated bytes of records that the snapshot covers that was begun last."""
        self.error = ""
        """Why the tape is lost; "" if it is not."""
        self._begin_segment()

    @property
    def waits_for_mark(self) -> bool:
        """Whether a record is missing and the volume does not say so yet."""
        return self._lost and not self._marked

    @property
    def snapshot_waits(self) -> bool:
        """Whether no snapshot may be begun now, because its segment would follow on missing records: the volume does not say yet that they
        are missing, or one is that of a merge which the state does not hold yet."""
        return self.waits_for_mark or bool(self._unrecorded)

    def note(self, kind: str, **what: Any) -> None:
        """Note that something has happened. The record is written within `NOTES_WAIT`, and durable with the next merge."""
        if not self._lost:
            self._put(_Waiting(kind, what))

    def after_notes(self, then: Callable[[], None]) -> None:
        """Call `then` once all notes so far are written, so that they outlive this process, though not the machine. At once if none
        wait."""
        if self.waits_for_mark:
            self._held_after.append(then)
        elif self._lost or not (self._busy or self._waiting):
            then()
        else:
            self._after.append(then)
            self._write_now()

    def commit(self, t: int, what: Mapping[str, Any], gradient: memoryview, result: memoryview, then: Callable[[int], None]) -> None:
        """Make the merge of outer step `t` durable, and call `then`; at once if the tape is lost and the volume says so. The caller calls
        `applied` later.

        Args:
            gradient: the merged outer gradient. Like `result` it must not change.
            result: the fragment's new value, whose checksum is recorded.
            then: gets that checksum. 0 if there is no record.
        """
        waiting = _Waiting("merge", what, gradient=gradient, result=result, then=then)
        if self._lost:
            self._unrecorded.add(t)
            if self._marked:
                self.bytes += gradient.nbytes  # though not written: a snapshot becomes due by what no snapshot covers
                then(0)
            else:
                self._held.append(waiting)
            return
        self._under_way[t] = self._segment
        self.bytes += gradient.nbytes
        if self._based:
            self._put(waiting)
        else:
            self._held.append(waiting)

    def applied(self, t: int) -> None:
        """The merge of outer step `t` has taken its place. Idempotent."""
        self._under_way.pop(t, None)
        self._unrecorded.discard(t)

    def begin_snapshot(self) -> Position:
        """A snapshot of the present state is taken. Records from now on go to a new segment."""
        if self.waits_for_mark:  # only for the last snapshot of a process that ends
            return Position(self._segment + 1, self._next)
        if self._lost:
            self._lost = self._marked = self._based = False
            self._set_error("")
        self.wants_snapshot = False
        self._segment += 1
        self._covered, self.bytes = self.bytes, 0
        self._begin_segment()
        self._begun = Position(min([self._segment, *self._under_way.values()]), self._next)
        return self._begun

    async def snapshot_ended(self, position: Position, *, durable: bool) -> None:
        """The snapshot begun at `position` has ended. If it is durable, the values that it covers are removed, and merges may follow on
        it."""
        if not durable:
            self.bytes += self._covered
        if not self._based and position == self._begun:
            self._base_ended(durable=durable)
        if durable:
            async with self._retirement:
                await asyncio.to_thread(self._retire, position.segment)

    def _base_ended(self, *, durable: bool) -> None:
        if self._lost:  # again, since that snapshot was begun
            self.wants_snapshot = durable  # if not, the next one would fail as well: it waits until it is due
        elif not durable:
            self._lose("the snapshot on which the tape would follow could not be written")
        else:
            self._based = True
            while self._held and not self._lost:
                self._put(self._held.pop(0))

    async def idle(self) -> None:
        """Write what waits, and return when it is written."""
        self._write_now()
        while self._task is not None and self._busy:
            await asyncio.shield(self._task)

    @property
    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Write what waits, and close the file. Merges that wait for a base or for the mark are dropped."""
        await self.idle()
        self._stop_marking()
        self._close_file()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        self._put(_Waiting(SEGMENT, {"format": FORMAT, "segment": self._segment, **self._segment_head}))

    def _put(self, waiting: _Waiting) -> None:
        waiting.number, self._next = self._next, self._next + 1
        waiting.segment = self._segment
        waiting.at = round(time.time(), 3)  # noqa: TID251 - for people: nothing is decided by it
        self.bytes += _HEAD
        self._waiting.append(waiting)
        if len(self._waiting) > MOST_WAITING:
            self._lose(f"{len(self._waiting)} records wait for {self._folder}, which does not answer")
        if waiting.kind == SEGMENT or waiting.then is not None:
            self._write_now()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTES_WAIT, self._write_now)

    def _write_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self._busy:
            self._task = asyncio.create_task(self._write_waiting(), name="tape")

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            # Taken together with the batch: a call that is registered during the write waits for notes of the next batch.
            after, self._after = self._after, []
            try:
                await asyncio.to_thread(self._write, batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, merges must not wait for a writer that has ended
                if not isinstance(error, OSError):  # a full volume is none of our defects
                    _log.exception("a defect of the tape")
                self._lose(self._refusal(error), batch, after)
                continue
            for record in batch:
                if record.then is not None:
                    record.then(record.checksum)
            for then in after:
                then()

    def _write(self, batch: list[_Waiting]) -> None:
        """Runs in a thread. Raises OSError; if room is missing `NoRoom`, before anything is written, so that no record is torn."""
        if values := sum(record.gradient.nbytes for record in batch if record.gradient is not None):
            demand(self._folder, values + _HEAD * len(batch))
        durable = False
        for record in batch:
            if record.kind == SEGMENT:
                self._sync(durable)
                durable = False
                self._open(record.what["segment"])
            file = self._file
            if file is None:  # the tape was lost, and no segment was begun since
                return
            head = {"n": record.number, "at": record.at, "type": record.kind, **record.what}
            if record.result is not None:
                record.checksum = checksum(record.result)
                head["checksum"] = f"{record.checksum:08x}"
            write_record(file, head, record.gradient)
            if record.then is not None:
                durable = True
        self._sync(durable)

    def _sync(self, durable: bool) -> None:
        """Pass what was written to the operating system; if it has a merge (`durable`), to the disk."""
        if self._file is not None:
            self._file.flush()
            if durable:
                _sync_data(self._file.fileno())

    def _open(self, number: int) -> None:
        self._close_file()
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            fsync_directory(self._folder.parent)
        self._file = segment_path(self._folder, number).open("xb", buffering=_BUFFER)
        # A sync of the file alone does not save its name: a power cut could take the whole segment.
        fsync_directory(self._folder)

    def _close_file(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            finally:
                self._file = None

    def _retire(self, first_needed: int) -> None:
        """Retire the segments before this one: only their heads are still needed. Runs in a thread."""
        try:
            for segment in segments(self._folder):
                if segment.number < first_needed:
                    retire(self._folder, segment, self._most_history)
        except (OSError, TapeError) as error:
            _log.warning("the values of older merges stay in %s: %s", self._folder, error)  # the next snapshot tries again

    # --- losing -------------------------------------------------------------------------------------------------------

    def _lose(self, why: str, failed: Sequence[_Waiting] = (), after: Iterable[Callable[[], None]] = ()) -> None:
        """The records in `failed`, and all that wait, are lost. `after`: calls that waited for `failed`."""
        missing = next((record.segment for record in (*failed, *self._waiting)), self._segment)
        self._held = [record for record in (*failed, *self._held, *self._waiting) if record.then is not None]
        self._held_after += [*after, *self._after]
        self._waiting, self._after = [], []
        if self._lost:  # and not marked yet: since the mark nothing is written
            self._first_missing = min(self._first_missing, missing)
            return
        _log.error("%s", why)
        self._lost, self._first_missing = True, missing
        self.wants_snapshot = self._based  # else one is being written, or has just failed
        self._set_error(why)
        # Those of them that are written stand in segments on which the next snapshot does not follow.
        self._unrecorded.update(self._under_way)
        self._under_way.clear()
        self._marking = asyncio.create_task(self._mark(why), name="tape-mark")

    async def _mark(self, why: str) -> None:
        """Mark on the volume which segments lack records. Then what waits goes on without them."""
        await self.idle()  # what is being written may begin a segment
        while True:
            try:
                await asyncio.to_thread(mark_cut, self._folder, self._first_missing)
            except (OSError, TapeError) as error:
                self._set_error(f"{why} That cannot be marked there either, so merges wait until it can: {error}.")
                await asyncio.sleep(_MARK_AGAIN)
            else:
                break
        self._marking = None
        self._marked = True
        self._set_error(why)
        self._go_on()

    def _stop_marking(self) -> None:
        if self._marking is not None:
            self._marking.cancel()
            self._marking = None

    def _go_on(self) -> None:
        """What waits goes on, without a record."""
        merges, self._held = self._held, []
        after, self._held_after = self._held_after, []
        for record in merges:
            if record.then is not None:
                record.then(record.checksum)
        for then in after:
            then()

    def _refusal(self, error: Exception) -> str:
        if not isinstance(error, OSError):
            return f"a record could not be written to {self._folder}: {type(error).__name__}: {error}"
        return (
            f"a merge could not be written to {self._folder}: {error.strerror or error}; a restart goes back to before it, until a "
            f"snapshot is written. {remedy(error)}."
        )

    def _set_error(self, error: str) -> None:
        if error != self.error:
            self.error = error
            self._changed()
