"""What a unit is worth to the flow: its value, less what the job's share costs, and a bonus for its priority. Integers only.

A job with n slices beyond its minimum gets less for the next one, so that jobs share: after each doubling of n an eighth of the mean value
less. What the next one is worth never falls to nothing, else slices would stay idle. A unit of several hosts, or of a part of one, counts
as that many slices, in all of this.

See docs/decisions/0207-allotment.md.
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
    """Return at most 8 segments, for up to `most` units: 1, 1, 2, 4, 8, 16, 32 slices and the rest. The costs increase, and stay below the
    least value. Where pools have units of several sizes, all count as the smallest."""
    pools = list(pools)
    bound, share = min((value for pool in pools for value in pool.all_values), default=2) - 2, share_of(pools)
    found: list[Segment] = []
    done = 0
    for index in range(SEGMENTS):
        until = most if index == SEGMENTS - 1 else min(most, -(-(MEAN << index) // share))
        if until <= done:
            continue
        cost = min(SLOPE * share * index // (MEAN * SEGMENTS), bound)
        before = found.pop().units if found and found[-1].cost == cost else 0
        found.append(Segment(before + until - done, cost))
        done = until
    return found


def share_of(pools: Iterable[FlowPool]) -> int:
    """Return what each of their units counts in the share of their job."""
    return min((pool.share for pool in pools), default=MEAN)


class Bonuses(NamedTuple):
    """What a unit beyond a minimum is worth for its priority."""

    ranks: Mapping[tuple[bool, int], int]
    """Not scavenged, and priority -> dense rank, 0 for the lowest."""
    step: int
    """Between two ranks: more than all that moves of other units for one of them can lose."""

    def of(self, job: FlowJob, share: int, *, scavenged: bool) -> int:
        """Return the value of a unit that counts so much in the share of its job."""
        return self.ranks[not scavenged, job.priority] * self.step * share // MEAN


def bonuses(jobs: Iterable[FlowJob]) -> Bonuses:
    """Return the bonuses of these jobs. A path along which units move aside meets each pool at most once, on its old slices and on new
    ones."""
    found = [(job, pool) for job in jobs for pool in job.pools]
    ranks = {(not pool.scavenged, job.priority) for job, pool in found}
    most = max((value for _, pool in found for value in pool.all_values), default=0)
    shares = [pool.share for _, pool in found] or [MEAN]
    loss = (most + -(-SLOPE * max(MEAN, *shares) // MEAN)) * (2 * len(found) + 1)
    return Bonuses({rank: index for index, rank in enumerate(sorted(ranks))}, -(-loss * MEAN // min(MEAN, *shares)))
