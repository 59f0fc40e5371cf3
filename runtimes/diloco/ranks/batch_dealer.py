"""The batches of a unit, which its leader deals out to all ranks from what is leased. Used by two threads: the leader deals ahead of its
own steps, and the side channel's thread deals to a rank that wants more, as the training thread may wait for that rank in a collective.

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
    """Batches of the unit; where the program takes shards, groups of one shard for each rank."""

    def __init__(self, give: Callable[[Ranges], None]) -> None:
        """Begin with `give`: a batch is dealt. Called by either thread, in the order of the batches."""
        self._give = give
        self._lock = threading.Lock()
        self._work = LeasedWork()
        self._samples = 0
        """The samples of a batch; 0: not known yet."""
        self._generation = 0
        self._wanted = 0
        """Batches that a rank wants in all."""
        self._over = False
        self._in_hand: deque[tuple[int, int]] = deque()
        """Batches that were dealt and not settled: (generation, samples)."""
        self.dealt = 0
        """Batches in all."""

    @property
    def why_none(self) -> str:
        """Why there is no batch, human-readable: what follows the name of the unit."""
        return self._work.why_none

    def follow(self, work: WorkChange, generation: int, *, over: bool) -> None:
        """Do what a plan says of the samples that may be trained. `generation`: in which batches are dealt from now on. `over`: no more is
        dealt."""
        with self._lock:
            self._work.follow(work)
            self._generation, self._over = generation, over

    def deal(self, samples: int, too_few: Callable[[], bool]) -> None:
        """Deal out batches of so many samples while there are too few, or fewer than a rank wants."""
        with self._lock:
            self._samples = samples
            while (too_few() or self.dealt < self._wanted) and self._next():
                pass

    def want(self, batches: int) -> None:
        """Note that a rank has taken all that was dealt and wants so many in all."""
        with self._lock:
            self._wanted = max(self._wanted, batches)
            while self.dealt < self._wanted and self._next():
                pass

    def settle(self, batches: int) -> list[tuple[int, int]]:
        """Settle the oldest batches: of each the generation in which it was dealt, and its samples."""
        with self._lock:
            return [self._in_hand.popleft() for _ in range(batches)]

    def ask(self, batch_seconds: float, batches: int | None, ahead: int, want: Callable[[int], bool]) -> None:
        """Ask the syncer for samples by `want(samples)` where there are too few; False: it cannot be asked now. `batches`: as of
        `Member.ask_for_work`. `ahead`: those that a rank may hold unsettled: so many are there for one whose leader does nothing."""
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
