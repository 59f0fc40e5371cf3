"""Notifies any number of waiters of a change."""

from __future__ import annotations

import asyncio


class Changes:
    """For one event loop. A waiter gets every change after it took its `mark`."""

    def __init__(self) -> None:
        self._count = 0
        self._next = asyncio.Event()

    @property
    def mark(self) -> int:
        """The present change; `wait` takes it."""
        return self._count

    def notify(self) -> None:
        """Wake all waiters."""
        self._count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, mark: int, seconds: float) -> None:
        """Wait until something changes after `mark`, at most `seconds`."""
        if self._count != mark:
            return
        try:
            await asyncio.wait_for(self._next.wait(), seconds)
        except TimeoutError:
            return
