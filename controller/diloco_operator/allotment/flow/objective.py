"""What a unit is worth to the flow: its value, less what the job's share costs, and a bonus for its priority. Integers only.

A job with n units beyond its minimum gets less for the next one, so that jobs share: after each doubling of n an eighth of the mean value
less. What the next one is worth never falls to nothing, else slices would stay idle.

See docs/decisions/0208-one-flow.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from diloco_operator.allotment.flow.problem import MEAN, FlowJob, FlowPool

SEGMENTS = 8
SLOPE = MEAN
"""What the last segment costs more than one before the first: one mean value."""


class Segment(NamedTuple):
    """Units beyond the minimum for which the job's share costs the same."""

    units: int
    cost: int


def segments(pools: Iterable[FlowPool], most: int) -> list[Segment]:
    """At most 8, for up to `most` units: 1, 1, 2, 4, 8, 16, 32 and the rest. The costs increase, and stay below the least value."""
    values = [value for pool in pools for value in (*pool.values.values(), *(each.value for each in pool.held))]
    bound = min(values, default=2) - 2
    found: list[Segment] = []
    left, width = most, 1
    for index in range(SEGMENTS):
        units = left if index == SEGMENTS - 1 else min(left, width)
        if units <= 0:
            break
        cost = min(SLOPE * index // SEGMENTS, bound)
        before = found.pop().units if found and found[-1].cost == cost else 0
        found.append(Segment(before + units, cost))
        left -= units
        width = 1 if index == 0 else width * 2
    return found


class Bonuses(NamedTuple):
    """What a unit beyond a minimum is worth for its priority."""

    ranks: Mapping[tuple[bool, int], int]
    """Not scavenged, and priority -> dense rank, 0 for the lowest."""
    step: int
    """Between two ranks: more than all that moves of other units for one of them can lose."""

    def of(self, job: FlowJob, *, scavenged: bool) -> int:
        return self.ranks[not scavenged, job.priority] * self.step


def bonuses(jobs: Iterable[FlowJob]) -> Bonuses:
    """For these jobs. A path along which units move aside meets each pool at most once, on its old slices and on new ones."""
    found = [(job, pool) for job in jobs for pool in job.pools]
    ranks = {(not pool.scavenged, job.priority) for job, pool in found}
    most = max((value for _, pool in found for value in (*pool.values.values(), *(each.value for each in pool.held))), default=0)
    return Bonuses({rank: index for index, rank in enumerate(sorted(ranks))}, (most + SLOPE) * (2 * len(found) + 1))
