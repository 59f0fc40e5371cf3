"""What placement is asked for, and what it answers.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from diloco_operator.api.consequences import Follows, Lack
from diloco_operator.api.reasons import PoolReason, UnitReason, follows, lack_of
from diloco_operator.api.spec import Locality
from diloco_operator.fleet.affinity import NodeTerm
from diloco_operator.fleet.node import Host, Toleration
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import Shape, Slice, group_name


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """A unit that may run. It stays where it is: a unit with a slice keeps it or gets none in this round."""

    name: str
    slice: str = ""
    """The `group_name` of the slices that it has; "" when it has none."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """The units that one pool asks for."""

    name: str
    shape: Shape
    min: int
    """Units that must come from this pool, before any pool gets more than its minimum."""
    max: int
    """Units that may come from it, without those that were given up."""
    units: tuple[UnitRequest, ...]
    """Candidates, in the order in which to keep them; new ones stand last."""
    reserved: int = 0
    """Units that are not in the request, because they drain or have finished, and still count: towards `min`, and against the room for new
    units. No running unit has to leave for them."""
    capacity: str = ""
    """Reserved, OnDemand, Spot or FlexStart; "" for any."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that every host must have."""
    added_labels: frozenset[str] = frozenset()
    """Keys of those that the template does not have: the API server adds them to its pods."""
    affinity: tuple[NodeTerm, ...] | None = None
    """Alternatives, of which every host must meet one; None: any host."""
    tolerations: tuple[Toleration, ...] = ()
    avoided: Mapping[str, float] = field(default_factory=dict)
    """Nodes on which no unit may start now -> until when, seconds since the epoch."""
    given_up: int = 0
    """Units of the pool that were given up; `max` is lower by them."""
    locality: Locality = Locality.ANY
    """How near to each other the slices of one unit must be."""
    needs: Resources = Resources()  # noqa: RUF009 -- immutable
    """What the pod of each host requests."""
    needs_added: bool = False
    """The API server makes it another amount than the template has."""
    switched_off: bool = False
    """The job wants no units of it."""
    asked: int = 0
    """Units that are not in the request, because nodes were asked for them, which have not come yet. They count as `reserved` ones do, but
    the job may place others instead of them."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The units that one job asks for."""

    key: str
    min: int
    """Units over all pools that come before growth in the order of the pools."""
    max: int
    pools: tuple[PoolRequest, ...]
    """In order of preference."""
    reserved: int = 0
    """As in `PoolRequest`, over all pools, including pools that the request does not name."""
    priority: int = 0
    """For what is said of the jobs that have slices."""


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
        """The job wants it, and only a slice is missing."""
        return not follows(self.reason, Follows.NOT_WANTED)


class Remedy(NamedTuple):
    """What a person can do about a pool that is short of slices."""

    text: str
    is_more_nodes: bool = False
    """It is what a grantor is asked for."""


def with_remedies(causes: str, remedies: Sequence[str]) -> str:
    """Join causes and remedies for Events, tables and logs; `status.pools[]` has both apart."""
    return f"{causes}. What would help: {'; '.join(remedies)}" if remedies else causes


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """Why a pool does not have more units."""

    pool: str
    placed: int
    reason: PoolReason | Literal[""]
    """Empty when every candidate is placed."""
    lacks: str = ""
    """What a pool lacks that is short of slices; for any other, all that is to be said."""
    why: str = ""
    """Why a pool is short of slices. It is the same for pools to which the same slices are barred for the same causes."""
    helps: tuple[Remedy, ...] = ()
    """What a person can do about it."""

    @property
    def lack(self) -> Lack:
        """What it lacks."""
        return lack_of(self.reason)

    @property
    def causes(self) -> str:
        """Without what would help."""
        return f"{self.lacks}; {self.why}" if self.why else self.lacks

    @property
    def message(self) -> str:
        """For people; empty if there is nothing to say."""
        return with_remedies(self.causes, [each.text for each in self.helps])


@dataclass(frozen=True, slots=True)
class Placement:
    """Every candidate of the request is in exactly one of `assigned` and `unplaced`."""

    assigned: tuple[PlacedUnit, ...]
    unplaced: tuple[UnplacedUnit, ...]
    pools: tuple[PoolOutcome, ...]
