"""Keys that wait, in lanes that take turns.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable


class FairQueue[K]:
    """Hands out keys, one of each lane in turn; within a lane the oldest comes first.

    For itself, and for each key of its own lane before it, a key waits for at most one key of each other lane. `lane` returns a key's lane.
    The caller sees to it that no key waits twice. An empty lane takes no memory.
    """

    def __init__(self, lane: Callable[[K], Hashable]) -> None:
        self._lane = lane
        self._lanes: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """Lanes in which keys wait; the first one is next."""
        self._size = 0

    def append(self, key: K) -> None:
        self._lanes.setdefault(self._lane(key), deque()).append(key)
        self._size += 1

    def pop(self, may: Callable[[Hashable], bool] = lambda _: True) -> K | None:
        """Return the next key of a lane that `may` allows now, and put that lane last. None if no such key waits."""
        for lane, waiting in self._lanes.items():
            if not may(lane):
                continue
            key = waiting.popleft()
            self._size -= 1
            if waiting:
                self._lanes.move_to_end(lane)
            else:
                del self._lanes[lane]
            return key
        return None

    def waiting(self, lane: Hashable) -> int:
        return len(self._lanes.get(lane, ()))

    def __len__(self) -> int:
        return self._size
