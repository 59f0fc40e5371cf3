"""A link on virtual time: streams that share its bandwidth evenly, each in its own order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from diloco.simulation.timeline import Timeline

_ROUNDING: Final = 1e-9
"""Of the bits of a transfer."""


@dataclass(slots=True)
class Transfer:
    """What is sent or waits. `key`: what it is about, within its stream."""

    key: Hashable
    bits: float
    left: float
    arrived: Callable[[], None]


class Link:
    """One direction of the syncer's link and, behind it, of the own links of its units: one stream for each unit.

    A stream has its even share of `total` bits a second, and at most `each`. What waits in a stream is sent in order.
    """

    def __init__(self, timeline: Timeline, total: float = math.inf, each: float = math.inf) -> None:
        self._timeline = timeline
        self._total, self._each = total, each
        self._streams: dict[str, deque[Transfer]] = {}
        """Those with something to send; the first of each is under way."""
        self._moved_at = 0.0
        self._plans = 0
        """Number of the newest plan for the next arrival: an older one is void."""

    def send(self, stream: str, key: Hashable, bits: float, arrived: Callable[[], None], *, newest_first: bool = False) -> None:
        """Send so many bits; `arrived` is called when all are there. `newest_first`: before all of the stream that only waits."""
        self._move()
        waiting = self._streams.setdefault(stream, deque())
        transfer = Transfer(key, bits, bits, arrived)
        if newest_first and waiting:
            waiting.insert(1, transfer)
        else:
            waiting.append(transfer)
        self._plan()

    def drop(self, stream: str, key: Hashable) -> None:
        """Do not send what the stream holds under this key, not even the rest of what is under way. Idempotent."""
        if any(transfer.key == key for transfer in self._streams.get(stream, ())):
            self._move()
            self._keep(stream, lambda transfer: transfer.key != key)
            self._plan()

    def close(self, stream: str) -> None:
        """Drop all of the stream: its unit is gone. Idempotent."""
        if stream in self._streams:
            self._move()
            del self._streams[stream]
            self._plan()

    def replace_waiting(self, stream: str, key: Hashable, arrived: Callable[[], None], bits: float) -> bool:
        """Send this in the place of what waits in the stream under the same key. False: nothing waits under it."""
        waiting = self._streams.get(stream)
        for index in range(1, len(waiting) if waiting else 0):
            if waiting is not None and waiting[index].key == key:
                waiting[index] = Transfer(key, bits, bits, arrived)
                return True
        return False

    def _keep(self, stream: str, wanted: Callable[[Transfer], bool]) -> None:
        kept = deque(transfer for transfer in self._streams[stream] if wanted(transfer))
        if kept:
            self._streams[stream] = kept
        else:
            del self._streams[stream]

    @property
    def _rate(self) -> float:
        """Bits a second of each stream that sends."""
        return min(self._each, self._total / len(self._streams))

    def _move(self) -> None:
        """Let the bits go over the link that have gone by now."""
        now = self._timeline.now
        if self._streams and now > self._moved_at:
            moved = self._rate * (now - self._moved_at)
            for waiting in self._streams.values():
                waiting[0].left -= moved
        self._moved_at = now

    def _plan(self) -> None:
        self._plans += 1
        if self._streams:
            number = self._plans
            least = min(waiting[0].left for waiting in self._streams.values())
            when = self._timeline.now + max(0.0, least) / self._rate
            self._timeline.at(when, lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        if number != self._plans:
            return
        self._move()
        least = min(waiting[0].left for waiting in self._streams.values())  # this one has arrived, whatever rounding left of it
        arrived = [stream for stream, waiting in self._streams.items() if waiting[0].left <= max(least, _ROUNDING * waiting[0].bits)]
        done = [self._streams[stream].popleft() for stream in arrived]
        for stream in arrived:
            if not self._streams[stream]:
                del self._streams[stream]
        self._plan()
        for transfer in done:
            transfer.arrived()
