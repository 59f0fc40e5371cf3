"""Large messages take turns on the event loop, so that however many learners receive a model at once, all else runs between two messages.

To hand one chunk to gRPC costs the event loop about a millisecond. Without turns, 64 streams that all may write hold up leases, pulls and
reports by 64 of them.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SendTurns:
    """One waiting task after the other goes on, first come, first served, one in each pass of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def next(self) -> None:
        """Wait for a turn. Its holder does not give it back: the next pass of the event loop belongs to the next one."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        self._taken = True
        loop.call_soon(self._pass_on, loop)

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may be cancelled meanwhile
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._taken = False
