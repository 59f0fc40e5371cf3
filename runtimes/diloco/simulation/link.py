"""A link on virtual time: streams that share its bandwidth, each in its own order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from diloco.simulation.timeline import Timeline

_ROUNDING: Final = 1e-9
"""Rounding error of the bits of a transfer."""


@dataclass(slots=True)
class Transfer:
    """What is sent or waits. `key`: what it is about, within its stream."""

    key: Hashable
    bits: float
    left: float
    sent: Callable[[], None]


class Link:
    """One direction of the syncer's link and, behind it, of the own links of its units: one stream for each unit.

    Streams share `total` bits a second as evenly as their own rates allow: what one cannot use, the others have. What waits in a stream is
    sent in order.
    """

    def __init__(self, timeline: Timeline, total: float = math.inf) -> None:
        self.bits = 0.0
        """That have gone over it, of all streams."""
        self._timeline = timeline
        self._total = total
        self._most: dict[str, float] = {}
        """Bits a second that a stream has at most; of those that are not here, any number."""
        self._streams: dict[str, deque[Transfer]] = {}
        """Those with something to send; the first of each is under way."""
        self._rates: dict[str, float] = {}
        """Bits a second of each of these."""
        self._moved_at = 0.0
        self._plans = 0
        """Number of the newest plan for the next arrival: an older one is void."""

    def limit(self, stream: str, rate: float) -> None:
        """Give the stream at most so many bits a second from now on."""
        if self._most.get(stream, math.inf) != rate:
            self._move()
            self._most[stream] = rate
            if stream in self._streams:
                self._plan()

    def send(self, stream: str, key: Hashable, bits: float, sent: Callable[[], None], *, newest_first: bool = False) -> None:
        """Send so many bits; `sent` is called when all have gone, at once on a link that costs no time. `newest_first`: before all of the
        stream that only waits."""
        if math.isinf(self._total) and math.isinf(self._most.get(stream, math.inf)):
            self.bits += bits
            sent()
            return
        self._move()
        waiting = self._streams.setdefault(stream, deque())
        transfer = Transfer(key, bits, bits, sent)
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
            self._keep(stream, lambda _: False)
            self._plan()

    def replace_waiting(self, stream: str, key: Hashable, sent: Callable[[], None], bits: float) -> bool:
        """Send this in the place of what waits in the stream under the same key. False: nothing waits under it."""
        waiting = self._streams.get(stream)
        for index in range(1, len(waiting) if waiting else 0):
            if waiting is not None and waiting[index].key == key:
                waiting[index] = Transfer(key, bits, bits, sent)
                return True
        return False

    def _keep(self, stream: str, wanted: Callable[[Transfer], bool]) -> None:
        """Keep what is wanted of what waits or is under way in the stream. What has gone of the rest, has gone."""
        kept: deque[Transfer] = deque()
        for transfer in self._streams[stream]:
            if wanted(transfer):
                kept.append(transfer)
            else:
                self.bits += transfer.bits - transfer.left
        if kept:
            self._streams[stream] = kept
        else:
            del self._streams[stream]

    def _move(self) -> None:
        """Let the bits go over the link that have gone by now."""
        now = self._timeline.now
        if self._streams and now > self._moved_at:
            seconds = now - self._moved_at
            for stream, waiting in self._streams.items():
                waiting[0].left -= self._rates[stream] * seconds
        self._moved_at = now

    def _plan(self) -> None:
        self._plans += 1
        if self._streams:
            self._rates = shares(self._total, {stream: self._most.get(stream, math.inf) for stream in self._streams})
            number = self._plans
            seconds = min(max(0.0, waiting[0].left) / self._rates[stream] for stream, waiting in self._streams.items())
            self._timeline.at(self._timeline.now + seconds, lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        if number != self._plans:
            return
        self._move()
        # The first has gone, whatever rounding left of it.
        least = min(waiting[0].left / self._rates[stream] for stream, waiting in self._streams.items())
        gone = [
            stream
            for stream, waiting in self._streams.items()
            if waiting[0].left <= max(least * self._rates[stream], _ROUNDING * waiting[0].bits)
        ]
        done = [self._streams[stream].popleft() for stream in gone]
        for stream in gone:
            if not self._streams[stream]:
                del self._streams[stream]
        self._plan()
        for transfer in done:
            self.bits += transfer.bits
            transfer.sent()


def shares(total: float, most: Mapping[str, float]) -> dict[str, float]:
    """Stream -> its share of `total`, which none can have more of without another having less that has no more than it (max-min fair).
    `most`: stream -> what it can use at most."""
    if math.isinf(total):
        return dict(most)
    found: dict[str, float] = {}
    left = total
    for number, (stream, mine) in enumerate(sorted(most.items(), key=lambda item: item[1])):
        found[stream] = min(mine, left / (len(most) - number))
        left -= found[stream]
    return found
