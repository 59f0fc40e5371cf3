"""Writes the syncer's snapshots in the background: one at a time, in a thread.

A failure is reported and never stops training; the next snapshot tries again.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import SnapshotError, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotData:
    """A consistent state: arrays that are never written to again, and the rest as JSON. Write it only once, as this releases the arrays."""

    t: int
    """Outer step."""
    tensors: TensorParts = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class DurableSnapshot:
    """A snapshot on the volume."""

    t: int
    """Outer step."""
    path: Path
    copied: bool = False
    """The snapshot is in the remote place too."""


class SnapshotWriter:
    """Writes snapshots to the volume, and copies them to the remote place if there is one."""

    def __init__(
        self, store: SnapshotStore, remote: RemoteSnapshots | None, changed: Callable[[], None], found: DurableSnapshot | None
    ) -> None:
        """`changed` is called after each attempt. `found`: the snapshot that the process found at its start; None if there was none."""
        self._store = store
        self._remote = remote
        self._changed = changed
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.newest = found
        """The newest durable snapshot."""
        self.error = ""
        """Why the last snapshot could not be written or copied; "" if it was."""

    @property
    def snapshot_t(self) -> int:
        """Outer step of the newest durable snapshot; -1 if there is none."""
        return self.newest.t if self.newest is not None else -1

    @property
    def is_copied(self) -> bool:
        """Whether the newest durable snapshot is copied. True if there is nothing to copy, or no remote place."""
        return self._remote is None or self.newest is None or self.newest.copied

    @property
    def busy(self) -> bool:
        """Whether a write runs."""
        return self._task is not None and not self._task.done()

    def begin(self, data: SnapshotData, then: Callable[[], None]) -> None:
        """Write `data` in the background, and call `then` when this is done. Not while `busy`, because a waiting state holds memory."""
        if self.busy:
            raise RuntimeError("a snapshot is being written")
        self._task = asyncio.create_task(self._write_in_background(data), name="snapshot")
        self._task.add_done_callback(lambda _: then())

    async def save(self, data: SnapshotData) -> bool:
        """Write `data` after the write in progress. Returns whether it is durable on the volume."""
        async with self._writing:
            return await self._write(data)

    async def copy(self) -> bool:
        """Copy the newest durable snapshot, unless it is copied. Returns whether it is."""
        async with self._writing:
            if self.newest is not None and not self.is_copied:
                self.error = ""
                await self._copy(self.newest, tensors=True)
                self._changed()
        return self.is_copied

    async def idle(self) -> None:
        """Wait for the write in progress."""
        if self._task is not None:
            await self._task

    async def _write_in_background(self, data: SnapshotData) -> None:
        async with self._writing:
            await self._write(data)

    async def _write(self, data: SnapshotData) -> bool:
        try:
            path = await asyncio.to_thread(self._store.save, data.t, data.tensors, data.meta)
        except SnapshotError as error:
            _log.error("%s", error)
            self.error = str(error)
            self._changed()
            return False
        before, self.newest = self.newest, DurableSnapshot(data.t, path)
        self.error = ""
        _log.info("snapshot of outer step %d is durable in %s", data.t, path)
        await self._copy(self.newest, tensors=before is None or before.path != path or not before.copied)
        self._changed()
        return True

    async def _copy(self, snapshot: DurableSnapshot, *, tensors: bool) -> None:
        if self._remote is None:
            return
        try:
            await asyncio.to_thread(self._remote.upload, snapshot.path, tensors=tensors)
        except SnapshotError as error:
            _log.error("%s", error)
            self.error = str(error)
        else:
            self.newest = replace(snapshot, copied=True)
