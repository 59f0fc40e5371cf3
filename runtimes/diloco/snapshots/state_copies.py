"""Copies what units store to the remote place, in the background. A failure is told and never stops training; the next state tries again.

See docs/decisions/0266-stored-states.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from diloco.snapshots.remote_states import RemoteStates
from diloco.snapshots.store import SnapshotError
from diloco.snapshots.unit_states import UnitStates

_log = logging.getLogger(__name__)


class StateCopies:
    """Used in one event loop; a thread copies."""

    def __init__(self, remote: RemoteStates | None, files: UnitStates, changed: Callable[[], None]) -> None:
        """`remote`: None: there are no copies. `changed` is called when `error` has changed."""
        self._remote = remote
        self._files = files
        self._changed = changed
        self._wanted = False
        self._task: asyncio.Task[None] | None = None
        self.error = ""
        """Why the newest states could not be copied; empty: they were."""

    def begin(self) -> None:
        """Bring the remote place to what the volume holds, now or after what is under way. Called when states were stored or dropped."""
        if self._remote is None:
            return
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._copy(self._remote), name="state-copies")

    async def idle(self) -> None:
        """Wait until nothing is being copied."""
        if self._task is not None:
            await self._task

    async def _copy(self, remote: RemoteStates) -> None:
        while self._wanted:
            self._wanted = False
            dropped = self._files.dropped
            error = ""
            try:
                await asyncio.to_thread(remote.update, self._files.newest, dropped)
            except SnapshotError as refused:
                _log.error("%s", refused)
                error = str(refused)
            else:
                self._files.forget_dropped(dropped)
            if error != self.error:
                self.error = error
                self._changed()
