"""Wakes all waiters when something changes."""

from __future__ import annotations

import asyncio


class Changes:
    """For one event loop. A waiter misses no change after it has read `mark`."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()

    @property
    def mark(self) -> int:
        """Number of changes so far, for `wait`."""
        return self._count

    def notify(self) -> None:
        self._count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, mark: int, seconds: float) -> None:
        """Wait until something has changed since `mark`, at most `seconds`."""
        if self._count != mark:
            return
        try:
            await asyncio.wait_for(self._next.wait(), seconds)
        except TimeoutError:
            return
