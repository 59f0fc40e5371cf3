"""How much of its chunks one end of a stream may have under way: sent, and not yet acknowledged by the other end.

What gRPC and the kernel hold cannot be taken back. The sender therefore keeps the rest, and may still send something newer. The window is

    rate * (round trip + QUEUE_SECONDS)

so a narrow link keeps a queue of QUEUE_SECONDS, and a link that could carry more gets more in every round trip. Times are arguments, in
seconds on one clock that never goes back.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from diloco.protocol.diloco_pb2 import Taken
from diloco.protocol.framing import MOST_CHUNK_BYTES, FramingError
from diloco.wording import plural

QUEUE_SECONDS = 0.1
"""How long a chunk waits on a link that carries no more: long enough that a busy process at either end does not leave the link idle."""
LEAST_BYTES, FIRST_BYTES, MOST_BYTES = 64 << 10, 512 << 10, 64 << 20
"""Bytes of the window: at least, before anything was measured, and at most: 2.7 Gbit/s over a round trip of 100 ms."""
CHUNKS = 4
"""Chunks in a full window: while one is acknowledged, the others are on their way."""
ACKNOWLEDGED_BYTES = 16 << 10
"""The receiver acknowledges so many bytes at a time. Small payloads cost less than one acknowledgement each."""
HOLD_SECONDS = QUEUE_SECONDS / 2
"""So long an acknowledgement waits for a message that it can go beside. The sender's window lasts for longer."""
HELD_BYTES = 256 << 10
"""With so many bytes it does not wait: they belong to a large payload, whose sender may wait for it."""
RATE_SECONDS = 1.0
"""The rate is the largest that was measured in this time."""
PROBE_SECONDS = 10.0
"""So often the round trip is measured, with a small chunk that is alone on its way. If need be the link runs empty for it."""
ROUND_TRIPS = 2
"""The round trip is the shortest of so many last ones: one may come while a process is busy."""


class Receipts:
    """What the receiver of chunks acknowledges."""

    def __init__(self) -> None:
        self._taken = 0
        self._told = 0
        self.last_at = 0.0
        """When the last chunk came."""
        self._owed_at = 0.0
        """When there was enough to acknowledge."""
        self._more = False
        """A chunk has come behind which its payload goes on."""
        self.go_beside = False
        """The sender reads acknowledgements that go beside other messages."""

    def take(self, count: int, now: float, *, more: bool = False) -> None:
        """Note that `count` bytes of a chunk's data have come. `more`: its payload goes on, and the sender may wait to send the rest, or
        measure the round trip with this chunk. So its acknowledgement waits for nothing."""
        owed = self._is_owed
        self._more |= more
        self._taken += count
        self.last_at = now
        if self._is_owed and not owed:
            self._owed_at = now

    @property
    def _is_owed(self) -> bool:
        return self._taken - self._told >= ACKNOWLEDGED_BYTES

    @property
    def due_at(self) -> float:
        """When it is time to acknowledge with a message of its own; infinity: there is too little."""
        if not self._is_owed:
            return math.inf
        waits = self.go_beside and not self._more and self._taken - self._told < HELD_BYTES
        return self._owed_at + HOLD_SECONDS if waits else self._owed_at

    def tell(self, now: float) -> Taken:
        """Return the acknowledgement of all that has come on this stream, to be sent at once."""
        self._told, self._more = self._taken, False
        return Taken(bytes=self._taken, held=now - self.last_at)

    def beside(self, now: float) -> Taken | None:
        """Return the acknowledgement that goes beside a message which is sent now; None: none is owed, or the sender reads none there."""
        return self.tell(now) if self._is_owed and self.go_beside else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A chunk on its way."""

    end: int
    """Bytes sent with it."""
    at: float
    probe: bool
    """It measures the round trip."""
    taken: int
    since: float
    """Bytes acknowledged when it was sent, and when these were: the rate is measured from there. If it was alone: from itself."""


class Window:
    """What the sender of chunks may have under way. Open without limit until the other end is known to acknowledge."""

    def __init__(self) -> None:
        self._limit: float = math.inf
        self._sent = 0
        self._taken = 0
        self._mark = (0, 0.0)
        """The last point from which a rate can be measured: (bytes acknowledged, when)."""
        self._way: deque[_Sent] = deque()
        self._rates: deque[tuple[float, float]] = deque()
        """(when, bytes per second)."""
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._probe_at = math.inf
        """When to measure the round trip again."""

    def limit(self) -> None:
        """Note that the other end acknowledges. Called before the first chunk is sent."""
        self._limit, self._probe_at = FIRST_BYTES, -math.inf

    @property
    def under_way(self) -> int:
        """Bytes."""
        return self._sent - self._taken

    @property
    def bytes(self) -> float:
        """How many may be under way."""
        return self._limit

    def is_open(self, now: float) -> bool:
        """Return whether the next chunk may be sent."""
        return self._is_empty or (self.under_way < self._limit and now < self._probe_at)

    def chunk_bytes(self, now: float) -> int:
        """Return the most that the next chunk may carry."""
        if now >= self._probe_at:
            return ACKNOWLEDGED_BYTES
        return int(min(MOST_CHUNK_BYTES, max(ACKNOWLEDGED_BYTES, self._limit / CHUNKS)))

    def sent(self, count: int, now: float) -> int:
        """Note that a chunk with `count` bytes of data is sent. Returns the bytes sent so far, with it."""
        if self._is_empty:
            self._mark = (self._sent, now)
        self._sent += count
        # Nothing is measured by what is too small to be acknowledged on its own.
        if self._limit != math.inf and count >= ACKNOWLEDGED_BYTES:
            probe = now >= self._probe_at
            self._way.append(_Sent(self._sent, now, probe, *self._mark))
            if probe:
                self._probe_at = now + PROBE_SECONDS
        return self._sent

    def has_arrived(self, end: int) -> bool:
        """Return whether what ended at `end` bytes is there, as far as the receiver says so."""
        return self._taken + ACKNOWLEDGED_BYTES > end

    def taken(self, acknowledged: Taken, now: float) -> float:
        """Note what the receiver has taken of this stream. Returns when this would be known had the acknowledgement not waited for another
        message. Raises FramingError if it cannot be."""
        total = acknowledged.bytes
        if not self._taken <= total <= self._sent:
            raise FramingError(f"the peer acknowledges {plural(total, 'byte')} of {self._sent} after it has acknowledged {self._taken}")
        # Not before the moment from which a rate is measured: the other end's word has no say in that.
        now = max(self._mark[1], now - min(max(0.0, acknowledged.held), HOLD_SECONDS))
        self._taken = total
        self._mark = (total, now)
        newest = None
        while self._way and self._way[0].end <= total:
            newest = self._way.popleft()
            if newest.probe:
                self._round_trips.append(now - newest.at)
        if newest is not None and now > newest.since and self._round_trips:
            self._measured((total - newest.taken) / (now - newest.since), now - newest.at, now)
        return now

    @property
    def _is_empty(self) -> bool:
        """Nothing is under way, but for what the receiver does not acknowledge yet."""
        return self.under_way < ACKNOWLEDGED_BYTES

    def _measured(self, rate: float, waited: float, now: float) -> None:
        """Count a rate if it is larger than those before, or if the chunk had to wait: then it is what the link carries, and not what this
        end had to send."""
        round_trip = min(self._round_trips)
        if rate > max((one for _, one in self._rates), default=0.0) or waited > round_trip + QUEUE_SECONDS / 2:
            self._rates.append((now, rate))
        while self._rates[0][0] < now - RATE_SECONDS and len(self._rates) > 1:
            self._rates.popleft()
        largest = max(one for _, one in self._rates)
        self._limit = min(max(LEAST_BYTES, largest * (round_trip + QUEUE_SECONDS)), MOST_BYTES)
