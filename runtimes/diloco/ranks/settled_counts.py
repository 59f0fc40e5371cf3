"""What the ranks of a unit settle in each local step, and what the whole unit has settled by that. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections import deque

from diloco.learner.leave import LoopError
from diloco.wording import plural


class SettledCounts:
    """All ranks settle a batch of the unit in the same step. Shards differ in length, and each rank reads its own, so the unit has settled
    as many shards as its slowest rank."""

    def __init__(self, ranks: int) -> None:
        self._said: list[deque[int | None]] = [deque() for _ in range(ranks)]
        """For each rank what it has settled in the steps that not all ranks have done."""
        self._steps = [0] * ranks
        """Local steps that each rank has done."""
        self._totals = [0] * ranks
        """Batches or shards that each rank has settled in these steps."""
        self._all = [0] * ranks
        """Batches or shards that each rank has settled in the steps that all ranks have done."""

    def stepped(self, rank: int, settled: int | None) -> None:
        """Note that the rank has done its next local step, which settles `settled` batches or shards. None: its program feeds itself."""
        self._said[rank].append(settled)
        self._steps[rank] += 1
        self._totals[rank] += settled or 0

    def ready(self, *, shards: bool) -> list[int]:
        """Return how much the unit has settled in each step that all ranks have done by now, each step once.

        `shards`: the ranks settle shards. If not, raises LoopError when they settle different numbers of batches in one step.
        """
        ready = []
        if not shards:
            self._check_batches()
        while all(self._said):
            before = min(self._all)
            of_step = [ahead.popleft() for ahead in self._said]
            for rank, settled in enumerate(of_step):
                self._all[rank] += settled or 0
            ready.append(min(self._all) - before)
        return ready

    def most_steps(self, dealt: int) -> int:
        """Return how many local steps the ranks may do in all if `dealt` shards are dealt to each and no step takes more than one further
        shard. A rank that has settled n shards reads its shard n + 1."""
        return min(steps + dealt - total - 1 for steps, total in zip(self._steps, self._totals, strict=True))

    def _check_batches(self) -> None:
        """Check the batches as early as possible, because a rank that waits for a batch that the others do not want never ends its step."""
        for place in range(max(map(len, self._said))):
            counts = {rank: ahead[place] for rank, ahead in enumerate(self._said) if place < len(ahead)}
            first, expected = next(iter(counts.items()))
            if strange := [rank for rank, settled in counts.items() if settled != expected]:
                step = self._steps[0] - len(self._said[0]) + place + 1
                raise LoopError(
                    f"in local step {step} {_of(first, expected)}, and {', '.join(_of(rank, counts[rank]) for rank in strange)}: the ranks "
                    "of a unit train their parts of the same batches, so all call session.step(batches=…) with one number, and none is "
                    "without. A last update of an epoch with fewer micro-batches must be so on all ranks"
                )


def _of(rank: int, settled: int | None) -> str:
    return f"rank {rank} settled {'no batch, as it feeds itself' if settled is None else plural(settled, 'batch', 'batches')}"
