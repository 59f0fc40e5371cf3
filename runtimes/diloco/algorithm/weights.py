"""The weight of a contribution in a merge (the paper).

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from diloco.algorithm.quorum import MovingAverage

SHARE_ALPHA: Final = 0.1
"""Weight of the newest merge in the moving average of the units' shares."""
MERGE_ALPHA: Final = 0.05
"""The same for the share of the merges that a unit is in: the average covers about 40 merges, so a miss in 20 shows as such."""


def weight(tokens: float, steps: int) -> float:
    """Return `tokens * (tokens / steps)`, quantity times quality (the paper), for the work since the learner last adopted the fragment; 0
    without steps. Twice as many steps with the same batch size give twice the weight; equal steps with half the batch size give a quarter.

    Raises ValueError for a negative counter.
    """
    if tokens < 0 or steps < 0:
        raise ValueError(f"counters cannot be negative: {tokens} tokens in {steps} steps")
    return tokens * (tokens / steps) if steps else 0.0


class Shares:
    """Each unit's share in the recent merges of the job: the mean over the first 10 merges, then a moving average in which the newest merge
    counts a tenth. A merge without the unit counts 0, so the shares of all units that ever took part sum to 1.

    `known`: shares from before a restart.
    """

    def __init__(self, known: Mapping[str, float]) -> None:
        self._shares = dict(known)
        self._merges = round(1 / SHARE_ALPHA) if known else 0

    def of(self, unit: str) -> float:
        """The unit's share, 0..1; 0 for a unit that never took part."""
        return self._shares.get(unit, 0.0)

    def merged(self, weights: Mapping[str, float]) -> None:
        """Take one more merge. A merge whose weights are all 0 has no shares and is left out."""
        new = shares(weights)
        if not any(new.values()):
            return
        self._merges += 1
        alpha = max(SHARE_ALPHA, 1 / self._merges)
        for unit in self._shares.keys() | new.keys():
            before = self._shares.get(unit, 0.0)
            self._shares[unit] = before + alpha * (new.get(unit, 0.0) - before)


class MergeShares:
    """For each unit the share of the job's recent merges that have its contribution, from its first contribution to this process on: the
    mean over 20 merges, then a moving average in which the newest merge counts a twentieth."""

    def __init__(self) -> None:
        self._shares: dict[str, MovingAverage] = {}

    def of(self, unit: str) -> float:
        """The unit's share, 0..1; 0 for a unit that has contributed nothing."""
        share = self._shares.get(unit)
        return share.value or 0.0 if share is not None else 0.0

    def merged(self, units: Collection[str]) -> None:
        """Take one more merge, of these units' contributions."""
        for unit in units:
            if unit not in self._shares:
                self._shares[unit] = MovingAverage(MERGE_ALPHA, even=True)
        for unit, share in self._shares.items():
            share.add(float(unit in units))


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Each weight divided by their sum; all 0 if the sum is 0."""
    total = sum(weights.values())
    return {unit: w / total if total else 0.0 for unit, w in weights.items()}
