"""Applies the events of a watch without holding the event loop: in short turns, in which namespaces take turns.

A watch has one stream for all namespaces. So what one of them changes would come before each event of another that came later, and what
came at once would be one turn of the loop.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from diloco_operator.kube.client import WatchEvent
from diloco_operator.kube.fair_queue import FairQueue

TURN_EVENTS: Final = 20
TURN_SECONDS: Final = 0.002
"""A turn of the loop applies at most so many events of one watch, and for about so many seconds. Then others have as long."""
LONGEST_TURN_SECONDS: Final = 0.01
"""Where others need the loop for longer between two turns, a turn applies for as much longer, up to this, and as many more events. Else a
busy loop would apply less than comes, and what is read no more comes later for all namespaces."""
TURN_READ_EVENTS: Final = 5
TURN_READ_SECONDS: Final = 2
"""A turn reads so many times the events that it may apply, and for so many times as long with what it applies. So it reads on, to what came
for others, when it applies no more."""
MOST_EVENTS: Final = 2000
MOST_BYTES: Final = 4 << 20
"""So many events wait at most, and so many bytes of them, as they came. More are read later: as objects they take several times that."""


class EventTurns:
    """Calls `apply` with each event that is added: at once as long as the turn of the loop has time for it, else later. The events of one
    namespace keep their order. For one event loop."""

    def __init__(self, apply: Callable[[WatchEvent], None]) -> None:
        self._apply = apply
        self._waiting: FairQueue[WatchEvent] = FairQueue(_namespace)
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        """Applies what waits."""
        self._room = asyncio.Event()
        self._room.set()
        self._began: float | None = None
        """When the current turn of the loop had its first event; None: it had none yet."""
        self._in_turn = 0
        self._turn = TURN_SECONDS
        """For how long a turn applies events now."""

    def add(self, event: WatchEvent) -> None:
        """Apply the event now, or in its turn. Raises what `apply` raised for it, or for an earlier one that waited."""
        if self._task is not None and self._task.done():
            self._task.result()
        if self._task is None and self._use_turn():
            self._apply(event)
            return
        self._waiting.append(event)
        self._bytes += event.size
        if len(self._waiting) >= MOST_EVENTS or self._bytes >= MOST_BYTES:
            self._room.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="watch events")

    async def pause(self) -> None:
        """Let others go on once this turn of the loop is used up, and wait while too many events wait; to be called for each event."""
        if not self._room.is_set():
            await self._room.wait()
        elif not self._use_turn(TURN_READ_EVENTS, TURN_READ_SECONDS):
            ended = asyncio.get_running_loop().time()
            await asyncio.sleep(0)
            self._fit_turn(asyncio.get_running_loop().time() - ended)
        else:
            self._in_turn += 1

    def clear(self) -> None:
        """Forget what waits: all is known from elsewhere."""
        while self._waiting.pop() is not None:
            pass
        self._bytes = 0
        self._room.set()

    async def close(self) -> None:
        """Apply nothing more."""
        self.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _use_turn(self, events: int = 1, seconds: int = 1) -> bool:
        """Begin a turn unless one has begun. Returns whether it still has room: it has had fewer than so many times the events that it may
        apply, and lasts for less than so many times as long since the first of them."""
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began, self._in_turn = loop.time(), 0
            loop.call_soon(self._end_turn)
        return self._in_turn < events * self._turn_events() and loop.time() - self._began < seconds * self._turn

    def _turn_events(self) -> int:
        return round(TURN_EVENTS * self._turn / TURN_SECONDS)

    def _fit_turn(self, others: float) -> None:
        """Fit the turn to the seconds for which others needed the loop since the last turn, beyond the pause that they were given."""
        self._turn = min(TURN_SECONDS + others, LONGEST_TURN_SECONDS)

    def _end_turn(self) -> None:
        self._began = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        pause = loop.time() - self._began if self._began is not None else 0.0
        try:
            while len(self._waiting):
                asleep = loop.time()
                await asyncio.sleep(pause)
                begun = loop.time()
                self._fit_turn(max(begun - asleep - pause, 0.0))
                for _ in range(self._turn_events()):
                    if loop.time() - begun >= self._turn or (event := self._waiting.pop()) is None:
                        break
                    self._bytes -= event.size
                    self._apply(event)
                if len(self._waiting) < MOST_EVENTS and self._bytes < MOST_BYTES:
                    self._room.set()
                pause = loop.time() - begun
        finally:
            self._room.set()
        self._task = None


def _namespace(event: WatchEvent) -> str:
    """Return the namespace of the event's object, which may be malformed."""
    meta = event.object.get("metadata") if isinstance(event.object, dict) else None
    found = meta.get("namespace") if isinstance(meta, dict) else None
    return found if isinstance(found, str) else ""
