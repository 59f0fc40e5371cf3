"""The samples that this unit holds leases for, in the order of the leases. Pure.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from diloco.learner.unit_plan import WorkChange
from diloco.wording import plural

AHEAD_BATCHES = 32
"""The unit holds leases for at least this many batches."""
AHEAD_SECONDS = 20.0
"""The unit holds leases for at least this many seconds of training, so that a restart of the syncer within this time does not stop it."""
MOST_AHEAD_BATCHES = 1024
"""The unit holds leases for at most this many batches."""
LEASE_BATCHES = 8
"""A request for work is for at least this many batches."""


class LeasedWork:
    """The unit's leased ranges, without the samples that were taken from them."""

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, int]] = deque()
        self.remaining = 0
        """Samples leased and not yet taken."""
        self.asked = 0
        """Samples asked for and not yet leased."""
        self.quorum = 0
        """If not 0, samples are neither taken nor asked for, because the outer clock waits for this many learners."""

    @property
    def why_none(self) -> str:
        """Why there is no next batch, in words that follow the name of the unit."""
        if self.quorum:
            return f"is ahead of the job and rests until a quorum of {plural(self.quorum, 'learner')} trains,"
        return "has no work left and waits for the syncer"

    def forget(self) -> None:
        """Forget all leases: the syncer has begun a new generation."""
        self._ranges.clear()
        self.remaining = 0

    def granted(self, start: int, end: int) -> None:
        """Add a lease of the sequence numbers [start, end)."""
        self._ranges.append((start, end))
        self.remaining += end - start
        self.asked = max(0, self.asked - (end - start))

    def follow(self, work: WorkChange) -> None:
        """Carry out the change of a plan."""
        if work.restart:
            self.forget()
        if work.asked is not None:
            self.asked = work.asked
        for start, end in work.leases:
            self.granted(start, end)
        self.quorum = work.quorum

    def take(self, count: int) -> NDArray[np.int64] | None:
        """Return the next `count` numbers, int64 [count]; None if fewer are leased, or the unit rests."""
        ranges = self.take_ranges(count)
        if ranges is None:
            return None
        pieces = [np.arange(start, end, dtype=np.int64) for start, end in ranges]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def take_ranges(self, count: int) -> tuple[tuple[int, int], ...] | None:
        """Take `count` numbers as ranges [start, end). None if fewer are leased, or the unit rests."""
        if self.quorum or self.remaining < count:
            return None
        pieces = []
        missing = count
        while missing:
            start, end = self._ranges.popleft()
            cut = min(end, start + missing)
            pieces.append((start, cut))
            missing -= cut - start
            if cut < end:
                self._ranges.appendleft((cut, end))
        self.remaining -= count
        return tuple(pieces)

    def wanted(self, batch_size: int, batch_seconds: float, batches: int | None = None, least: int = AHEAD_BATCHES) -> int:
        """Return how many samples to ask for now, and add them to `asked`. 0 while enough are held or asked for, or the unit rests.

        Samples that the program has fetched ahead are not held any more.

        Args:
            batch_seconds: how long training on one batch takes; 0 if unknown
            batches: how many batches to hold. None: as many as `batch_seconds` suggests
            least: how many batches to hold at least if `batches` is None
        """
        if self.quorum:
            return 0
        ahead = least
        if batch_seconds > 0:
            ahead = max(ahead, min(MOST_AHEAD_BATCHES, math.ceil(AHEAD_SECONDS / batch_seconds)))
        missing = (batches or ahead) * batch_size - self.remaining - self.asked
        if missing < (1 if batches else LEASE_BATCHES) * batch_size:
            return 0
        self.asked += missing
        return missing
