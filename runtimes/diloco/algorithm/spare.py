"""Reuse of the memory of large arrays: each merge uses the memory of former merges. The kernel clears every page that it gives to a
process, which takes as long as decoding into the page.

No caller gives memory back. It is spare again when nothing (a thread, a queue, a snapshot) refers to an array or memoryview in it any more.
So memory is never reused too early.

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
"""If the smallest fitting piece is this many times too large, memory is allocated instead, and not kept."""


class SpareMemory:
    """Memory to write to, in pieces of few sizes. Any thread may call it."""

    def __init__(self, sizes: Iterable[int]) -> None:
        """`sizes`: bytes of the arrays that will be needed.

        Only some of the sizes have pieces, so that every size has a piece that is not much too large for it. One piece of each together is
        at most twice as large as the largest. No pieces are kept before `keep` is called.
        """
        kept: list[int] = []
        for size in sorted(set(sizes), reverse=True):
            if not kept or kept[-1] >= _MUCH_SMALLER * size:
                kept.append(size)
        self._spare: dict[int, list[Bytes]] = {size: [] for size in reversed(kept)}
        self._limits: dict[int, int] = {}

    def piece_size(self, size: int) -> int:
        """Return the bytes of the smallest piece that `size` bytes fit into; 0 if all are too small or much too large."""
        smallest = next((piece for piece in self._spare if piece >= size), 0)
        return smallest if smallest < _MUCH_SMALLER * size else 0

    def keep(self, size: int, limit: int) -> None:
        """From now on keep at most `limit` spare pieces of this size, which must be a result of `piece_size`."""
        self._limits[size] = limit
        del self._spare[size][limit:]

    def floats(self, n: int) -> Array:
        """Return `n` float32 values of any content."""
        return self.take(4 * n).view(np.float32)

    def take(self, size: int) -> Bytes:
        """Return `size` bytes of any content."""
        piece_size = self.piece_size(size)
        try:
            whole = self._spare[piece_size].pop()
        except (KeyError, IndexError):
            whole = np.empty(piece_size or size, np.uint8)
        return np.asarray(_Lent(whole, self._back))[:size]

    def _back(self, whole: Bytes) -> None:
        """Take a piece back. Runs in whatever thread dropped the last reference, at any moment, so it must not take a lock. Threads that
        run it at the same time may exceed the limit by one piece each."""
        spare = self._spare.get(whole.nbytes)
        if spare is not None and len(spare) < self._limits.get(whole.nbytes, 0):
            spare.append(whole)


class _Lent:
    """A piece of memory in use. Every array in it refers to this object, so `__del__` runs when the last one is gone."""

    __slots__ = ("__array_interface__", "_back", "_whole")

    def __init__(self, whole: Bytes, back: Callable[[Bytes], None]) -> None:
        self.__array_interface__: dict[str, Any] = whole.__array_interface__
        self._whole = whole
        self._back = back

    def __del__(self) -> None:
        self._back(self._whole)
