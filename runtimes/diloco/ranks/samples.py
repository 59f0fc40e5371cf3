"""The samples of a unit's batch, and which of them each rank trains. Pure.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

type Numbers = NDArray[np.int64]
type Ranges = tuple[tuple[int, int], ...]
"""Sequence numbers [start, end), in the order in which they are trained."""


def own(ranges: Ranges, index: int, of: int) -> Numbers:
    """Return what the rank with this index, of so many that train samples of their own, gets of the unit's batch: int64 [n / of].

    Raises ValueError if the batch cannot be dealt out evenly.
    """
    count = sum(end - start for start, end in ranges)
    if count % of:
        raise ValueError(f"a batch of {count} samples cannot be dealt out to {of} ranks")
    share = count // of
    numbers = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in ranges]) if ranges else np.empty(0, np.int64)
    return numbers[index * share : (index + 1) * share]
