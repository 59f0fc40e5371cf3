"""A link on virtual time. Streams share its bandwidth, and each has one transfer at a time."""

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
    bits: float
    left: float
    """Bits that have not gone yet."""
    sent: Callable[[], None]
    """Called when all have gone."""


class Link:
    """One direction of the syncer's link, and of the units' own links behind it. Each unit has a stream.

    Streams share `total` bits a second as evenly as their own rates allow: the others use what one stream cannot use.
    """

    def __init__(self, timeline: Timeline, total: float = math.inf) -> None:
        self.bits = 0.0
        """Bits that have gone over the link."""
        self._timeline = timeline
        self._total = total
        self._most: dict[str, float] = {}
        """The most bits a second of a stream. A stream without entry has no limit."""
        self._local: set[str] = set()
        self._streams: dict[str, Transfer] = {}
        """Transfers under way, by stream."""
        self._rates: dict[str, float] = {}
        """Bits a second of each transfer under way."""
        self._moved_at = 0.0
        self._plans = 0
        """Number of the newest plan for the next arrival. Older plans are void."""

    def limit(self, stream: str, rate: float, *, local: bool = False) -> None:
        """From now on limit the stream to `rate` bits a second. A `local` stream takes no time, and nothing from the others."""
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
        """Whether the stream has no transfer under way."""
        return stream not in self._streams

    def send(self, stream: str, bits: float, sent: Callable[[], None]) -> None:
        """Send `bits` bits over a free stream. `sent` is called when all have gone: at once if the stream is local, or neither link nor
        stream has a limit."""
        if stream in self._local or (math.isinf(self._total) and math.isinf(self._most.get(stream, math.inf))):
            self.bits += bits
            sent()
            return
        assert self.is_free(stream), f"something is under way in {stream}"
        self._move()
        self._streams[stream] = Transfer(bits, bits, sent)
        self._plan()

    def queue_seconds(self, stream: str, path: Path, *, more: bool) -> float:
        """Seconds that a word of this stream waits behind bits that have left the sender already. `more`: the sender has another transfer
        to send after the one under way."""
        transfer = self._streams.get(stream)
        if transfer is None:
            return 0.0
        self._move()
        rate = self._rates[stream]
        most = path.queue_bits(rate)
        return (most if more else min(max(0.0, transfer.left), most)) / rate

    def cut_short(self, stream: str, path: Path, sent: Callable[[], None]) -> None:
        """End the transfer under way after the bits that have left the sender. `sent` is called when these have gone."""
        self._move()
        transfer = self._streams[stream]
        rest = min(max(0.0, transfer.left), path.queue_bits(self._rates[stream]))
        self._streams[stream] = Transfer(transfer.bits - transfer.left + rest, rest, sent)
        self._plan()

    def close(self, stream: str) -> None:
        """The unit is gone: drop its transfer. Bits that have gone still count. Idempotent."""
        if stream in self._streams:
            self._move()
            transfer = self._streams.pop(stream)
            self.bits += transfer.bits - transfer.left
            self._plan()

    def _move(self) -> None:
        """Subtract the bits that have gone by now from the transfers."""
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
        # The transfer that is due first has gone, even if rounding has left some bits of it.
        least = min(transfer.left / self._rates[stream] for stream, transfer in self._streams.items())
        finished = [
            stream
            for stream, transfer in self._streams.items()
            if transfer.left <= max(least * self._rates[stream], _ROUNDING * transfer.bits)
        ]
        done = [self._streams.pop(stream) for stream in finished]
        self._plan()
        for transfer in done:
            self.bits += transfer.bits
            transfer.sent()


def shares(total: float, most: Mapping[str, float]) -> dict[str, float]:
    """Divide `total` among streams, max-min fair: a stream can only get more if one that has no more than it gets less. `most`: the most
    that each stream can use."""
    if math.isinf(total):
        return dict(most)
    given: dict[str, float] = {}
    left = total
    for number, (stream, limit) in enumerate(sorted(most.items(), key=lambda item: item[1])):
        given[stream] = min(limit, left / (len(most) - number))
        left -= given[stream]
    return given
