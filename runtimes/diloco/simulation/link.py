"""A link on virtual time: streams that share its bandwidth, each with one transfer at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from diloco.simulation.path import Path
from diloco.simulation.timeline import Timeline

_ROUNDING: Final = 1e-9
"""Rounding error of the bits of a transfer."""


@dataclass(slots=True)
class Transfer:
    """What is under way."""

    bits: float
    left: float
    sent: Callable[[], None]


class Link:
    """One direction of the syncer's link and, behind it, of the own links of its units: one stream for each unit.

    Streams share `total` bits a second as evenly as their own rates allow: what one cannot use, the others have.
    """

    def __init__(self, timeline: Timeline, total: float = math.inf) -> None:
        self.bits = 0.0
        """That have gone over it, of all streams."""
        self._timeline = timeline
        self._total = total
        self._most: dict[str, float] = {}
        """Bits a second that a stream has at most; of those that are not here, any number."""
        self._local: set[str] = set()
        self._streams: dict[str, Transfer] = {}
        """What is under way."""
        self._rates: dict[str, float] = {}
        """Bits a second of each of these."""
        self._moved_at = 0.0
        self._plans = 0
        """Number of the newest plan for the next arrival: an older one is void."""

    def limit(self, stream: str, rate: float, *, local: bool = False) -> None:
        """Give the stream at most so many bits a second from now on. `local`: it costs no time, and the others nothing."""
        if local:
            self._local.add(stream)
            return
        self._local.discard(stream)
        if self._most.get(stream, math.inf) != rate:
            self._move()
            self._most[stream] = rate
            if stream in self._streams:
                self._plan()

    def is_free(self, stream: str) -> bool:
        """Return whether nothing of the stream is under way."""
        return stream not in self._streams

    def send(self, stream: str, bits: float, sent: Callable[[], None]) -> None:
        """Send so many bits over a stream that is free; `sent` is called when all have gone, at once on a link that costs no time."""
        if stream in self._local or (math.isinf(self._total) and math.isinf(self._most.get(stream, math.inf))):
            self.bits += bits
            sent()
            return
        assert self.is_free(stream), f"something is under way in {stream}"
        self._move()
        self._streams[stream] = Transfer(bits, bits, sent)
        self._plan()

    def queue_seconds(self, stream: str, path: Path, *, more: bool) -> float:
        """How long what the stream sends now waits behind what has left the sender before, and can be overtaken no more. `more`: the sender
        has something else to send after what is under way."""
        transfer = self._streams.get(stream)
        if transfer is None:
            return 0.0
        self._move()
        rate = self._rates[stream]
        most = path.queue_bits(rate)
        return (most if more else min(max(0.0, transfer.left), most)) / rate

    def cut_short(self, stream: str, path: Path, sent: Callable[[], None]) -> None:
        """Send no more of what is under way than has left the sender; `sent` is called when that has gone."""
        self._move()
        transfer = self._streams[stream]
        rest = min(max(0.0, transfer.left), path.queue_bits(self._rates[stream]))
        self._streams[stream] = Transfer(transfer.bits - transfer.left + rest, rest, sent)
        self._plan()

    def close(self, stream: str) -> None:
        """Drop what is under way: the unit is gone. What has gone of it, has gone. Idempotent."""
        if stream in self._streams:
            self._move()
            transfer = self._streams.pop(stream)
            self.bits += transfer.bits - transfer.left
            self._plan()

    def _move(self) -> None:
        """Let the bits go over the link that have gone by now."""
        now = self._timeline.now
        if self._streams and now > self._moved_at:
            seconds = now - self._moved_at
            for stream, transfer in self._streams.items():
                transfer.left -= self._rates[stream] * seconds
        self._moved_at = now

    def _plan(self) -> None:
        self._plans += 1
        if self._streams:
            self._rates = shares(self._total, {stream: self._most.get(stream, math.inf) for stream in self._streams})
            number = self._plans
            seconds = min(max(0.0, transfer.left) / self._rates[stream] for stream, transfer in self._streams.items())
            self._timeline.at(self._timeline.now + seconds, lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        if number != self._plans:
            return
        self._move()
        # The first has gone, whatever rounding left of it.
        least = min(transfer.left / self._rates[stream] for stream, transfer in self._streams.items())
        gone = [
            stream
            for stream, transfer in self._streams.items()
            if transfer.left <= max(least * self._rates[stream], _ROUNDING * transfer.bits)
        ]
        done = [self._streams.pop(stream) for stream in gone]
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
