"""The batches of a unit, which its leader deals out to all ranks from its leases. The training thread deals ahead of its steps. The side
channel's thread deals when a rank wants more, because the training thread may wait for that rank in a collective.

See docs/decisions/0167-batches.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from diloco.learner.unit_plan import WorkChange
from diloco.learner.work import AHEAD_BATCHES, LeasedWork
from diloco.ranks.samples import Ranges


class BatchDealer:
    """Deals batches of the unit. If the program takes shards, such a batch is a group with one shard for each rank."""

    def __init__(self, give: Callable[[Ranges], None]) -> None:
        """`give` sends a batch to the ranks. Either thread calls it, in the order of the batches."""
        self._give = give
        self._lock = threading.Lock()
        self._work = LeasedWork()
        self._samples = 0
        """The samples of a batch. 0 if not known yet."""
        self._generation = 0
        self._wanted = 0
        """The most batches that a rank wants, counted from the beginning."""
        self._over = False
        self._in_hand: deque[tuple[int, int]] = deque()
        """Batches that were dealt and not settled: (generation, samples)."""
        self.dealt = 0
        """Batches that were dealt, counted from the beginning."""

    @property
    def why_none(self) -> str:
        """Why there is no batch, in words that follow the name of the unit."""
        return self._work.why_none

    def follow(self, work: WorkChange, generation: int, *, over: bool) -> None:
        """Carry out a plan's change of the samples. From now on batches belong to `generation`. `over`: no more are dealt."""
        with self._lock:
            self._work.follow(work)
            self._generation, self._over = generation, over

    def deal(self, samples: int, too_few: Callable[[], bool]) -> None:
        """Deal out batches of `samples` while there are too few, or fewer than a rank wants."""
        with self._lock:
            self._samples = samples
            while (too_few() or self.dealt < self._wanted) and self._next():
                pass

    def want(self, batches: int) -> None:
        """Note that a rank has taken all that was dealt and wants `batches`, counted from the beginning."""
        with self._lock:
            self._wanted = max(self._wanted, batches)
            while self.dealt < self._wanted and self._next():
                pass

    def settle(self, batches: int) -> list[tuple[int, int]]:
        """Settle the oldest batches. Returns (generation in which it was dealt, samples) of each."""
        with self._lock:
            return [self._in_hand.popleft() for _ in range(batches)]

    def ask(self, batch_seconds: float, batches: int | None, ahead: int, want: Callable[[int], bool]) -> None:
        """Ask the syncer for samples if there are too few.

        Args:
            batch_seconds: how long training on one batch takes; 0 if unknown
            batches: as in `Member.ask_for_work`
            ahead: how many batches a rank may hold unsettled. That many more are leased, for a rank that fetches ahead of the leader
            want: asks the syncer for this many samples. False if it cannot be asked now
        """
        with self._lock:
            asked = self._work.asked
            wanted = self._work.wanted(self._samples, batch_seconds, batches, ahead + AHEAD_BATCHES)
            if wanted and not want(wanted):
                self._work.asked = asked

    def _next(self) -> bool:
        ranges = None if self._over or not self._samples else self._work.take_ranges(self._samples)
        if ranges is None:
            return False
        self._in_hand.append((self._generation, self._samples))
        self.dealt += 1
        self._give(ranges)
        return True
