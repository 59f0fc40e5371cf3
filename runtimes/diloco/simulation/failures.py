"""Chips that fail and slices that come back.

Failures per step are Poisson with mean `chips * seconds / mean time between failures of a chip`, and each takes its whole slice out; a
slice comes back after an exponentiated Weibull delay (arXiv 2604.21428, appendix on the simulation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

YEAR: Final = 365.25 * 86_400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class ReturnDelay:
    """An exponentiated Weibull distribution with the cumulative function `(1 - exp(-(x / scale)^shape))^power`."""

    shape: float
    power: float
    scale: float
    """Seconds."""

    @classmethod
    def with_mean(cls, mean: float, shape: float = 1.5, power: float = 2.0) -> ReturnDelay:
        """The distribution of this mean, seconds: `E[x] = scale * m`, with m by the midpoint rule over the quantiles."""
        unit = cls(shape, power, 1.0)
        points = 10_000
        m = sum(unit.quantile((i + 0.5) / points) for i in range(points)) / points
        return cls(shape, power, mean / m)

    def quantile(self, q: float) -> float:
        """The delay, seconds, that the share `q` of all delays, 0 <= q < 1, does not exceed."""
        return float(self.scale * (-math.log1p(-(q ** (1 / self.power)))) ** (1 / self.shape))

    def draw(self, random: Random) -> float:
        """One delay, seconds."""
        return self.quantile(random.random())


def failures(mean: float, random: Random) -> int:
    """Draw a number from the Poisson distribution of this mean: by inversion, and for large means as a sum of such."""
    count = 0
    while mean > 30.0:  # exp of the whole would vanish in the sum below
        count += failures(30.0, random)
        mean -= 30.0
    left, term, k = random.random(), math.exp(-mean), 0
    while left > term and k < 1000:
        left -= term
        k += 1
        term *= mean / k
    return count + k
