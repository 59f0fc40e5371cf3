"""Host memory for staged values, used again and again: fresh memory costs more than the copy into it."""

from __future__ import annotations

import threading
from collections.abc import Callable

MOST_FREE = 2
"""Free buffers to keep. While one fragment is coded and sent, the next one may be staged."""


class HostBuffers[Buffer]:
    """Buffers that are free. Those in use are not held here: one that is never given back is freed with its last user."""

    def __init__(self, allocate: Callable[[int], Buffer]) -> None:
        """`allocate`: a new buffer of so many bytes."""
        self._allocate = allocate
        self._free: list[tuple[int, Buffer]] = []
        self._largest = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> tuple[int, Buffer]:
        """(its bytes, a buffer of at least `size` bytes). All are made as large as the largest so far, so that each fits any fragment."""
        with self._lock:
            self._largest = max(self._largest, size)
            for index, (held, _) in enumerate(self._free):
                if held >= size:
                    return self._free.pop(index)
            wanted = self._largest
        return wanted, self._allocate(wanted)

    def give(self, size: int, buffer: Buffer) -> None:
        """`buffer` of `size` bytes is free again. Dropped if it is too small for the largest fragment, or if enough are free."""
        with self._lock:
            self._free = [one for one in self._free if one[0] >= self._largest]
            if size >= self._largest and len(self._free) < MOST_FREE:
                self._free.append((size, buffer))
