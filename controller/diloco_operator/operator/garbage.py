"""Keeps garbage collections short, however many objects the process has.

A full collection of Python looks at all objects, and everything else stands still meanwhile: for half a second when the caches hold 10,000
jobs. It frees hardly anything, since nearly all objects go with their last reference. So a full collection here looks at new objects only:
objects that survive it are left out of all later ones. Everything is collected when memory has grown and nothing waits.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

MIDDLE_COLLECTIONS: Final = 2
"""Collections of the middle generation for one full collection; Python's default is 10. Some 66,000 new objects then make one, which takes
0.03 s. The younger generations keep their thresholds."""
_OLDEST: Final = 2
"""A collection of this generation is a full one."""
GROWTH: Final = 1.5
LEAST_GROWTH: Final = 64 << 20
"""Everything is collected once the memory of the process has grown since the last time by this factor, and by this many bytes."""
_LOOK: Final = 10.0
"""Seconds between two looks at the memory."""


def resident_bytes() -> int:
    """Return the memory of this process, or 0 where the system does not tell it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Garbage:
    """The garbage collector of this process. `resident`: the memory of the process in bytes."""

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        self._resident = resident
        self._settled = resident()
        """The least memory in bytes since everything was collected last."""

    @contextlib.contextmanager
    def short_collections(self) -> Iterator[None]:
        """Inside the context a full collection looks at new objects only."""
        before = gc.get_threshold()
        gc.set_threshold(*before[:2], MIDDLE_COLLECTIONS)
        gc.callbacks.append(_leave_out_survivors)
        try:
            yield
        finally:
            gc.callbacks.remove(_leave_out_survivors)
            gc.set_threshold(*before)

    def leave_out(self) -> None:
        """Leave all present objects out of later full collections."""
        gc.collect(1)  # the garbage of a list is in the younger generations, and must not be kept
        gc.freeze()
        self._settled = self._resident()

    def look(self) -> bool:
        """Look at the memory. Return whether everything should be collected: the memory has grown, and cycles among the objects that are
        left out may be the reason."""
        now = self._resident()
        self._settled = min(self._settled, now)
        return now >= max(GROWTH * self._settled, self._settled + LEAST_GROWTH)

    def collect_all(self) -> int:
        """Collect everything; the process stands still meanwhile. Return how many unreachable objects there were."""
        gc.unfreeze()
        unreachable = gc.collect()
        gc.freeze()
        self._settled = self._resident()
        return unreachable

    async def collect_when_grown(self, idle: Callable[[], bool]) -> None:
        """Collect everything when memory has grown and nothing waits, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            if self.look() and idle():
                begun = time.perf_counter()
                unreachable = self.collect_all()
                log.info("collected %d objects of all in %.2f s, since memory had grown", unreachable, time.perf_counter() - begun)


def _leave_out_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
