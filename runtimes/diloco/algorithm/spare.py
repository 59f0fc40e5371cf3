"""Memory of large arrays that is used again. The kernel clears every page that it gives to a process, which takes as long as decoding into
it; so the arrays of one merge are those of the next.

No code gives memory back: it is spare again when the last array or memoryview that lies in it is gone, held by a thread, a queue
or a snapshot. So memory is never used again too early.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_MUCH_SMALLER: Final = 2
"""What is smaller than the smallest size with room for it by this factor gets memory of its own, which is not kept."""


class SpareMemory:
    """Memory to write to, in pieces of few sizes. From any thread."""

    def __init__(self, sizes: Iterable[int]) -> None:
        """Begin with `sizes`: bytes of what will be wanted. Pieces of some of them are kept, such that each size has one that is not too
        large for it; so all that are kept together are at most twice as large as the largest. None are kept before `keep`."""
        kept: list[int] = []
        for size in sorted(set(sizes), reverse=True):
            if not kept or kept[-1] >= _MUCH_SMALLER * size:
                kept.append(size)
        self._spare: dict[int, list[Bytes]] = {size: [] for size in reversed(kept)}
        self._limits: dict[int, int] = {}

    def room(self, size: int) -> int:
        """Return the bytes of the smallest piece with room for `size`; 0: there is none that is not much larger."""
        room = next((one for one in self._spare if one >= size), 0)
        return room if room < _MUCH_SMALLER * size else 0

    def keep(self, size: int, limit: int) -> None:
        """Keep as many spare pieces of this size, which `room` gives, as `limit`, from now on."""
        self._limits[size] = limit
        del self._spare[size][limit:]

    def floats(self, n: int) -> Array:
        """Return `n` float32 values of any content."""
        return self.take(4 * n).view(np.float32)

    def take(self, size: int) -> Bytes:
        """Return `size` bytes of any content."""
        room = self.room(size)
        try:
            whole = self._spare[room].pop()
        except (KeyError, IndexError):
            whole = np.empty(room or size, np.uint8)
        return np.asarray(_Lent(whole, self._back))[:size]

    def _back(self, whole: Bytes) -> None:
        """Take a piece back in whatever thread let the last reference go, at any moment: so there is no lock, and threads at once may
        exceed the limit by one piece each."""
        spare = self._spare.get(whole.nbytes)
        if spare is not None and len(spare) < self._limits.get(whole.nbytes, 0):
            spare.append(whole)


class _Lent:
    """A piece of memory while it is in use: every array that lies in it refers to this object."""

    __slots__ = ("__array_interface__", "_back", "_whole")

    def __init__(self, whole: Bytes, back: Callable[[Bytes], None]) -> None:
        self.__array_interface__: dict[str, Any] = whole.__array_interface__
        self._whole = whole
        self._back = back

    def __del__(self) -> None:
        self._back(self._whole)
