"""The regions of [wan-*], and how their links are scaled from the published ones to a small model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PUBLISHED_PARAMETERS: Final = 12e9
"""Parameters of the model that was trained in four regions over 2 to 5 Gbit/s (arXiv 2604.21428)."""
ASSUMED_STEP: Final = 4.0
"""Seconds of that model's step. The paper does not state it. In each step, data parallel sends 16 bits of each parameter 2 (D - 1) / D
times: between four regions over 3.5 Gbit/s this takes 82 s. It took more than 20 times as long as a step, so a step took about 4 s."""


@dataclass(frozen=True, slots=True)
class Region:
    """A place where some processes of a job run."""

    name: str
    gigabits: float
    """Bandwidth of the region's link to all others in each direction, for a model of the published size: Gbit/s."""
    away: float
    """Half of the round trip to the middle of the network, seconds. The delay between two regions is the sum of both values."""


REGIONS: Final = (Region("a", 5.0, 0.005), Region("b", 4.0, 0.005), Region("c", 3.0, 0.015), Region("d", 2.0, 0.025))
"""Round trips from 20 ms between a and b to 80 ms between c and d. The syncer is in a, whose link is the widest."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a network between regions."""

    rates: tuple[float, ...]
    """The rate of each region's link in each direction: bits a second."""
    away: tuple[float, ...]
    """See `Region`."""

    def delay(self, source: int, destination: int) -> float:
        """The delay from one region to another, seconds. The round trip is twice as long."""
        return self.away[source] + self.away[destination]

    def delays(self) -> list[list[float]]:
        """All delays, by source and destination."""
        return [[self.delay(source, destination) for destination in range(len(self.away))] for source in range(len(self.away))]


def scaled(parameters: int, step_seconds: float, regions: Sequence[Region] = REGIONS) -> Links:
    """Links on which a transfer of this model takes the same share of a step as for the published one. Rates grow with the number of
    parameters, and shrink with the length of the step. Round trips stay as they are, so they are a larger share of a shorter step."""
    factor = 1e9 * parameters / PUBLISHED_PARAMETERS * ASSUMED_STEP / step_seconds
    return Links(tuple(region.gigabits * factor for region in regions), tuple(region.away for region in regions))
