"""Writes the syncer's snapshots in the background: one at a time, in a thread. A failure is reported and never stops training; the next
snapshot tries again.

See docs/decisions/0002-snapshots-and-rollback.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diloco.syncer.remote import RemoteSnapshots
from diloco.syncer.snapshots import SnapshotError, SnapshotStore
from diloco.syncer.tensor_file import Array

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotData:
    """A consistent state: arrays that are never written to again, and the rest as JSON."""

    t: int
    """Outer step."""
    tensors: Mapping[str, Array] = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class DurableSnapshot:
    """A snapshot on the volume."""

    t: int
    """Outer step."""
    path: Path
    copied: bool = False
    """It is in the remote place too."""


class SnapshotWriter:
    """Writes snapshots to the volume, and copies them to the remote place if there is one."""

    def __init__(
        self, store: SnapshotStore, remote: RemoteSnapshots | None, changed: Callable[[], None], found: DurableSnapshot | None
    ) -> None:
        """`changed` is called after each attempt to write. `found`: the snapshot found at the start."""
        self._store = store
        self._remote = remote
        self._changed = changed
        self._writing = asyncio.Lock()
        self._waiting: SnapshotData | None = None
        self._task: asyncio.Task[None] | None = None
        self.newest = found
        """The newest durable snapshot."""
        self.error = ""
        """Why the last snapshot could not be written or copied; empty: it was."""

    @property
    def snapshot_t(self) -> int:
        """Outer step of the newest durable snapshot; -1: none."""
        return self.newest.t if self.newest is not None else -1

    @property
    def is_copied(self) -> bool:
        """Whether the newest durable snapshot is everywhere that it should be."""
        return self._remote is None or self.newest is None or self.newest.copied

    def offer(self, data: SnapshotData) -> None:
        """Write `data` in the background. While a write runs, at most one waits: a newer one replaces it."""
        self._waiting = data
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_waiting(), name="snapshot")

    async def save(self, data: SnapshotData) -> bool:
        """Write `data` after the write in progress. True: it is durable on the volume."""
        self._waiting = None
        async with self._writing:
            return await self._write(data)

    async def copy(self) -> bool:
        """Copy the newest durable snapshot again. True: it is copied."""
        async with self._writing:
            if self.newest is not None and not self.is_copied:
                self.error = ""
                await self._copy(self.newest, tensors=True)
                self._changed()
        return self.is_copied

    async def idle(self) -> None:
        """Wait until nothing is being written and nothing waits."""
        if self._task is not None:
            await self._task

    async def _write_waiting(self) -> None:
        while self._waiting is not None:
            async with self._writing:
                data, self._waiting = self._waiting, None
                if data is not None:
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
