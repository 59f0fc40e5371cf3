"""Chips that fail and slices that come back.

The number of failures in a step is Poisson with the mean `chips * seconds / mean time between failures of a chip`. Each failure takes its
whole slice out, which comes back after an exponentiated Weibull delay (arXiv 2604.21428, appendix on the simulation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from numpy.random import Generator

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
        """The distribution with this mean, in seconds: `E[x] = scale * m`, with m by the midpoint rule over the quantiles."""
        unit = cls(shape, power, 1.0)
        points = 10_000
        m = sum(unit.quantile((i + 0.5) / points) for i in range(points)) / points
        return cls(shape, power, mean / m)

    def quantile(self, q: float) -> float:
        """The delay, in seconds, that the share `q` of all delays does not exceed, 0 <= q < 1."""
        return float(self.scale * (-math.log1p(-(q ** (1 / self.power)))) ** (1 / self.shape))

    def draw(self, random: Generator) -> float:
        """Draw one delay, seconds."""
        return self.quantile(random.random())
