"""What was predicted before a run of the law, and whether it came so. Pure.

The predictions are those of arXiv 2503.09799, Table 4, and of the protocol for a small machine; none was changed after a run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final


@dataclass(frozen=True, slots=True)
class Gap:
    """The held-out loss of an arm ÷ that of data parallel - 1, by seeds."""

    by_seed: Sequence[float]

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return mean(self.by_seed)

    @property
    def error(self) -> float:
        """Return the standard error of the mean; NaN of one seed."""
        return stdev(self.by_seed) / math.sqrt(len(self.by_seed)) if len(self.by_seed) > 1 else math.nan


@dataclass(frozen=True, slots=True)
class Found:
    """What a run of the law has found."""

    gaps: Mapping[int, Gap]
    """By the number of units, at the smaller size."""
    outer: Mapping[int, float]
    """The best outer rate, by the number of units."""
    larger: Mapping[int, float]
    """The gap of one seed at the larger size, by the number of units."""
    same_seed: Mapping[int, float]
    """The gap of the same seed at the smaller size."""


def _rises(values: Sequence[float]) -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(values))


REGISTERED: Final[Mapping[str, Callable[[Found], bool]]] = {
    "M = 2 is not better than data parallel": lambda found: found.gaps[2].mean >= 0,
    "the gap grows from M = 2 over 4 to 8": lambda found: _rises([found.gaps[units].mean for units in (2, 4, 8)]),
    "the gap of M = 4 is beyond two standard errors": lambda found: found.gaps[4].mean > 2 * found.gaps[4].error,
    "the gap of M = 8 is beyond two standard errors": lambda found: found.gaps[8].mean > 2 * found.gaps[8].error,
    "the gap of M = 8 is 2 to 15 %": lambda found: 0.02 <= found.gaps[8].mean <= 0.15,
    "M = 1 is within two standard errors of data parallel": lambda found: abs(found.gaps[1].mean) <= 2 * found.gaps[1].error,
    "the best outer rate does not fall with M": lambda found: (
        [found.outer[units] for units in sorted(found.outer)] == sorted(found.outer.values())
    ),
    "the gap of M = 8 is smaller at the larger size": lambda found: found.larger[8] < found.same_seed[8],
}
"""By what is said."""


def outcome(found: Found) -> Mapping[str, bool]:
    """Return whether each prediction came true."""
    return {name: bool(holds(found)) for name, holds in REGISTERED.items()}
