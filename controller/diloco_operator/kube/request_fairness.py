"""Slots for requests, shared fairly between keys: a key with a thousand waiting requests does not delay a key with one.

See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from diloco_operator.kube.flows import Flows

CONTENTION_SECONDS = 1.0
"""How long a light flow counts as present after it used a slot."""
LONGEST_COOL_DOWN = 1.0
"""Upper bound of a cool-down: a request that took longer was not slow because of other requests."""


class FairSlots[K: Hashable]:
    """At most `slots` holders at once, and at most `most` of one key. Free slots go to the keys in turn, one each.

    So the first request of a key waits for at most one request of each other key, however many are queued. With `most < slots` it usually
    waits for none.

    The server behind the slots is shared too: a request that gets a slot at once still waits there for the requests sent before it. So
    keys are flows of two kinds, see `Flows`: heavy ones want more than `light` slots at once. While a light flow uses slots, or did within
    the last `CONTENTION_SECONDS`, there is contention: a heavy flow gets only `most_in_contention` slots, and each of them cools down after
    a request for as long as the request took. Without a light flow the heavy flows share all slots. For one event loop.
    """

    def __init__(self, slots: int, *, most: int | None = None, light: int = 1, most_in_contention: int | None = None) -> None:
        self._most = most if most is not None else slots
        self._most_in_contention = most_in_contention if most_in_contention is not None else self._most
        if min(slots, self._most, self._most_in_contention) < 1:
            raise ValueError(
                f"every limit must be 1 or more, not {slots} in all, {self._most} for one key and {self._most_in_contention} in contention"
            )
        self._free = slots
        self._held: dict[K, int] = {}
        self._flows: Flows[K] = Flows(light, CONTENTION_SECONDS)
        self._waiting: dict[K, deque[asyncio.Future[None]]] = {}
        """In the order of their turns: a key that was served goes to the end."""

    @asynccontextmanager
    async def slot(self, key: K) -> AsyncIterator[None]:
        """Hold one slot, once it is this key's turn."""
        await self._take(key)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            # Without requests that wait the slot needs no cool-down: the key would not use it again now.
            if key in self._waiting and self._is_contended(key):
                loop.call_later(min(loop.time() - begun, LONGEST_COOL_DOWN), self._give_back, key)
            else:
                self._give_back(key)

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    async def _take(self, key: K) -> None:
        if self._free and key not in self._waiting and self._may(key):
            self._grant(key)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        self._note_use(key)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(key)  # the slot was granted just now and will not be used
            elif key in self._waiting:
                self._leave(key, turn)
            raise

    def _give_back(self, key: K) -> None:
        self._note_use(key)
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free slots to the keys in turn, until no slot is left or every waiting key is at its limit."""
        turns = deque(self._waiting)
        while self._free and turns:
            key = turns.popleft()
            if not self._may(key):
                continue
            queue = self._waiting.pop(key)
            turn = queue.popleft()
            if queue:
                self._waiting[key] = queue
                turns.append(key)
            if not turn.done():
                self._grant(key)
                turn.set_result(None)

    def _leave(self, key: K, turn: asyncio.Future[None]) -> None:
        queue = self._waiting[key]
        if turn in queue:
            queue.remove(turn)
        if not queue:
            del self._waiting[key]

    def _may(self, key: K) -> bool:
        return self._held.get(key, 0) < (self._most_in_contention if self._is_contended(key) else self._most)

    def _is_contended(self, key: K) -> bool:
        if self._most_in_contention == self._most:
            return False
        return self._flows.is_contended(key, self._held, asyncio.get_running_loop().time())

    def _note_use(self, key: K) -> None:
        wanted = self._held.get(key, 0) + len(self._waiting.get(key, ()))
        self._flows.note(key, wanted, asyncio.get_running_loop().time())

    def _grant(self, key: K) -> None:
        self._free -= 1
        self._held[key] = self._held.get(key, 0) + 1
        self._note_use(key)
