"""Lets tasks wait while others go first, for a short while at most.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
from typing import Final

GIVE_WAY_SECONDS: Final = 0.02
"""Even if others are always at work, some 40 steps a second are left to the tasks that give way."""


class GivingWay:
    """Lets tasks wait while others are at work. For one event loop."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Return when `end` is called, and after `GIVE_WAY_SECONDS` at the latest."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(GIVE_WAY_SECONDS, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def end(self) -> None:
        """Let all who wait go on: the others are done."""
        for waiter in self._waiters:
            _release(waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
