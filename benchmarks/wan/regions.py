"""The regions of [wan-*], and how their links are scaled from the published ones to a small model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PUBLISHED_PARAMETERS: Final = 12e9
"""Parameters of the model that was trained in four regions over 2 to 5 Gbit/s (arXiv 2604.21428)."""
ASSUMED_STEP: Final = 4.0
"""Seconds of its step, which is not printed. Data parallel sends 16 bits of each parameter 2 (D - 1) / D times a step: over 3.5 Gbit/s
between four regions in 82 s. That it took more than 20 times as long a step means a step of about 4 s."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where some of a job's processes are."""

    name: str
    gigabits: float
    """Bandwidth of its link to all others, each direction, at the published size of the model: Gbit/s."""
    away: float
    """Half of the round trip to a region that is at the middle, seconds."""


REGIONS: Final = (Region("a", 5.0, 0.005), Region("b", 4.0, 0.005), Region("c", 3.0, 0.015), Region("d", 2.0, 0.025))
"""Round trips from 20 ms between a and b to 80 ms between c and d. The syncer is in a, whose link is the widest."""


@dataclass(frozen=True, slots=True)
class Links:
    """What the network between regions is like."""

    rates: tuple[float, ...]
    """Rates of each region's link, each direction: bits a second."""
    away: tuple[float, ...]
    """See `Region`."""

    def delay(self, source: int, destination: int) -> float:
        """Return the way from one region to another, seconds. The round trip is twice that."""
        return self.away[source] + self.away[destination]

    def delays(self) -> list[list[float]]:
        """Return all of them, by source and destination."""
        return [[self.delay(source, destination) for destination in range(len(self.away))] for source in range(len(self.away))]


def scaled(parameters: int, step_seconds: float, regions: Sequence[Region] = REGIONS) -> Links:
    """Return links on which a model of this size needs the same part of a step as the published one: the rates by the parameters and by the
    inverse of the step. Round trips stay as they are, so they are a larger part of a shorter step."""
    factor = 1e9 * parameters / PUBLISHED_PARAMETERS * ASSUMED_STEP / step_seconds
    return Links(tuple(region.gigabits * factor for region in regions), tuple(region.away for region in regions))
