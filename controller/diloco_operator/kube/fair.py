"""Slots for requests, shared fairly: whoever has a thousand requests waiting does not stand before everyone who has one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

COMPANY_SECONDS = 1.0
CROWD_SECONDS = 5.0
REST_SECONDS = 1.0
"""At most: a request that took longer did not take so long because of others."""


class FairSlots[K: Hashable]:
    """At most `slots` holders at once, and at most `most` of one key; free slots go to the keys in turn, one each.

    So a key's first request waits for one request of somebody else at most, however many are queued; and with `most < slots` usually for
    none. But what the requests go to is shared as well: one that need not wait for its slot still waits for those that were sent before
    it. So a key that wanted more than `few` slots at once within the last `CROWD_SECONDS`, a crowd, has `most_in_company` while one that
    is none uses slots, or did within the last `COMPANY_SECONDS`, and lets each rest after a request for as long as that took. Crowds among
    themselves share the slots. For one event loop.
    """

    def __init__(self, slots: int, *, most: int | None = None, few: int = 1, most_in_company: int | None = None) -> None:
        self._most = most if most is not None else slots
        self._few = few
        self._most_in_company = most_in_company if most_in_company is not None else self._most
        if min(slots, self._most, self._most_in_company) < 1:
            raise ValueError(
                f"there must be a slot to hand out, not {slots} in all and {self._most} for one key, {self._most_in_company} in company"
            )
        self._free = slots
        self._held: dict[K, int] = {}
        self._used: dict[K, float] = {}
        """When each key that is no crowd last took or gave back a slot, the earliest first; what is long past is dropped."""
        self._crowded: dict[K, float] = {}
        """When each crowd last was one; likewise."""
        self._waiting: dict[K, deque[asyncio.Future[None]]] = {}
        """In the order of their turns: whoever was served goes to the end."""

    @asynccontextmanager
    async def of(self, key: K) -> AsyncIterator[None]:
        """Around the use of one slot, once it is this key's turn."""
        await self._take(key)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            if key in self._waiting and self._is_in_company(key):
                loop.call_later(min(loop.time() - begun, REST_SECONDS), self._give_back, key)
            else:
                self._give_back(key)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
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
                self._give_back(key)  # it was granted just now, and will not be used
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
        """Each key in its turn, until there is no slot or no key that may have one."""
        passed_over: list[K] = []
        while self._free and len(passed_over) < len(self._waiting):
            key = next(key for key in self._waiting if key not in passed_over)
            if not self._may(key):
                passed_over.append(key)
                continue
            queue = self._waiting.pop(key)
            turn = queue.popleft()
            if queue:
                self._waiting[key] = queue
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
        return self._held.get(key, 0) < (self._most_in_company if self._is_in_company(key) else self._most)

    def _is_in_company(self, key: K) -> bool:
        now = asyncio.get_running_loop().time()
        _forget(self._used, now - COMPANY_SECONDS)
        _forget(self._crowded, now - CROWD_SECONDS)
        if self._most_in_company == self._most:
            return False
        return key in self._crowded and (bool(self._used) or any(other not in self._crowded for other in self._held))

    def _note_use(self, key: K) -> None:
        now = asyncio.get_running_loop().time()
        if self._held.get(key, 0) + len(self._waiting.get(key, ())) > self._few:
            self._used.pop(key, None)
            self._crowded.pop(key, None)
            self._crowded[key] = now
        elif key not in self._crowded:
            self._used.pop(key, None)
            self._used[key] = now

    def _grant(self, key: K) -> None:
        self._free -= 1
        self._held[key] = self._held.get(key, 0) + 1
        self._note_use(key)


def _forget[K](moments: dict[K, float], before: float) -> None:
    """Drop what is earlier; the earliest come first."""
    while moments and (first := next(iter(moments.items())))[1] < before:
        del moments[first[0]]
