"""What a unit is worth to the flow: its value, less what the job's share costs, and a bonus for its priority. Integers only.

So that jobs share, the next slice of a job is worth less the more it has beyond its minimum: with each doubling an eighth of the mean value
less. It never falls to nothing, else slices would stay idle. A unit of several hosts counts as several slices here, and a unit that takes
part of a host as part of a slice.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from diloco_operator.allotment.flow.problem import MEAN, FlowJob, FlowPool

SEGMENTS = 8
SLOPE = MEAN
"""What one segment more than the last would cost: the mean value. Segment n costs n eighths of it."""


class Segment(NamedTuple):
    """Units beyond the minimum for which the job's share costs the same."""

    units: int
    cost: int


def segments(pools: Iterable[FlowPool], most: int, before: int = 0) -> list[Segment]:
    """Return at most 8 segments, for up to `most` units after the first `before`: 1, 1, 2, 4, 8, 16, 32 slices and the rest. Their costs
    increase. If pools have units of several sizes, all count as the smallest."""
    pools = list(pools)
    # Below the least value, so that each unit is worth something.
    bound, share = min((value for pool in pools for value in pool.all_values), default=2) - 2, share_of(pools)
    result: list[Segment] = []
    done, last = before, before + most
    for index in range(SEGMENTS):
        until = last if index == SEGMENTS - 1 else min(last, -(-(MEAN << index) // share))
        if until <= done:
            continue
        cost = min(SLOPE * share * index // (MEAN * SEGMENTS), bound)
        of_equal_cost = result.pop().units if result and result[-1].cost == cost else 0
        result.append(Segment(of_equal_cost + until - done, cost))
        done = until
    return result


def share_of(pools: Iterable[FlowPool]) -> int:
    """Return what each unit of these pools counts in the share of their job: the smallest share of a pool."""
    return min((pool.share for pool in pools), default=MEAN)


class Bonuses(NamedTuple):
    """What a unit beyond a minimum is worth for its priority."""

    ranks: Mapping[tuple[bool, int], int]
    """(not scavenged, priority) -> rank, from 0 for the lowest without gaps."""
    step: int
    """The difference between two ranks. It is more than other units can lose by all moves that make room for one unit."""

    def of(self, job: FlowJob, share: int, *, scavenged: bool) -> int:
        """Return the bonus of a unit that counts `share` thousandths of a slice."""
        return self.ranks[not scavenged, job.priority] * self.step * share // MEAN


def bonuses(jobs: Iterable[FlowJob]) -> Bonuses:
    pools = [(job, pool) for job in jobs for pool in job.pools]
    ranks = {(not pool.scavenged, job.priority) for job, pool in pools}
    most = max((value for _, pool in pools for value in pool.all_values), default=0)
    shares = [pool.share for _, pool in pools] or [MEAN]
    # A path along which units move aside meets each pool at most once, on its old slices and on new ones.
    loss = (most + -(-SLOPE * max(MEAN, *shares) // MEAN)) * (2 * len(pools) + 1)
    return Bonuses({rank: index for index, rank in enumerate(sorted(ranks))}, -(-loss * MEAN // min(MEAN, *shares)))
