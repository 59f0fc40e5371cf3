"""What a job has and wants, for the allotment and for placement, and what placement answers.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from diloco_operator.api.consequences import Follows, Lack
from diloco_operator.api.reasons import PoolReason, UnitReason, follows, lack_of
from diloco_operator.fleet.node import Host
from diloco_operator.fleet.occupancy import HostParts
from diloco_operator.fleet.slices import Shape, Slice, group_name
from diloco_operator.placement.requirements import SliceRequirements


class HeldUnit(NamedTuple):
    """A unit that has slices. It keeps them or leaves them, and gets no others in this round."""

    name: str
    nodes: tuple[str, ...]
    """Names of all its hosts."""
    leaving_rank: int = 0
    """The unit with the lowest rank leaves first: with it the job loses least."""
    settling: bool = False
    """It has just got its slices, so it cannot be asked to leave them yet."""
    leaving_cost: int = 0
    """What the job loses if the unit leaves its slices for better ones, in thousandths of an average unit."""
    slice: str = ""
    """The `group_name` of its slices."""


@dataclass(frozen=True, slots=True)
class PoolWords:
    """Facts that only messages about a pool need. They decide nothing."""

    added_labels: frozenset[str] = frozenset()
    """Keys of labels for which the template does not ask, and which the API server adds to the pods' node selector."""
    needs_added: bool = False
    """The API server changes how much the pods request."""
    avoided: Mapping[str, float] = field(default_factory=dict)
    """Node on which no unit may start now -> until when, in seconds since the epoch."""
    given_up: int = 0
    """Units of the pool that were given up. `PoolRequest.max` is without them."""
    switched_off: bool = False
    """The job wants no units of this pool."""


NO_WORDS = PoolWords()


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What one pool of a job has and wants. Counts are units. Requests that compare equal decide the same."""

    name: str
    requirements: SliceRequirements
    min: int
    """Units that must come from this pool before any pool gets more than its minimum."""
    max: int
    """Units that may come from this pool, without those that were given up."""
    units: tuple[HeldUnit, ...] = ()
    """Units with slices, in the order in which to keep them."""
    new: tuple[str, ...] = field(default=(), compare=False)
    """Names of units without slices that may start, in the order in which they get slices."""
    asked: int = field(default=0, compare=False)
    """Units for which nodes were asked that have not come yet. The job may place other units instead."""
    draining_or_completed: int = 0
    """Units besides `units` that count towards the maximum. No running unit has to leave for them."""
    counted_for_min: int = 0
    """How many of `draining_or_completed` count towards the minimum: they return to their slices, or their work is done."""
    wanted: int = 0
    """Units that could start now if they had slices."""
    preferred: SliceRequirements | None = None
    """Requirements of slices to try first, because others may not work. None if there is no preference."""
    moving: int = 0
    """How many of `units` would leave their slices for others if some are left over."""
    scavenged: bool = False
    """The pool takes only what no other job wants, and is no part of any minimum."""
    admitted: bool = False
    """A dry run of its pods was admitted, and nothing known would keep its units from starting."""
    refused: bool = False
    """The API server refuses its pods, or something else keeps its units from starting. No slice stays free for them."""
    ready: bool = True
    """The objects that its units share exist. Units of other jobs leave for this pool only if it is `admitted` and `ready`."""
    may_replace: bool = True
    """Units of the job's minimum may leave for its units. False if one of these failed or went lately."""
    spares: int = 0
    """Slices that stay free beside its units. No unit of another job leaves for them, and no dry run is asked for."""
    values: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Kind of accelerator -> what a unit on it is worth to the job, in thousandths of an average unit. 1000 if it is missing."""
    words: PoolWords = field(default=NO_WORDS, compare=False)

    @property
    def shape(self) -> Shape:
        return self.requirements.shape


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What one job has and wants."""

    job: str
    """Its key."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: of jobs with equal priority the oldest comes first."""
    min: int = 0
    """Units over all pools that come before growth in the order of the pools."""
    max: int = 0
    pools: tuple[PoolRequest, ...] = ()
    """In order of preference."""
    draining_or_completed: int = 0
    """Units of pools that the job no longer has. They count towards the maximum."""
    occupied: frozenset[str] = frozenset()
    """Nodes that the job uses besides the nodes of `PoolRequest.units`. No other job can get them."""
    shared: HostParts = field(default_factory=dict)
    """What units use of the nodes of `occupied` that they do not use as a whole."""
    may_move: int = 0
    """How many units may leave their slices for better ones now."""
    runs: bool = False
    """The job has started, so it gets what its minimum lacks unit by unit. A job that has not gets all of its minimum or waits."""
    places_chosen: bool = False
    """A grantor chooses the places of its units, so placement chooses no free slice."""

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

    @property
    def reserved(self) -> int:
        """How many units besides `PoolRequest.units` count towards the maximum."""
        return self.draining_or_completed + sum(pool.draining_or_completed for pool in self.pools)

    @property
    def room(self) -> int:
        """How many more units it may have. Less than 0 if it has too many."""
        return self.max - self.reserved - sum(len(pool.units) for pool in self.pools)

    def startable(self, pool: PoolRequest) -> tuple[str, ...]:
        """Return the units of `PoolRequest.new` that may get slices now."""
        # While units wait for nodes, kube-scheduler gives each slice of the pool that becomes free to their pods.
        return () if pool.asked or self.places_chosen else pool.new

    def for_allotment(self) -> JobRequest:
        """Return the request without pools if the allotment has no say in its places."""
        return replace(self, pools=()) if self.places_chosen else self


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A unit and the slices that placement gave it."""

    pool: str
    unit: str
    slices: tuple[Slice, ...]

    @property
    def slice(self) -> str:
        return group_name(self.slices)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(host for slice_ in self.slices for host in slice_.hosts)


@dataclass(frozen=True, slots=True)
class UnplacedUnit:
    """A unit without slices, and why."""

    pool: str
    unit: str
    reason: UnitReason
    message: str

    @property
    def waits(self) -> bool:
        """Whether the job wants the unit, so that only a slice is missing."""
        return not follows(self.reason, Follows.NOT_WANTED)


class Remedy(NamedTuple):
    """What a person can do about a pool that is short of slices."""

    text: str
    is_more_nodes: bool = False
    """It is more nodes, for which a grantor can be asked."""


def with_remedies(causes: str, remedies: Sequence[str]) -> str:
    """Join causes and remedies, for Events, tables and logs. In `status.pools[]` they stand apart."""
    return f"{causes}. What would help: {'; '.join(remedies)}" if remedies else causes


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """Why a pool does not have more units."""

    pool: str
    placed: int
    reason: PoolReason | Literal[""]
    """"" if every candidate is placed."""
    summary: str = ""
    """What the pool lacks, if it is short of slices; otherwise all that is to be said."""
    why: str = ""
    """Why the pool is short of slices. It is the same for pools to which the same slices are barred for the same causes."""
    helps: tuple[Remedy, ...] = ()
    """What a person can do about it."""

    @property
    def lack(self) -> Lack:
        return lack_of(self.reason)

    @property
    def causes(self) -> str:
        """The message without remedies."""
        return f"{self.summary}; {self.why}" if self.why else self.summary

    @property
    def message(self) -> str:
        """The message for people. "" if there is nothing to say."""
        return with_remedies(self.causes, [each.text for each in self.helps])


@dataclass(frozen=True, slots=True)
class Placement:
    """Every candidate of the request is in exactly one of `assigned` and `unplaced`."""

    assigned: tuple[PlacedUnit, ...]
    unplaced: tuple[UnplacedUnit, ...]
    pools: tuple[PoolOutcome, ...]
