"""The path between a unit and the syncer: bandwidth, latency, and packets that are lost.

A connection is TCP, with segments of 1,460 bytes. A round trip R and a share p of lost segments have these effects:

- **Rate.** A connection has at most a window under way, which takes a round trip. The window is the smaller of what our streams keep under
  way (`protocol.window`), and the mean congestion window of CUBIC, `max(1.2 / sqrt(p), 1.054 (R / p)^0.75)` segments (RFC 9438,
  section 5.1 with C = 0.4, and the window of Reno if that is larger; CUBIC is the default of Linux).
- **Bytes.** A segment is sent `1 / (1 - p)` times in the mean.
- **Delay.** A lost segment is sent again one round trip later (RACK, RFC 8985), and may be lost again. During a transfer this happens
  beside the other segments and takes no time. Only repairs in the last window delay the end: `repairs`.

Segments are lost independently of each other. A stream is read in order, so nothing arrives before what was sent before it.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from numpy.random import Generator

from diloco.protocol.window import MOST_BYTES, window_bytes

SEGMENT_BITS: Final = 8.0 * 1460
"""Bits of a TCP segment in an Ethernet frame."""


@dataclass(frozen=True, slots=True)
class Path:
    """The values hold for each direction."""

    bandwidth: float = math.inf
    """Bits a second."""
    latency: float = 0.0
    """One way, seconds."""
    loss: float = 0.0
    """The share of segments that do not arrive, 0 <= loss < 1."""
    connections: int = 1
    """Connections side by side: each process of the unit has one."""
    local: bool = False
    """The unit is where the syncer is, and does not use the syncer's link."""

    @property
    def round_trip(self) -> float:
        """Seconds."""
        return 2.0 * self.latency

    @property
    def rate(self) -> float:
        """The most bits a second of a transfer, with what is sent again."""
        if not self.round_trip:
            return self.bandwidth
        window = min(8.0 * MOST_BYTES, SEGMENT_BITS * congestion_window(self.loss, self.round_trip))
        return min(self.bandwidth, self.connections * window / self.round_trip)

    def queue_bits(self, rate: float) -> float:
        """Bits that the sender has given away and that still wait for a link of `rate` bits a second: what `protocol.window` allows to be
        under way, minus what is on the link itself."""
        return max(0.0, 8.0 * window_bytes(rate / 8.0, self.round_trip) - rate * self.round_trip)

    def sent(self, bits: float) -> float:
        """Bits that go over the link so that `bits` arrive."""
        return bits / (1.0 - self.loss)

    def delay(self, bits: float, random: Generator) -> float:
        """Seconds from when the last of `bits` bits has left until all have arrived."""
        if not self.loss:
            return self.latency
        under_way = min(bits, self.rate * self.round_trip) if self.round_trip else bits
        return self.latency + self.round_trip * repairs(self.loss, max(1.0, under_way / SEGMENT_BITS), random.random())


FREE: Final = Path()
"""A path that takes no time."""


def congestion_window(loss: float, round_trip: float) -> float:
    """The mean window of CUBIC, in segments. RFC 9438, section 5.1."""
    if not loss:
        return math.inf
    return max(1.2 / math.sqrt(loss), 1.054 * math.pow(round_trip / loss, 0.75))


def repairs(loss: float, segments: float, share: float) -> int:
    """How many repairs, one after the other, a message of `segments` segments needs: the number that the share `share` of all messages,
    0..1, does not exceed.

    A segment that is sent k + 1 times is lost every time with the probability `loss^(k + 1)`. So k repairs are enough for all segments with
    the probability `(1 - loss^(k + 1))^segments`.
    """
    if not 0.0 < share < 1.0:
        return 0
    missing = -math.expm1(math.log(share) / segments)
    return max(0, math.ceil(math.log(missing) / math.log(loss)) - 1)
