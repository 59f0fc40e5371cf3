"""Virtual time: planned events, in order."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable


class Timeline:
    """Events in the order of their times. Events at the same time come in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Plan `do` for `when`, in seconds. A time in the past means now."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), do))

    @property
    def next_at(self) -> float:
        """When the next event is, in seconds; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def move_to(self, when: float) -> None:
        """Let time pass until `when`, in seconds. It must not be after the next event."""
        self.now = max(self.now, when)

    def step(self) -> None:
        when, _, do = heapq.heappop(self._events)
        self.now = when
        do()
