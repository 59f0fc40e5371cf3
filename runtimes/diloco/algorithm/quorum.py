"""Adaptive grace (the paper): how long to wait for more learners once the quorum is reached. Also the moving averages that it needs.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

STEP_ALPHA: Final = 0.02
"""Weight of a learner's newest step in the moving average of its step durations. The average covers about 100 steps."""
QUORUM_ALPHA: Final = 0.1
"""Weight of the newest outer step in the moving average of the time until the quorum."""
OUTER_ALPHA: Final = 0.05
"""Weight of the newest outer step in the moving average of outer steps' durations."""
SYNC_ALPHA: Final = 0.2
"""Weight of the newest exchange in the moving average of the time from pull to merge: exchanges are rarer than steps."""


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average, `value + alpha * (x - value)`; the first value is taken as it is."""

    alpha: float
    value: float | None = None
    even: bool = False
    """Average the first 1 / alpha values with equal weights, so that the first one does not outweigh the others."""
    _values: int = 0

    def add(self, x: float) -> None:
        """Take one more value. Raises ValueError if it is not finite."""
        if not math.isfinite(x):
            raise ValueError(f"{x} cannot be averaged")
        self._values += 1
        alpha = max(self.alpha, 1 / self._values) if self.even else self.alpha
        self.value = x if self.value is None else self.value + alpha * (x - self.value)

    def add_or_raise(self, x: float) -> None:
        """Take one more value. If it is above the average, it becomes the average. Raises ValueError if it is not finite."""
        self.add(x)
        self.value = x if self.value is None else max(x, self.value)


def grace_seconds(
    step_seconds: float, quorum_seconds: float, sync_seconds: float, overlap_steps: int, safety_factor: float, max_steps: float
) -> float:
    """Return the length of the grace window in seconds (the paper):

    `min(gamma * (tau * step_time - (quorum_time + sync_time)), max_steps * step_time)`, at least 0. The times are moving averages in
    seconds, gamma is `safety_factor`, tau is `overlap_steps`.
    """
    slack = overlap_steps * step_seconds - (quorum_seconds + sync_seconds)
    return max(0.0, min(safety_factor * slack, max_steps * step_seconds))
