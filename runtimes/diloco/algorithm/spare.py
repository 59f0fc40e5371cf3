"""Memory of large arrays that is used again. The kernel clears every page that it gives to a process, which takes as long as decoding into
it; so the arrays of one merge are those of the next.

See docs/decisions/0147-compiled-loops.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_MUCH_SMALLER: Final = 2
"""Arrays smaller than the largest by this factor get memory of their own size, which is not kept."""


class SpareArrays:
    """float32 vectors to write to. From any thread."""

    def __init__(self, largest: int) -> None:
        """`largest`: values of the largest array; all that are kept have room for so many. None are kept before `keep`."""
        self._largest = largest
        self._limit = 0
        self._spare: list[Array] = []

    def keep(self, limit: int) -> None:
        """Keep as many arrays as `limit`, from now on."""
        self._limit = limit
        del self._spare[limit:]

    def take(self, n: int) -> Array:
        """`n` values of any content."""
        if n * _MUCH_SMALLER < self._largest:
            return np.empty(n, np.float32)
        try:
            whole = self._spare.pop()
        except IndexError:
            whole = np.empty(self._largest, np.float32)
        return whole[:n]

    def give(self, array: Array) -> None:
        """Nothing reads or writes `array`, which `take` gave, any more. Arrays from elsewhere are left alone."""
        whole = array.base
        if not isinstance(whole, np.ndarray) or whole.size != self._largest or len(self._spare) >= self._limit:
            return
        if not any(whole is other for other in self._spare):
            self._spare.append(whole)
