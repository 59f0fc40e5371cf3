"""How many bytes of chunks one end of a stream may have under way: sent, and not yet acknowledged by the other end.

What gRPC and the kernel hold cannot be taken back. So the sender keeps the rest, and may still send something newer first. The window is

    rate * round trip + min(rate * QUEUE_SECONDS, MOST_QUEUE_BYTES)

so a narrow link has a queue of QUEUE_SECONDS, and a link that could carry more gets more in every round trip. Times are arguments, in
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
"""How long a chunk waits on a full link: long enough that a busy process at either end does not leave the link idle."""
MOST_QUEUE_BYTES = 8 << 20
"""The most that waits on a link. With a window of 64 MiB loopback carried a quarter less, probably because chunks fell out of the
processors' caches before they were read."""
LEAST_BYTES, FIRST_BYTES, MOST_BYTES = 64 << 10, 512 << 10, 64 << 20
"""Bytes of the window: the least, the first before anything was measured, and the most, which carries 4.7 Gbit/s over a round trip of
100 ms."""
CHUNKS = 4
"""Chunks in a full window. While one is acknowledged, the others are on their way."""
ACKNOWLEDGED_BYTES = 16 << 10
"""The receiver acknowledges at least this many bytes at a time, so that small payloads share an acknowledgement."""
HOLD_SECONDS = QUEUE_SECONDS / 2
"""How long an acknowledgement may wait for a message that can carry it. The sender's window lasts longer."""
HELD_BYTES = 256 << 10
"""With this many bytes an acknowledgement does not wait: they belong to a large payload, whose sender may wait for it."""
RATE_SECONDS = 1.0
"""The rate is the largest one measured within this time."""
PROBE_SECONDS = 10.0
"""How often the round trip is measured, with a small chunk that is alone on its way. The link may have to run empty for that."""
ROUND_TRIPS = 2
"""The round trip is the shortest of this many last ones, because one may be measured while a process is busy."""
REPORTED_ROUND_TRIPS = 60
"""The one for reports is the shortest of this many, those of about ten minutes: while other streams fill the link, their queues are in each
of them."""


def window_bytes(rate: float, round_trip: float) -> float:
    """Return how many bytes may be under way on a link of `rate` bytes a second with a round trip of `round_trip` seconds."""
    return min(max(LEAST_BYTES, rate * round_trip + min(rate * QUEUE_SECONDS, MOST_QUEUE_BYTES)), MOST_BYTES)


class Receipts:
    """Tells the receiver of chunks what to acknowledge, and when."""

    def __init__(self) -> None:
        self._taken = 0
        self._told = 0
        self.last_at = 0.0
        """When the last chunk came."""
        self._owed_at = 0.0
        """When there began to be enough to acknowledge."""
        self._more = False
        """A chunk has come whose payload goes on."""
        self.go_beside = False
        """The sender reads acknowledgements within other messages."""

    def take(self, count: int, now: float, *, more: bool = False) -> None:
        """Note that a chunk with `count` bytes of data has come.

        `more`: its payload goes on. Then the acknowledgement does not wait, because the sender may wait for it before it sends the rest, or
        measure the round trip with this chunk.
        """
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
        """When to acknowledge with a separate message. Infinity if too little has come."""
        if not self._is_owed:
            return math.inf
        waits = self.go_beside and not self._more and self._taken - self._told < HELD_BYTES
        return self._owed_at + HOLD_SECONDS if waits else self._owed_at

    def tell(self, now: float) -> Taken:
        """Return the acknowledgement of everything that has come on this stream. The caller must send it at once."""
        self._told, self._more = self._taken, False
        return Taken(bytes=self._taken, held=now - self.last_at)

    def beside(self, now: float) -> Taken | None:
        """Return the acknowledgement for a message that is sent now. None if none is owed, or the sender does not read it there."""
        return self.tell(now) if self._is_owed and self.go_beside else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """A chunk on its way."""

    end: int
    """Bytes of the stream up to its end."""
    at: float
    probe: bool
    """It measures the round trip."""
    taken: int
    since: float
    """The point from which the rate is measured: bytes that were acknowledged when it was sent, and when they were. For a chunk that was
    sent alone it is its own sending."""


class Window:
    """How much the sender of chunks may have under way. No limit until the other end is known to acknowledge."""

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
        self._reported: deque[float] = deque(maxlen=REPORTED_ROUND_TRIPS)
        """The round trips for reports."""
        self._probe_at = math.inf
        """When to measure the round trip again."""

    def limit(self) -> None:
        """Note that the other end acknowledges. Called before the first chunk is sent."""
        self._limit, self._probe_at = FIRST_BYTES, -math.inf

    @property
    def under_way(self) -> int:
        """Bytes under way."""
        return self._sent - self._taken

    @property
    def round_trip(self) -> float:
        """The shortest round trip of the last ten minutes, seconds. 0 if none was measured."""
        return min(self._reported, default=0.0)

    @property
    def bytes(self) -> float:
        """How many bytes may be under way."""
        return self._limit

    def is_open(self, now: float) -> bool:
        """Whether the next chunk may be sent. A due probe waits until nothing else is under way."""
        return self._is_empty or (self.under_way < self._limit and now < self._probe_at)

    def chunk_bytes(self, now: float) -> int:
        """Return the most bytes that the next chunk may carry."""
        if now >= self._probe_at:
            return ACKNOWLEDGED_BYTES
        return int(min(MOST_CHUNK_BYTES, max(ACKNOWLEDGED_BYTES, self._limit / CHUNKS)))

    def sent(self, count: int, now: float) -> int:
        """Note that a chunk with `count` bytes of data is sent. Returns the bytes sent so far, this chunk included."""
        if self._is_empty:
            self._mark = (self._sent, now)
        self._sent += count
        # A chunk that is too small to be acknowledged on its own measures nothing.
        if self._limit != math.inf and count >= ACKNOWLEDGED_BYTES:
            probe = now >= self._probe_at
            self._way.append(_Sent(self._sent, now, probe, *self._mark))
            if probe:
                self._probe_at = now + PROBE_SECONDS
        return self._sent

    def has_arrived(self, end: int) -> bool:
        """Whether a transfer that ended at `end` bytes has arrived, except for its last bytes that are too few to be acknowledged yet."""
        return self._taken + ACKNOWLEDGED_BYTES > end

    def taken(self, acknowledged: Taken, now: float) -> float:
        """Note an acknowledgement. Returns when it would have come if it had not waited for another message to carry it.

        Raises FramingError if it acknowledges more than was sent, or less than before.
        """
        total = acknowledged.bytes
        if not self._taken <= total <= self._sent:
            raise FramingError(f"the peer acknowledges {plural(total, 'byte')} of {self._sent} after it has acknowledged {self._taken}")
        # `held` is the other end's word. It must not move the time before the point from which a rate is measured.
        now = max(self._mark[1], now - min(max(0.0, acknowledged.held), HOLD_SECONDS))
        self._taken = total
        self._mark = (total, now)
        newest = None
        while self._way and self._way[0].end <= total:
            newest = self._way.popleft()
            if newest.probe:
                self._round_trips.append(now - newest.at)
                self._reported.append(now - newest.at)
        if newest is not None and now > newest.since and self._round_trips:
            self._measured((total - newest.taken) / (now - newest.since), now - newest.at, now)
        return now

    @property
    def _is_empty(self) -> bool:
        """Nothing is under way except bytes that are too few to be acknowledged yet."""
        return self.under_way < ACKNOWLEDGED_BYTES

    def _measured(self, rate: float, waited: float, now: float) -> None:
        """Take a measured rate into account if it is larger than the earlier ones, or if the chunk had to wait on the link.

        In the second case the link set the rate. Otherwise a small rate only says that this end had little to send.
        """
        round_trip = min(self._round_trips)
        if rate > max((earlier for _, earlier in self._rates), default=0.0) or waited > round_trip + QUEUE_SECONDS / 2:
            self._rates.append((now, rate))
        while self._rates[0][0] < now - RATE_SECONDS and len(self._rates) > 1:
            self._rates.popleft()
        largest = max(earlier for _, earlier in self._rates)
        self._limit = window_bytes(largest, round_trip)
