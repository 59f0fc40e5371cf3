"""Writes the tape of a job in the background: in order, in a thread, and synced before a merge counts.

Events are noted as they happen. A merge is committed: once its record is durable, with all that was noted before it, `then` is called,
and only then it may take its place and be broadcast. What comes while a write runs is written together, with one sync.

Merges wait for their *base*, the snapshot on which the first segment's records follow: a record without it is worth nothing. If the base
or a record cannot be written, the tape is *lost* until the next snapshot is begun. Training goes on meanwhile, as it does when a
snapshot fails; a restart then goes back to what is there.

Before anything goes on without a record, the volume says so: the last segment is marked as cut. Else a restart would take the tape for
whole under the same incarnation, and learners that hold more would resume: a version would have two contents. While the mark cannot be
written either, merges and leases wait for it.

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
"""Bytes of what is kept of records that a snapshot covers, in each of two files."""
_sync_data: Final = getattr(os, "fdatasync", os.fsync)
_HEAD: Final = 512
"""Bytes of a head, about."""
_BUFFER: Final = 1 << 16
MOST_WAITING: Final = 1 << 16
"""Records that wait for the disk. With more it hangs, and the tape is lost."""
NOTES_WAIT: Final = 0.2
"""Seconds for which notes wait for a merge with which they are written: to write costs a thread's turn each time."""
_MARK_AGAIN: Final = 1.0
"""Seconds until a mark that could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class Position:
    """Which records do not count for a snapshot that is taken now."""

    segment: int
    """They begin with this one."""
    next: int
    """Number of the next record. Merges before it may be missing in the snapshot: versions of fragments tell."""

    def to_json(self) -> dict[str, int]:
        return {"segment": self.segment, "next": self.next}


@dataclass(slots=True)
class _Waiting:
    """A record that is to be written. One of the type `segment` begins a new segment."""

    kind: str
    what: Mapping[str, Any]
    number: int = 0
    """The number of the record, once it has its place in the order."""
    segment: int = 0
    """The segment in which that place is."""
    at: float = 0.0
    gradient: memoryview | None = field(default=None, repr=False)
    result: memoryview | None = field(default=None, repr=False)
    then: Callable[[], None] | None = None


class TapeWriter:
    """The writer of the tape, of one process. Used in one event loop."""

    def __init__(
        self,
        folder: Path,
        about: Head,
        *,
        segment: int,
        next_number: int,
        based: bool,
        changed: Callable[[], None],
        most_history: int = MOST_HISTORY,
    ) -> None:
        """`about`: what each segment says of itself. `segment`, `next_number`: of the first that this process writes. `based`: the
        records follow on what is there. `changed` is called when `error` has changed."""
        self._folder = folder
        self._about = dict(about)
        self._segment = segment
        self._next = next_number
        self._based = based
        self._changed = changed
        self._most_history = most_history
        self._waiting: list[_Waiting] = []
        self._held: list[_Waiting] = []
        """Merges that wait for the base, or for the mark."""
        self._after: list[Callable[[], None]] = []
        """To be called once what waits is written."""
        self._held_after: list[Callable[[], None]] = []
        """To be called once the mark is written."""
        self._seems_whole = based
        """Whether a restart would take what is on the volume for all that happened."""
        self._marking: asyncio.Task[None] | None = None
        self._under_way: dict[int, int] = {}
        """By outer step of a merge that is not applied yet, the segment with its record."""
        self._file: BinaryIO | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """It lets notes be written without a merge."""
        self._lost = False
        self.wants_snapshot = False
        """Something has no record, so the next snapshot is due."""
        self.bytes = 0
        """About what is covered neither by a durable snapshot nor by the one that is being written."""
        self._covered = 0
        """What the snapshot covers that was begun last."""
        self.error = ""
        """Why the tape is lost; empty: it is not."""
        self._begin_segment()

    @property
    def waits_for_mark(self) -> bool:
        """Whether a record is missing, and the volume does not say so yet. No snapshot is begun meanwhile: its segment would follow on
        what is missing."""
        return self._lost and self._seems_whole

    def note(self, kind: str, **what: Any) -> None:
        """Something has happened. It is written within `NOTES_WAIT`, and durable with the next merge."""
        if not self._lost:
            self._put(_Waiting(kind, what))

    def after_notes(self, then: Callable[[], None]) -> None:
        """Call `then` once what was noted so far is written: it outlives this process, though not the machine. At once if nothing waits."""
        if self.waits_for_mark:
            self._held_after.append(then)
        elif self._lost or not (self._busy or self._waiting):
            then()
        else:
            self._after.append(then)
            self._write_now()

    def commit(self, t: int, what: Mapping[str, Any], gradient: memoryview, result: memoryview, then: Callable[[], None]) -> None:
        """Make the merge of outer step `t` durable, and call `then`; at once if the tape is lost and the volume says so. `applied` follows.
        The arrays must not change. `gradient`: the merged outer gradient; `result`: the fragment's new value, of which the checksum is
        kept."""
        if self._lost and not self._seems_whole:
            self.bytes += gradient.nbytes  # written or not: so much is in no snapshot, and the next one is tried for it
            then()
            return
        waiting = _Waiting("merge", what, gradient=gradient, result=result, then=then)
        if self._lost:
            self._held.append(waiting)
            return
        self._under_way[t] = self._segment
        self.bytes += gradient.nbytes
        if self._based:
            self._put(waiting)
        else:
            self._held.append(waiting)

    def applied(self, t: int) -> None:
        """Note that the merge of outer step `t` has taken its place. Idempotent."""
        self._under_way.pop(t, None)

    def begin_snapshot(self) -> Position:
        """Note that a snapshot is taken of the state as it is now. Records from now on lie in a segment of their own."""
        if self.waits_for_mark:  # the last one of a process that ends
            return Position(self._segment + 1, self._next)
        if self._lost:
            self._lost, self._based = False, False
            self._set_error("")
        self.wants_snapshot = False
        self._segment += 1
        self._covered, self.bytes = self.bytes, 0
        self._begin_segment()
        return Position(min([self._segment, *self._under_way.values()]), self._next)

    async def snapshot_ended(self, position: Position, *, durable: bool) -> None:
        """Note that the snapshot begun at `position` is durable: what it covers gives its values back, and merges may follow on it. Or it
        is not."""
        if not durable:
            self.bytes += self._covered
            if not self._based and not self._lost:
                self._lose("the snapshot on which the tape would follow could not be written")
            return
        if not self._based and not self._lost:
            self._based = self._seems_whole = True
            held, self._held = self._held, []
            for one in held:
                self._put(one)
        await asyncio.to_thread(self._retire, position.segment)

    async def idle(self) -> None:
        """Wait until nothing is being written."""
        self._write_now()
        while self._task is not None and self._busy:
            await asyncio.shield(self._task)

    @property
    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Write what waits, and close the file. Merges that wait for a base or the mark are left."""
        await self.idle()
        self._stop_marking()
        self._close_file()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        self._put(_Waiting(SEGMENT, {"format": FORMAT, "segment": self._segment, **self._about}))

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
            # Together with the batch: what is registered while it is written waits for notes that are in the next one.
            after, self._after = self._after, []
            try:
                await asyncio.to_thread(self._write, batch)
            except (OSError, ValueError) as error:
                self.wants_snapshot = True
                self._lose(self._refusal(error), batch, after)
                continue
            for one in batch:
                if one.then is not None:
                    one.then()
            for then in after:
                then()

    def _write(self, batch: list[_Waiting]) -> None:
        """In a thread. Raises OSError; `NoRoom` before anything of the batch is written, so that no record is torn for lack of room."""
        if values := sum(one.gradient.nbytes for one in batch if one.gradient is not None):
            demand(self._folder, values + _HEAD * len(batch))
        durable = False
        for one in batch:
            if one.kind == SEGMENT:
                self._sync(durable)
                durable = False
                self._open(one.what["segment"])
            file = self._file
            if file is None:  # it was lost, and nothing was begun since
                return
            head = {"n": one.number, "at": one.at, "type": one.kind, **one.what}
            if one.result is not None:
                head["checksum"] = checksum(one.result)
            write_record(file, head, one.gradient)
            durable |= one.then is not None
        self._sync(durable)

    def _sync(self, durable: bool) -> None:
        """Give what was written to the operating system; with a merge in it, to the disk."""
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
        # Syncing the file alone does not keep its name: a power cut could take the whole segment.
        fsync_directory(self._folder)

    def _close_file(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            finally:
                self._file = None

    def _retire(self, first_needed: int) -> None:
        """Retire segments before this one, of which only what they say is needed. In a thread."""
        try:
            for segment in segments(self._folder):
                if segment.number < first_needed:
                    retire(self._folder, segment, self._most_history)
        except (OSError, TapeError) as error:
            _log.warning("the values of older merges stay in %s: %s", self._folder, error)  # the next snapshot tries again

    # --- losing -------------------------------------------------------------------------------------------------------

    def _lose(self, why: str, failed: Sequence[_Waiting] = (), after: Iterable[Callable[[], None]] = ()) -> None:
        """Note that records are missing: those that wait, and `failed`, after which `after` was to be called."""
        missing = next((one.segment for one in (*failed, *self._waiting)), self._segment)
        self._held = [one for one in (*failed, *self._held, *self._waiting) if one.then is not None]
        self._held_after += [*after, *self._after]
        self._waiting = [one for one in self._waiting if one.kind == SEGMENT]
        self._after = []
        if not self._lost:
            _log.error("%s", why)
            self._lost = True
            self._set_error(why)
            self._under_way.clear()
        if not self._seems_whole:
            self._go_on()
        elif self._marking is None:
            self._marking = asyncio.create_task(self._mark(missing, why), name="tape-mark")

    async def _mark(self, segment: int, why: str) -> None:
        """Let the volume say that records are missing in this segment or behind it. Then what waits goes on without them."""
        while True:
            try:
                await asyncio.to_thread(mark_cut, self._folder, segment)
            except (OSError, TapeError) as error:
                self._set_error(f"{why} That cannot be marked there either, so merges wait until it can: {error}.")
                await asyncio.sleep(_MARK_AGAIN)
            else:
                break
        self._marking = None
        self._seems_whole = False
        self._set_error(why)
        self._go_on()

    def _stop_marking(self) -> None:
        if self._marking is not None:
            self._marking.cancel()
            self._marking = None

    def _go_on(self) -> None:
        """Let what waits go on without a record."""
        held, self._held = self._held, []
        after, self._held_after = self._held_after, []
        for one in held:
            if one.then is not None:
                one.then()
        for then in after:
            then()

    def _refusal(self, error: OSError | ValueError) -> str:
        if isinstance(error, ValueError):
            return f"a record could not be written to {self._folder}: {error}"
        return (
            f"a merge could not be written to {self._folder}: {error.strerror or error}; a restart goes back to before it, until a "
            f"snapshot is written. {remedy(error)}."
        )

    def _set_error(self, error: str) -> None:
        if error != self.error:
            self.error = error
            self._changed()
