"""Exponential back-off with jitter. Pure: draw comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays `initial`, `initial * factor`, … up to `ceiling` seconds, each shortened by up to the share `jitter` of itself.

    Jitter shortens, so `ceiling` is a true upper bound. Without it, everything that failed together would return together.
    """

    initial: float
    ceiling: float
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.ceiling:
            raise ValueError(f"back-off needs 0 < initial <= ceiling, not initial={self.initial} and ceiling={self.ceiling}")
        if self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError(f"back-off needs factor >= 1 and 0 <= jitter < 1, not factor={self.factor} and jitter={self.jitter}")

    def delay(self, failures: int, draw: float) -> float:
        """Seconds to wait after the `failures`-th failure in a row (from 1), with `draw` drawn uniformly from [0, 1)."""
        if failures < 1:
            raise ValueError(f"there is no back-off before the first failure, failures={failures}")
        # Beyond this exponent the ceiling holds anyway, and a float power of thousands of failures would overflow.
        whole = min(self.ceiling, self.initial * self.factor ** min(failures - 1, 64))
        return whole * (1 - self.jitter * draw)
