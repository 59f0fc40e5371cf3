"""What placement is asked and what it answers. The wants of several jobs fit into one request, so that a solver can weigh them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from diloco_operator.api.reasons import PoolReason, UnitReason
from diloco_operator.fleet.affinity import NodeTerm
from diloco_operator.fleet.node import Host, Toleration
from diloco_operator.fleet.slices import Fleet, Shape, Slice, group_name


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """A unit that may run. It stays where it is: a unit with a slice keeps it or gets none in this round."""

    name: str
    slice: str = ""
    """The `group_name` of what it occupies, "" when it has nothing."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    name: str
    shape: Shape
    min: int
    """Units that must come from this pool, before any pool gets more than its minimum."""
    max: int
    units: tuple[UnitRequest, ...]
    """Candidates: those to keep first stand first, new ones last."""
    reserved: int = 0
    """Seats of units that are not in the request (they drain, or have finished): less room for new units, but nobody who runs is
    sent away for them. They count towards `min`."""
    capacity: str = ""
    """Reserved, OnDemand or Spot; "" for any."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that every host must have."""
    affinity: tuple[NodeTerm, ...] | None = None
    """Of which every host must meet one; None: it may be any host."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    key: str
    min: int
    """Units over all pools that are wanted most."""
    max: int
    pools: tuple[PoolRequest, ...]
    """In order of preference."""
    reserved: int = 0
    """As in `PoolRequest`, over all pools, those included that the request does not name."""
    priority: int = 0
    """Higher is served first."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    jobs: tuple[JobRequest, ...]
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    job: str
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
    job: str
    pool: str
    unit: str
    reason: UnitReason
    message: str


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """Why a pool has not more units."""

    job: str
    pool: str
    placed: int
    reason: PoolReason | Literal[""]
    """Empty when every candidate is placed."""
    message: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Every candidate of the request is in exactly one of `assigned` and `unplaced`."""

    assigned: tuple[PlacedUnit, ...]
    unplaced: tuple[UnplacedUnit, ...]
    pools: tuple[PoolOutcome, ...]


type Solver = Callable[[PlacementRequest], Placement]
"""Pure and deterministic. It must hold: no slice twice; no unit with a slice on another one; a pool's and a job's max; and if the
minima of all pools can be met with the slices that are free, they are met."""
