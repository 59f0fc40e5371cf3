"""What one job asks the allotment for, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diloco_operator.fleet.occupancy import Shares
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.requirements import SliceRequirements


class HeldUnit(NamedTuple):
    """A unit that has slices and may be asked to leave them."""

    name: str
    nodes: tuple[str, ...]
    """Names of all its hosts."""
    loss: int = 0
    """How much the job loses with it. Of several units the one with the smallest leaves first."""
    settling: bool = False
    """It has just got its slices, and cannot be asked to leave them yet."""
    leaving_cost: int = 0
    """What its job loses when it leaves them for better ones, in the unit of `PoolDemand.values`."""


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What one pool of a job has and wants. Counts are units."""

    requirements: SliceRequirements
    min: int
    max: int
    wanted: int
    """Units that could start now if they had slices."""
    preferred: SliceRequirements | None = None
    """Slices to try first, because others may not work."""
    moving: int = 0
    """Those among `units` that would leave their slices for others if some are left over."""
    scavenged: bool = False
    """It takes what no other job wants, and is no part of any minimum."""
    name: str = ""
    admitted: bool = False
    """A dry run of its pods has been admitted, and nothing is known that would keep its units from starting."""
    refused: bool = False
    """The API server refuses its pods, or something else that is known keeps its units from starting: no slice stays free for them."""
    ready: bool = True
    """What units share is there. Units of other jobs leave for its own only where it is `admitted` and `ready`."""
    may_replace: bool = True
    """Units of the job's minimum may leave others for its units, once these train: none of them has failed or gone lately."""
    for_spares: bool = False
    """What is wanted are spares: slices that stay free. No unit of another job leaves for them, and no dry run is asked for."""
    units: tuple[HeldUnit, ...] = ()
    draining_or_completed: int = 0
    """Units besides `units` that count against the maximum: they drain or have finished."""
    counted_for_min: int = 0
    """Those among them that count towards the minimum: they come back to their slices, or their work is done."""
    values: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Kind of accelerator -> what a unit on it is worth to the job, in thousandths of an average one; not there: 1000."""


@dataclass(frozen=True, slots=True)
class AllotmentRequest:
    """What one job has and wants."""

    job: str
    """Its key."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: of jobs with equal priority the oldest comes first."""
    min: int = 0
    max: int = 0
    pools: tuple[PoolDemand, ...] = ()
    """In order of preference."""
    occupied: frozenset[str] = frozenset()
    """Nodes that the job uses by other means than `PoolDemand.units`. No other job can get them."""
    shared: Shares = field(default_factory=dict)
    """Those among `occupied` of which units use only parts."""
    may_move: int = 0
    """Units that may leave their slices for better ones now."""
    runs: bool = False
    """It has started: it gets what its minimum lacks unit by unit. Else it gets all of its minimum or waits."""

    @property
    def may_give(self) -> bool:
        """Whether units may be asked to leave: the job has some beyond its minimum."""
        firm = [pool for pool in self.pools if not pool.scavenged]
        if sum(len(pool.units) + pool.counted_for_min for pool in firm) > self.min:
            return True
        return any(pool.scavenged and pool.units for pool in self.pools)

    @property
    def order(self) -> tuple[int, float, str]:
        """The highest priority first, among equals the oldest."""
        return (-self.priority, self.created, self.job)


@dataclass(frozen=True, slots=True)
class Allotted:
    """What one job gets and gives."""

    granted: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    """Pool, by its name -> free slices that only its units may take now."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """Units that must leave their slices -> the key of the job that gets these."""
    checks: frozenset[str] = frozenset()
    """Names of its pools for which units of other jobs would leave, once a dry run of their pods is admitted."""
    prepares: bool = False
    """Units of other jobs would leave for it, or slices are kept for its minimum, and what its units share is not there."""
    kept_for_minimum: frozenset[str] = frozenset()
    """Keys of free slices that no other minimum gets, because all of its minimum does not fit yet."""

    @property
    def nodes(self) -> frozenset[str]:
        """The keys of the granted slices: their first nodes, and of parts of hosts their names."""
        return frozenset(slice_.key for slices in self.granted.values() for slice_ in slices)

    def adds_to(self, before: Allotted) -> bool:
        """Return whether the job can act on something that was not so before."""
        more = self.nodes - before.nodes or self.revoked.keys() - before.revoked.keys() or self.checks - before.checks
        return bool(more) or self.prepares > before.prepares

    @property
    def kept(self) -> frozenset[str]:
        """The keys of all free slices that are kept for it."""
        return self.nodes | self.kept_for_minimum


NOTHING_ALLOTTED = Allotted()
