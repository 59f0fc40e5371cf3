"""Slices of one kind that are free, and units that wait for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Spares:
    """First come, first served."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        """Call `then` with a slice: at once, or when one comes back."""
        if self.free:
            self.free -= 1
            then()
        else:
            self._waiting.append(then)

    def give(self) -> None:
        """A slice has come back."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self.free += 1
