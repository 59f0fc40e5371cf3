"""When a snapshot of the job is due, and when the part of the tape that it replaces may go.

Only the engine's task uses it. See docs/decisions/0247-commit-records.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from diloco.algorithm.core import Core
from diloco.snapshots.writer import DurableSnapshot, SnapshotData, SnapshotWriter
from diloco.tape.writer import Position, TapeWriter

LEAST_VALUES = 64 << 20
"""Bytes of values that the tape of a small model may hold."""
_RETRY = 8
"""After a failed write, a snapshot is tried again once the tape has grown by 1/_RETRY of what it may hold."""
ARRAYS_OF_SNAPSHOT = 2
"""A snapshot holds value and momentum. With int4 it also holds remainders, which do not count here."""


class SnapshotSchedule:
    """Writes snapshots of the job's state, one at a time."""

    def __init__(
        self,
        snapshots: SnapshotWriter,
        tape: TapeWriter,
        data: Callable[[Core, Position], SnapshotData],
        core: Core | None,
        *,
        due: bool,
        then: Callable[[], None],
        durable: Callable[[int], None],
    ) -> None:
        """
        Args:
            data: returns the state of the job
            core: what the job begins with, or None
            due: a snapshot is due at once
            then: called after each attempt in the background, successful or not
            durable: called with the outer step of each snapshot that was written in the background and is durable
        """
        self._snapshots = snapshots
        self._tape = tape
        self._data = data
        self._then = then
        self._durable = durable
        self._due = due
        self._most_values = _most_values(core)
        self._due_beyond = self._most_values
        """A snapshot is due if the tape holds more bytes of values."""
        self._retiring: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Let the next `write` begin a snapshot."""
        self._due = True

    def settle(self) -> None:
        """Let no snapshot be due: the volume holds the final one."""
        self._due = False

    def write(self, core: Core) -> None:
        """Begin the snapshot that is due, unless one is being written.

        The state is taken only when its write begins, because a state that waits for the writer would hold a second model in memory.
        """
        if self._tape.wants_snapshot:
            self._due = True  # a record is missing, and the tape goes on only after a snapshot
        if core.seeded and self._tape.bytes > self._due_beyond:
            self._due = True  # the volume has no room for a longer tape
        if self._due and not self._snapshots.busy and not self._tape.snapshot_waits:
            self._due = False
            self._most_values = self._due_beyond = _most_values(core)
            position, before = self._tape.begin_snapshot(), self._snapshots.newest
            self._snapshots.begin(self._data(core, position), lambda: self._written(position, before))

    def _written(self, position: Position, before: DurableSnapshot | None) -> None:
        """Note that the attempt to write a snapshot is over. `before` was the newest one until then."""
        newest = self._snapshots.newest
        ended = asyncio.create_task(self._ended(position, newest if newest is not before else None), name="snapshot-ended")
        self._retiring.add(ended)  # an event loop holds its tasks weakly
        ended.add_done_callback(self._retiring.discard)
        self._then()

    async def _ended(self, position: Position, written: DurableSnapshot | None) -> None:
        await self._tape.snapshot_ended(position, durable=written is not None)
        if written is not None:
            self._durable(written.t)
        else:
            self._due_beyond = max(self._most_values, self._tape.bytes + self._most_values // _RETRY)

    async def save(self, core: Core) -> bool:
        """Write a snapshot now. True if it is durable."""
        position = self._tape.begin_snapshot()
        durable = await self._snapshots.save(self._data(core, position))
        await self._tape.snapshot_ended(position, durable=durable)
        return durable

    async def close_tape(self) -> None:
        """Close the tape once nothing of it is being retired any more."""
        await asyncio.gather(*self._retiring)
        await self._tape.close()


def _most_values(core: Core | None) -> int:
    """Return how many bytes of values the tape may hold before a snapshot replaces them: as many as the snapshot has, or LEAST_VALUES."""
    size = sum(fragment.size for fragment in core.fragments) if core is not None else 0
    return max(LEAST_VALUES, ARRAYS_OF_SNAPSHOT * 4 * size)
