"""How many workers the keys of one lane may hold. Pure.

See docs/decisions/0203-fair-queue.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

ALPHA: Final = 4
"""A lane may hold so many times the workers that are free: alone ALPHA / (ALPHA + 1) of all, and of n lanes each ALPHA / (n ALPHA + 1) as
soon as those that hold more have given some back. So some are free for a lane that holds none. These are the dynamic thresholds of shared
switch buffers (Choudhury and Hahne, 1998)."""


class WorkerShares:
    """Counts who holds workers. A lane that holds none may always have a free one."""

    def __init__(self, workers: int) -> None:
        """`workers`: how many there are."""
        self._free = workers
        self._held: Counter[Hashable] = Counter()

    def may_have_one(self, lane: Hashable) -> bool:
        """Whether a key of this lane may have a worker now. One is free: it asks."""
        return self._held[lane] < ALPHA * self._free

    def took(self, lane: Hashable) -> None:
        """A worker has a key of this lane."""
        self._held[lane] += 1
        self._free -= 1

    def gave_back(self, lane: Hashable) -> None:
        """The worker is free again."""
        self._free += 1
        self._held[lane] -= 1
        if not self._held[lane]:
            del self._held[lane]
