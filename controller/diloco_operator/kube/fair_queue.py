"""Keys that wait, in lanes that take turns.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable


class FairQueue[K]:
    """Hands out keys, one of each lane in turn; within a lane the oldest comes first.

    A key waits for at most one key of each other lane for each key of its own lane that is before it. `lane` is a key's lane. The caller
    sees to it that no key waits twice. Memory: that of the keys that wait; an empty lane is forgotten.
    """

    def __init__(self, lane: Callable[[K], Hashable]) -> None:
        self._lane = lane
        self._lanes: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """Those in which keys wait; the first one is next."""
        self._size = 0

    def append(self, key: K) -> None:
        """Append `key` behind those of its lane."""
        self._lanes.setdefault(self._lane(key), deque()).append(key)
        self._size += 1

    def pop(self, may: Callable[[Hashable], bool] = lambda _: True) -> K | None:
        """Return the next key, of a lane that `may` give one now. Its lane comes last from now on. None: no such key waits."""
        # In a list: None may be a lane, too.
        found = next(([lane] for lane in self._lanes if may(lane)), None)
        if found is None:
            return None
        (lane,) = found
        waiting = self._lanes.pop(lane)
        key = waiting.popleft()
        if waiting:
            self._lanes[lane] = waiting
        self._size -= 1
        return key

    def waiting(self, lane: Hashable) -> int:
        """Return how many keys wait in this lane."""
        return len(self._lanes.get(lane, ()))

    def __len__(self) -> int:
        return self._size
