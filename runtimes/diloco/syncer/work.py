"""The work of the sessions: what is leased to each, what of it is committed, and what is sent again after a reconnect.

See docs/decisions/0003-work-leases-and-ledger.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from diloco.algorithm.events import Marks
from diloco.data.ledger import Ledger
from diloco.syncer.sessions import UnitSession

MOST_SAMPLES = 1 << 24
"""Upper bound of the samples that one request for work leases."""

type Lease = tuple[int, int, int]
"""(lease id, start, end) of the sequence numbers [start, end)."""


@dataclass(slots=True)
class UncommittedLeases:
    """Leases of one session that are not committed. After a reconnect the syncer sends those again that the learner did not receive."""

    leases: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """(samples leased up to the end of this lease, lease id, start, end)"""
    samples: int = 0
    """Samples of all leases of the session."""

    def add(self, lease: int, start: int, end: int) -> None:
        """Note a new lease of [start, end)."""
        self.samples += end - start
        self.leases.append((self.samples, lease, start, end))

    def committed(self, samples: int) -> None:
        """The session's first `samples` samples are committed; their leases are not needed any more."""
        while self.leases and self.leases[0][0] <= samples:
            self.leases.popleft()

    def after(self, samples: int) -> list[Lease]:
        """The leases that end beyond the session's first `samples` samples."""
        return [(lease, start, end) for upto, lease, start, end in self.leases if upto > samples]


class Work:
    """The ledger, and the leases of the open sessions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._uncommitted: dict[str, UncommittedLeases] = {}

    def begin(self, session: UnitSession) -> None:
        """The session works from now on; repeating it changes nothing."""
        self.ledger.begin(session.unit, session.attempt, session.holder)

    def lease(self, session: UnitSession, samples: int) -> Iterator[Lease]:
        """Leases of `samples` samples, at most MOST_SAMPLES."""
        left = min(samples, MOST_SAMPLES)
        uncommitted = self._uncommitted.setdefault(session.holder, UncommittedLeases())
        while left > 0:
            lease = self.ledger.lease(session.unit, session.attempt, session.holder, left)
            uncommitted.add(lease.id, lease.start, lease.end)
            yield lease.id, lease.start, lease.end
            left -= lease.end - lease.start

    def unreceived(self, session: UnitSession, samples_leased: int) -> list[Lease]:
        """The leases that a learner did not receive which has received `samples_leased` samples."""
        return self._uncommitted.get(session.holder, UncommittedLeases()).after(samples_leased)

    def commit(self, session: UnitSession, marks: Marks) -> None:
        """The work that an accepted push holds is done. Raises LedgerError."""
        self.ledger.commit(session.unit, session.attempt, marks.samples, marks.tokens, marks.steps)
        self._uncommitted.get(session.holder, UncommittedLeases()).committed(marks.samples)

    def forget(self, holder: str) -> None:
        """The session is over; the next one of the unit takes over in the ledger."""
        self._uncommitted.pop(holder, None)

    def end(self, session: UnitSession) -> int:
        """The session is over and the unit has no other: its uncommitted work is free again. Returns the number of those samples."""
        self.forget(session.holder)
        return sum(end - start for start, end in self.ledger.release(session.unit, session.attempt))
