"""The samples of a unit's batch, and which of them each rank trains. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

type Numbers = NDArray[np.int64]
type Ranges = tuple[tuple[int, int], ...]
"""Sequence numbers [start, end), in the order in which they are trained."""


@dataclass(frozen=True, slots=True)
class DataRank:
    """Which part of the unit's batch a rank trains. Ranks of one tensor-parallel group train the same."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"data_parallel is (index, count) with an index from 0 to count - 1, not {(self.index, self.of)}")


def numbers_of_rank(ranges: Ranges, rank: DataRank) -> Numbers:
    """Return the numbers of this rank's part of a batch, int64 [n / rank.of]. Raises ValueError if the batch cannot be divided evenly."""
    count = sum(end - start for start, end in ranges)
    if count % rank.of:
        raise ValueError(f"a batch of {count} samples cannot be dealt out to {rank.of} ranks")
    share = count // rank.of
    numbers = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in ranges]) if ranges else np.empty(0, np.int64)
    return numbers[rank.index * share : (rank.index + 1) * share]
