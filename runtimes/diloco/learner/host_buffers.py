"""Host memory for staged values. It is used again, because fresh memory costs more than the copy into it.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST_FREE = 2
"""Free buffers that are always kept. While one fragment is coded and sent, the next one may be staged."""
LOOK_BACK = 64
"""Further free buffers are given up if this many takes did without them."""


class HostBuffers[Buffer]:
    """Free buffers, no more than were in use at one time lately. A buffer in use is not held here, so one that is never given back is freed
    with its last user."""

    def __init__(self, allocate: Callable[[int], Buffer]) -> None:
        """`allocate` returns a new buffer of the given number of bytes."""
        self._allocate = allocate
        self._free: list[tuple[int, Buffer]] = []
        self._largest = 0
        self._takes = 0
        self._unused = 0
        """The fewest buffers that were free after a take, within the present LOOK_BACK takes."""
        self._lock = threading.Lock()

    def take(self, size: int) -> tuple[int, Buffer]:
        """Return (bytes of the buffer, a buffer of at least `size` bytes). Each is as large as the largest size so far, so that it fits
        every fragment."""
        with self._lock:
            self._largest = max(self._largest, size)
            self._free = [entry for entry in self._free if entry[0] >= self._largest]
            taken = self._free.pop() if self._free else None
            self._give_up_unused()
            wanted = self._largest
        return taken or (wanted, self._allocate(wanted))

    def give(self, size: int, buffer: Buffer) -> None:
        """Take back `buffer` of `size` bytes. It is dropped if it is too small for the largest fragment."""
        with self._lock:
            if size >= self._largest:
                self._free.append((size, buffer))

    def _give_up_unused(self) -> None:
        self._takes += 1
        self._unused = min(self._unused, len(self._free))
        if self._takes % LOOK_BACK == 0:
            del self._free[: max(0, min(self._unused, len(self._free) - LEAST_FREE))]
            self._unused = len(self._free)
