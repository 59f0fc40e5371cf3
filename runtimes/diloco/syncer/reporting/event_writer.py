"""Writes scalars into TensorBoard's event files in a thread. A slow or full disk never stops training: scalars wait in a bounded queue, and
what has no room in it is dropped and counted.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from diloco.syncer.reporting.event_file import EventFile, installed

_log = logging.getLogger(__name__)

MOST_POINTS = 10_000
"""Outer steps of a whole job that are written, at most. In a longer job, every n-th is."""
_MOST_WAITING = 256


class _Point(NamedTuple):
    t: int
    wall_time: float
    scalars: Mapping[str, float]


class EventWriter:
    """The event files of one process. Lives in one event loop."""

    def __init__(
        self,
        root: Path,
        *,
        steps: int,
        t: int,
        changed: Callable[[], None],
        now: Callable[[], float] = time.time,  # noqa: TID251 - TensorBoard shows when a value was written
        retry: float = 30.0,
    ) -> None:
        """
        Args:
            steps: outer steps of the job
            t: the step from which this process goes on; 0 for a new job
            changed: called when `error` has changed
            now: seconds since the epoch
            retry: how long after an error the next file may begin, seconds
        """
        self._root = root
        self._installed = installed()
        if not self._installed:
            _log.warning(
                "no event files for TensorBoard are written: install the package tensorboard, or diloco with its extra `tensorboard`"
            )
        self._steps = steps
        self._spacing = -(-steps // MOST_POINTS)
        self._last = t
        self._begin = t + 1
        self._changed = changed
        self._now = now
        self._retry = retry
        self._retry_at = 0.0
        self._waiting: deque[_Point] = deque()
        self._task: asyncio.Task[None] | None = None
        self._file: EventFile | None = None
        self.dropped = 0
        """Outer steps that could not be written, in this process."""
        self.error = ""
        """Why the newest scalars could not be written. Empty if they were."""

    def due(self, t: int) -> bool:
        """Whether the scalars of outer step `t` are wanted. Without TensorBoard's package none are."""
        return self._installed and (t == self._steps or t // self._spacing > self._last // self._spacing)

    def offer(self, t: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of outer step `t` in the background. Without TensorBoard's package this does nothing."""
        if not self._installed:
            return
        self._last = t
        if len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:  # only for powers of two: a slow disk must not fill the log
                _log.warning("the disk is too slow for the TensorBoard event files: %d outer steps were left out", self.dropped)
            return
        self._waiting.append(_Point(t, self._now(), scalars))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_waiting(), name="event files")

    async def close(self) -> None:
        """Write what waits, and close the file."""
        if self._task is not None:
            await self._task
        if self._file is not None:
            file, self._file = self._file, None
            await asyncio.to_thread(file.close)

    async def _write_waiting(self) -> None:
        while self._waiting:
            points = list(self._waiting)
            self._waiting.clear()
            if self.error and points[-1].wall_time < self._retry_at:
                self.dropped += len(points)
                continue
            error = await asyncio.to_thread(self._write, points)
            if error:
                self.dropped += len(points)
                self._retry_at = self._now() + self._retry
                if not self.error:
                    _log.error("%s", error)
            if error != self.error:
                self.error = error
                self._changed()

    def _write(self, points: Sequence[_Point]) -> str:
        """Write the points, and block meanwhile. Returns why that failed, or ""."""
        try:
            if self._file is None:
                begin = min(self._begin, points[0].t)
                self._file = EventFile(self._root, begin, points[0].wall_time)
            for point in points:
                self._file.write(*point)
            self._file.flush()
        except OSError as error:
            if self._file is not None:
                self._file.close()
                self._file = None
            # The next file begins at the first of these steps, so that readers forget what of them has reached this file.
            self._begin = points[0].t
            return f"cannot write TensorBoard event files to {self._root}: {error.strerror or error}; training goes on without them"
        self._begin = points[-1].t + 1
        return ""
