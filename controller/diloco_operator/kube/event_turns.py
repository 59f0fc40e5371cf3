"""Applies the events of a watch without holding the event loop: in short turns, in which namespaces take turns.

A watch has one stream for all namespaces. Applied as they come, a thousand changes in one namespace would delay the next one in another,
and hold the loop for one long turn.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from diloco_operator.kube.client import WatchEvent
from diloco_operator.kube.fair_queue import FairQueue
from diloco_operator.kube.fields import metadata_of

TURN_EVENTS: Final = 20
TURN_SECONDS: Final = 0.002
"""The most events of one watch that a turn of the loop applies, and about the longest time for it. Then others have as long."""
LONGEST_TURN_SECONDS: Final = 0.01
"""If others need the loop for longer between two turns, the next turn is longer by that time, up to this, and applies more events in
proportion. Else a busy loop would apply less than comes, and stop reading, for all namespaces."""
TURN_READ_EVENTS: Final = 5
TURN_READ_SECONDS: Final = 2
"""A turn may read this many times the events that it may apply, and last this many times as long. So when it applies no more it reads on,
to the events of other namespaces."""
MOST_EVENTS: Final = 2000
MOST_BYTES: Final = 4 << 20
"""The most events that wait, and the most bytes of them on the wire. As objects they take several times that. More are read later."""


class EventTurns:
    """Calls `apply` with each event that is added: at once as long as the turn of the loop has time for it, else later. The events of one
    namespace keep their order. For one event loop."""

    def __init__(self, apply: Callable[[WatchEvent], None]) -> None:
        self._apply = apply
        self._waiting: FairQueue[WatchEvent] = FairQueue(_namespace)
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        """Applies the events that wait. None while none wait."""
        self._room = asyncio.Event()
        self._room.set()
        self._began: float | None = None
        """When the current turn of the loop had its first event. None if it had none yet."""
        self._in_turn = 0
        self._turn = TURN_SECONDS
        """Seconds for which a turn applies events now."""

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
        """Call this for each event: it lets others go on once this turn of the loop is used up, and waits while too many events wait."""
        if not self._room.is_set():
            await self._room.wait()
        elif not self._use_turn(TURN_READ_EVENTS, TURN_READ_SECONDS):
            ended = asyncio.get_running_loop().time()
            await asyncio.sleep(0)
            self._fit_turn(asyncio.get_running_loop().time() - ended)
        else:
            self._in_turn += 1

    def clear(self) -> None:
        """Forget the events that wait, because the caller has listed everything."""
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
        """Begin a turn unless one has begun. Return whether it has room for another event. `events` and `seconds` multiply the number and
        the time that it may apply."""
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
                    if loop.time() - begun >= self._turn:
                        break
                    event = self._waiting.pop()
                    if event is None:
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
    namespace = metadata_of(event.object).get("namespace")
    return namespace if isinstance(namespace, str) else ""
