"""Host memory for staged values, used again and again: fresh memory costs more than the copy into it.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST_FREE = 2
"""Free buffers to keep in any case. While one fragment is coded and sent, the next one may be staged."""
LOOK_BACK = 64
"""Free buffers beyond these are given up if so many takes did without them."""


class HostBuffers[Buffer]:
    """Buffers that are free: no more than were in use at one time lately. Those in use are not held here: one that is never given back is
    freed with its last user."""

    def __init__(self, allocate: Callable[[int], Buffer]) -> None:
        """Begin with `allocate`: a new buffer of so many bytes."""
        self._allocate = allocate
        self._free: list[tuple[int, Buffer]] = []
        self._largest = 0
        self._takes = 0
        self._unused = 0
        """The fewest buffers that were free after a take of the last LOOK_BACK takes."""
        self._lock = threading.Lock()

    def take(self, size: int) -> tuple[int, Buffer]:
        """Return (its bytes, a buffer of at least `size` bytes). All are made as large as the largest so far, so that each fits any
        fragment."""
        with self._lock:
            self._largest = max(self._largest, size)
            self._free = [one for one in self._free if one[0] >= self._largest]
            taken = self._free.pop() if self._free else None
            self._give_up_unused()
            wanted = self._largest
        return taken or (wanted, self._allocate(wanted))

    def give(self, size: int, buffer: Buffer) -> None:
        """Take `buffer` of `size` bytes, which is free again. Dropped if it is too small for the largest fragment."""
        with self._lock:
            if size >= self._largest:
                self._free.append((size, buffer))

    def _give_up_unused(self) -> None:
        self._takes += 1
        self._unused = min(self._unused, len(self._free))
        if self._takes % LOOK_BACK == 0:
            del self._free[: max(0, min(self._unused, len(self._free) - LEAST_FREE))]
            self._unused = len(self._free)
