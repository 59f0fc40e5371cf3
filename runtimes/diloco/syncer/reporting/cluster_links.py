"""How much goes over the link of each other cluster. Pure: time comes in as an argument, in seconds on one clock that never goes back.

The units of a cluster share its link to the syncer. So what counts is the busiest time of all their streams together: the rate of the link
if it was full then, else what was used of it. Bytes count as they arrive, those to learners when they are acknowledged: what was sent may
still wait in buffers in front of a narrow link.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from diloco.contract import MOST_PARTS

BUSY_SECONDS = 5
"""What a process that was stopped for a moment takes at once would count as the rate of the link: 1.5 times the link's in one second of a
join, and at most 1.1 times in five."""
REMEMBERED_SECONDS = 600
"""How long the busiest time counts."""
_BIN_SECONDS = 0.5
"""Bytes are counted in bins of this length. The busiest time may begin with any of them."""
_SLOT_SECONDS = 10
"""The busiest time is kept for each slot of this length."""
_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class PeakRate:
    """The highest rate over `BUSY_SECONDS`, of the last ten minutes."""

    def __init__(self) -> None:
        self._bins: deque[tuple[int, int]] = deque()
        """(number of the bin, bytes) of the last `BUSY_SECONDS`, without empty bins."""
        self._bytes = 0
        """In these bins."""
        self._most: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_SECONDS // _SLOT_SECONDS)
        """(number of the slot, most bytes in a busy time that ended in it)."""

    def add(self, count: int, now: float) -> None:
        """Take bytes that have arrived."""
        at = int(now / _BIN_SECONDS)
        while self._bins and self._bins[0][0] <= at - BUSY_SECONDS / _BIN_SECONDS:
            self._bytes -= self._bins.popleft()[1]
        earlier = self._bins.pop()[1] if self._bins and self._bins[-1][0] == at else 0
        self._bins.append((at, earlier + count))
        self._bytes += count
        slot = _slot(now)
        most = self._most.pop()[1] if self._most and self._most[-1][0] == slot else 0
        self._most.append((slot, max(most, self._bytes)))

    def value(self, now: float) -> int:
        """Return the rate, bytes a second. 0 if nothing came in the last ten minutes."""
        oldest = _slot(now) - REMEMBERED_SECONDS // _SLOT_SECONDS
        return max((most for slot, most in self._most if slot > oldest), default=0) // BUSY_SECONDS


def _slot(now: float) -> int:
    return int(now / _SLOT_SECONDS)


class LinkRates(NamedTuple):
    """Peak rates from the learners of a cluster, and to them: bytes a second."""

    received: int
    sent: int


@dataclass(slots=True)
class _Link:
    received: PeakRate = field(default_factory=PeakRate)
    sent: PeakRate = field(default_factory=PeakRate)

    def rates(self, now: float) -> LinkRates:
        return LinkRates(self.received.value(now), self.sent.value(now))


class ClusterLinks:
    """The links of all clusters that the learners name in their Hello, except the syncer's own. There are at most `MOST_PARTS`: one more
    is measured when another one has carried nothing for ten minutes. Names that no cluster has are left out: learners that no operator
    starts have such."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}

    def received(self, cluster: str, count: int, now: float) -> None:
        if (link := self._link(cluster, now)) is not None:
            link.received.add(count, now)

    def sent(self, cluster: str, count: int, now: float) -> None:
        if (link := self._link(cluster, now)) is not None:
            link.sent.add(count, now)

    def rates(self, now: float) -> dict[str, LinkRates]:
        """The rates by cluster, without clusters that have carried nothing for ten minutes."""
        rates = {cluster: link.rates(now) for cluster, link in self._links.items()}
        return {cluster: each for cluster, each in rates.items() if any(each)}

    def _link(self, cluster: str, now: float) -> _Link | None:
        link = self._links.get(cluster)
        if link is not None or _CLUSTER.fullmatch(cluster) is None:
            return link
        if len(self._links) >= MOST_PARTS:
            used = self.rates(now)
            self._links = {name: each for name, each in self._links.items() if name in used}
        if len(self._links) < MOST_PARTS:
            link = self._links[cluster] = _Link()
        return link
