"""When a snapshot of the job is due, and what of the tape it takes the place of.

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
"""A snapshot that could not be written is tried again once the tape has grown by this part of what it may hold."""
ARRAYS_OF_SNAPSHOT = 2
"""A snapshot holds value and momentum, and remainders with int4."""


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
        """Prepare to write; `data` gives the state of the job, `core` is the one that it begins with. `due`: one is due at once. `then` is
        called after each attempt in the background, `durable` after one that is durable, with its outer step."""
        self._snapshots = snapshots
        self._tape = tape
        self._data = data
        self._then = then
        self._durable = durable
        self._due = due
        self._most_values = _most_values(core)
        self._due_beyond = self._most_values
        """A snapshot is due with a larger tape."""
        self._retiring: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Let the next `write` begin a snapshot."""
        self._due = True

    def settle(self) -> None:
        """Let none be due: what is on the volume is all that there will be."""
        self._due = False

    def write(self, core: Core) -> None:
        """Begin the snapshot that is due. While one is being written, wait, and then take the state of that moment: a state that waits for
        the writer would hold a second model in memory."""
        if self._tape.wants_snapshot:
            self._due = True  # merges are written again after it
        if core.seeded and self._tape.bytes > self._due_beyond:
            self._due = True  # the volume holds no more than that besides snapshots
        if self._due and not self._snapshots.busy and not self._tape.waits_for_mark:
            self._due = False
            self._most_values = self._due_beyond = _most_values(core)
            position, before = self._tape.begin_snapshot(), self._snapshots.newest
            self._snapshots.begin(self._data(core, position), lambda: self._written(position, before))

    def _written(self, position: Position, before: DurableSnapshot | None) -> None:
        """Note that the attempt to write one is over. `before`: the newest one until then."""
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
        """Write a snapshot now. True: it is durable."""
        position = self._tape.begin_snapshot()
        durable = await self._snapshots.save(self._data(core, position))
        await self._tape.snapshot_ended(position, durable=durable)
        return durable

    async def close_tape(self) -> None:
        """Close the tape once nothing of it is being retired any more."""
        await asyncio.gather(*self._retiring)
        await self._tape.close()


def _most_values(core: Core | None) -> int:
    """Return how many bytes of values the tape may hold before a snapshot takes their place: as many as that has."""
    size = sum(fragment.size for fragment in core.fragments) if core is not None else 0
    return max(LEAST_VALUES, ARRAYS_OF_SNAPSHOT * 4 * size)
