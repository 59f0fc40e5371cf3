"""Exponential back-off, with one formula for both planes. Pure: randomness comes in as an argument.

See docs/decisions/0030-controller-loop.md.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_EXPONENT = 64
"""Larger powers would overflow after some thousand failures. 2.0**64 s is longer than any ceiling."""


def exponential(initial: float, ceiling: float, failures: int) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row (from 1): `initial`, then twice as long each time, up to
    `ceiling`. Raises ValueError if `failures` is less than 1."""
    if failures < 1:
        raise ValueError(f"there is no back-off before the first failure, failures={failures}")
    return min(ceiling, initial * 2.0 ** min(failures - 1, _MAX_EXPONENT))


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays `initial`, `2 * initial`, … up to `ceiling` seconds. Jitter shortens each by up to the share `jitter` of itself.

    Because jitter only shortens, `ceiling` is a true upper bound. Without jitter, everything that failed together would retry together.
    """

    initial: float
    ceiling: float
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.ceiling:
            raise ValueError(f"back-off needs 0 < initial <= ceiling, not initial={self.initial} and ceiling={self.ceiling}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"back-off needs 0 <= jitter < 1, not jitter={self.jitter}")

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after the `failures`-th failure in a row (from 1). `draw` is uniform in [0, 1)."""
        return exponential(self.initial, self.ceiling, failures) * (1 - self.jitter * draw)
