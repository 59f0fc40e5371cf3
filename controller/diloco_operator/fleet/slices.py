"""What can be handed to one unit: slices, and the view of them that placement chooses from."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diloco_operator.fleet.health import NotReadyCounts
from diloco_operator.fleet.node import Host, NodeView, Taint


class CapacityType(enum.StrEnum):
    """How a node was paid for, from its labels."""

    RESERVED = "Reserved"
    ON_DEMAND = "OnDemand"
    SPOT = "Spot"


@dataclass(frozen=True, slots=True)
class Shape:
    """The hardware that one unit of a pool needs. Two pools of equal shape compete for the same slices."""

    accelerator: str
    """Name of the catalogue, or "cpu"."""
    topology: str = ""
    """TPU only."""
    chips_per_host: int = 0
    """TPU: chips of each host. GPU: accelerators wanted on each host (a host may have more). cpu: 0."""
    hosts: int = 1
    """Hosts of the unit."""

    @property
    def slots(self) -> int:
        """How many `Slice`s make one unit: a TPU slice is whole; a group of GPU or cpu hosts is formed at placement."""
        return 1 if self.topology else self.hosts

    @property
    def one(self) -> Shape:
        """One `Slice` of it: what units of several hosts have in common with those of one."""
        return self if self.topology or self.hosts == 1 else replace(self, hosts=1)

    def __str__(self) -> str:
        if self.topology:
            return f"{self.accelerator} {self.topology}"
        each = f" with {self.chips_per_host} accelerators" if self.chips_per_host else ""
        return f"{self.accelerator}, {self.hosts} host{'s' if self.hosts > 1 else ''}{each}"


@dataclass(frozen=True, slots=True)
class Slice:
    """A whole TPU slice, or one host of another kind."""

    name: str
    """The node pool of a TPU slice of several hosts, else the node."""
    hosts: tuple[Host, ...]
    """In the order of their index within the unit."""
    accelerator: str
    topology: str
    chips_per_host: int
    capacity: CapacityType
    node_pool: str
    labels: Mapping[str, str]
    """Those that all its hosts share."""
    taints: tuple[Taint, ...]
    """NoSchedule and NoExecute taints that a pod must tolerate to run on it, besides those of the accelerator itself."""


GROUP_SEPARATOR = "+"


def group_name(slices: Sequence[Slice]) -> str:
    """The name under which a unit's slices stand in status and on its pods; `Fleet.resolve` reads it."""
    return GROUP_SEPARATOR.join(s.name for s in slices)


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Why there are not more free slices of a shape."""

    total: int
    """Slices of this shape in the fleet, whatever their state."""
    reserved: int
    """Held by somebody."""
    unusable: tuple[str, ...]
    """One sentence each for slices that cannot be used now, at most `Fleet.REASONS` of them."""
    unusable_count: int


class Fleet(Protocol):
    """What placement and reconcile see of the fleet, on behalf of one job (or of several that are placed together)."""

    def free(self, shape: Shape) -> Iterator[Slice]:
        """Usable slices that nobody holds, lazily, in a fixed order (hosts of one node pool stand together)."""
        ...

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        """The slices that `group_name` named, usable or not, held or not; None when one of them is no longer in the fleet."""
        ...

    def usable(self, slice_: Slice) -> bool:
        """Every host is there, ready, not cordoned, and no disruption is announced."""
        ...

    def counts(self, shape: Shape) -> SliceCounts: ...

    def node(self, name: str) -> NodeView | None: ...

    @property
    def not_ready(self) -> NotReadyCounts:
        """How much of it is NotReady."""
        ...
