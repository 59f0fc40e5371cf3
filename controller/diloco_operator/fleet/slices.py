"""What placement can give to one unit: slices, and the view of the fleet that placement chooses from."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from diloco.wording import plural

from diloco_operator.accelerators import CATALOGUE, Family, Sign
from diloco_operator.fleet.capacity import CapacityType
from diloco_operator.fleet.devices import Devices
from diloco_operator.fleet.health import NotReadyCounts
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.node import Host, NodeView, Taint
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.use import PodUse

NOTHING_TAKEN: Mapping[str, int] = MappingProxyType({})


class SliceState(enum.StrEnum):
    """What a slice is to new units."""

    FREE = "Free"
    USED = "Used"
    """Other pods use its accelerators."""
    RESERVED = "Reserved"
    """By a job of this operator."""
    UNUSABLE = "Unusable"


def is_divisible(accelerator: str) -> bool:
    """Return whether several pods may share the accelerators of one host."""
    return CATALOGUE[accelerator].family is Family.HOST


class SliceKind(NamedTuple):
    """Slices of one kind are interchangeable except for capacity type, labels and taints."""

    accelerator: str
    """Name of the catalogue, or "cpu"."""
    topology: str = ""
    """TPU only."""
    chips_per_host: int = 0
    """Accelerators of each host; 0 for cpu."""
    devices: Devices = ()
    """cpu: extended resources of the host, without incidental ones. Other kinds: always empty, other devices than the accelerators do not
    matter."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The hardware that one unit of a pool needs. Two pools of equal shape compete for the same slices."""

    accelerator: str
    """Name of the catalogue, or "cpu"."""
    topology: str = ""
    """TPU only."""
    chips_per_host: int = 0
    """TPU: chips of each host. cpu: 0. Otherwise: accelerators that the pool asks for on each host; a host may have more."""
    hosts: int = 1
    """Hosts of the unit."""
    devices: Devices = ()
    """cpu: extended resources that the pool's template requests on each host, without incidental ones. Otherwise: always empty."""
    alone: bool = False
    """Nothing else may run on its hosts, because its pods use their network or ports."""

    @property
    def divides(self) -> bool:
        """Whether a unit takes only the accelerators that it asks for and leaves the rest of its host to others. Chips of a TPU host cannot
        be shared between pods; a unit of several hosts needs all links of each."""
        return self.hosts == 1 and not self.alone and is_divisible(self.accelerator)

    @property
    def size(self) -> float:
        """The hosts that a unit takes, for shares: a part of one counts as what it is of the largest host of this accelerator. Exact: hosts
        have powers of two."""
        return min(1.0, self.chips_per_host / CATALOGUE[self.accelerator].host_sizes[-1]) if self.divides else float(self.slots)

    @property
    def slots(self) -> int:
        """How many `Slice`s make one unit: a TPU slice is whole; a group of other hosts is formed at placement."""
        return 1 if self.topology else self.hosts

    @property
    def one(self) -> Shape:
        """One `Slice` of it: what units of several hosts have in common with those of one."""
        return self if self.topology or self.hosts == 1 else replace(self, hosts=1)

    def __str__(self) -> str:
        if self.topology:
            return f"{self.accelerator} {self.topology}"
        each = [plural(self.chips_per_host, "accelerator")] if self.chips_per_host else []
        each += [f"{amount} {name}" for name, amount in self.devices]
        return f"{self.accelerator}, {plural(self.hosts, 'host')}" + (f" with {', '.join(each)}" if each else "")


@dataclass(frozen=True, slots=True)
class Slice:
    """A whole TPU slice, or one host of another kind."""

    name: str
    """The node pool of a TPU slice of several hosts, else the node."""
    hosts: tuple[Host, ...]
    """In the order of their index within the unit."""
    kind: SliceKind
    capacity: CapacityType
    node_pool: str
    labels: Mapping[str, str]
    """Those that all its hosts share."""
    taints: tuple[Taint, ...]
    """NoSchedule and NoExecute taints that a pod must tolerate to run on it, except those of the accelerator itself."""
    room: Resources
    """What each of its hosts has left for a unit: what is allocatable, less what other pods use."""
    locality: Domain
    """The nearest domain that contains all its hosts."""
    in_part: bool
    """Other units or pods use accelerators of this host. `kind` then counts those that are left."""
    part: str = ""
    """Tells it apart from other parts of the same host; "": the whole host, or all that is left of it."""

    @property
    def key(self) -> str:
        """Tells it apart from all others that are offered at the same time."""
        return f"{self.hosts[0].node}/{self.part}" if self.part else self.hosts[0].node


GROUP_SEPARATOR = "+"


def group_name(slices: Sequence[Slice]) -> str:
    """Return the name of a unit's slices in status and on its pods; `Fleet.resolve` reads it."""
    return GROUP_SEPARATOR.join(s.name for s in slices)


@dataclass(frozen=True, slots=True)
class Holder:
    """Another job that has reserved slices of a shape."""

    job: str
    """Its key."""
    slices: int
    leaving: int = 0
    """Those among them that its units leave."""
    surplus: int | None = None
    """Those of the others that it could lose without falling below a minimum; None: not known."""
    priority: int = 0


class NearbySlices(NamedTuple):
    """Slices of the accelerator of a shape, but of another topology or size."""

    kind: SliceKind
    total: int
    free: int
    """Free chips of TPUs; 0 for others."""


class OddNodes(NamedTuple):
    """Nodes with accelerators that no pool gets for naming a kind, all for one reason."""

    what: str
    """Goes after `has`."""
    remedy: str
    """What a person can do about it; "" if nothing."""
    nodes: int
    first: str


class UsedHosts(NamedTuple):
    """What other pods use of one slice of several hosts."""

    slice: str
    hosts: int
    """The hosts of the slice."""
    used: int
    """Used ones among them."""
    users: tuple[tuple[str, str], ...]
    """Node, and namespace/name of the first pod on it; at most `slice_counting.REASONS` of them."""


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Why there are not more free slices of a shape, on behalf of one job. `own`, `ending`, the slices of `holders`, `unusable_count` and
    `used` have no slice in common; the rest of `total` is free."""

    total: int
    """Slices of this shape in the fleet, whatever their state."""
    own: int
    """Those that the job keeps or gets."""
    ending: int
    """Usable ones that it has reserved besides: its pods there have not ended."""
    holders: tuple[Holder, ...]
    """The other jobs that have slices, the one with most first."""
    unusable: tuple[str, ...]
    """One sentence each for slices that cannot be used now, at most `slice_counting.REASONS` of them."""
    unusable_count: int
    """These slices, without those that the job keeps or that other jobs have."""
    other_devices: tuple[str, ...] = ()
    """Device names of hosts that would be of this shape if they had exactly the devices that the pool's template requests, incidental ones
    aside."""
    other_devices_count: int = 0
    """These hosts; `total` does not include them."""
    used: int = 0
    """Slices whose accelerators other pods use, of those that no job has reserved and that could be used otherwise."""
    used_by: str = ""
    """namespace/name of the first of these pods."""
    used_by_count: int = 0
    """These pods."""
    used_hosts: UsedHosts | None = None
    """Used hosts of the first of the slices that other pods use; None: none, or its slices have one host each."""
    hosts: int = 0
    """All figures count accelerators, on so many hosts, because units share them; 0: they count slices."""
    scattered: tuple[tuple[str, int], ...] = ()
    """Hosts on which some accelerators are free, and fewer than a unit needs; those with most first."""
    nearby: tuple[NearbySlices, ...] = ()
    """What there is of the same accelerator and does not fit the shape."""
    odd: tuple[OddNodes, ...] = ()
    """Nodes with accelerators of the shape's vendor, or of an unknown one, that no pool gets for naming a kind."""

    @property
    def held(self) -> int:
        """Slices that other jobs have."""
        return sum(holder.slices for holder in self.holders)


class Fleet(Protocol):
    """What placement and reconcile see of the fleet, on behalf of one job."""

    def free(self, shape: Shape, pool: str) -> Iterator[Slice]:
        """Free slices that units of this shape and pool of the job may take, lazily, in a fixed order."""
        ...

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """Yield all slices of this shape in whatever state, lazily."""
        ...

    def kept(self, shape: Shape, pool: str) -> Iterator[tuple[Slice, str]]:
        """Yield other free slices of this shape, each with the key of the job that it is kept for; "": for none, or for this one."""
        ...

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        """Return the slices that `group_name` named, in whatever state they are; None when one of them is no longer in the fleet."""
        ...

    def usable(self, slice_: Slice) -> bool:
        """Say whether every host is there, ready, not cordoned, no disruption is announced, and no other pod uses its accelerators."""
        ...

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        """Return which host of the slice has too little room for a pod that needs this, and who uses it, in words; "" if all have
        enough."""
        ...

    def counts(self, shape: Shape, job: str = "", own: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        """Return slices of this shape, by state. `own`: nodes of the slices that `job` keeps or gets, and how many accelerators it takes
        there."""
        ...

    def wanted_before(self, shape: Shape, *, starts: bool) -> bool:
        """Say whether a slice of this accelerator that becomes free may go to another job that wants some. If this one `starts`, only those
        do that come before it."""
        ...

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """Return the pods on this node that are not units of this operator."""
        ...

    def node(self, name: str) -> NodeView | None:
        """Return the node of this name; None when it is not in the fleet."""
        ...

    @property
    def not_ready(self) -> NotReadyCounts:
        """How much of the fleet is NotReady."""
        ...

    @property
    def signs(self) -> Collection[Sign]:
        """Which dialects of labels its nodes speak."""
        ...
