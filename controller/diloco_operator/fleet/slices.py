"""Slices, which placement gives to units, and the view of the fleet from which it chooses them."""

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
    """A job of this operator has reserved it."""
    UNUSABLE = "Unusable"


def is_divisible(accelerator: str) -> bool:
    """Whether several pods may share the accelerators of one host."""
    return CATALOGUE[accelerator].family is Family.HOST


class SliceKind(NamedTuple):
    """A kind of slices. Slices of one kind are interchangeable except for capacity type, labels and taints."""

    accelerator: str
    """Name in the catalogue, or "cpu"."""
    topology: str = ""
    """TPU only."""
    chips_per_host: int = 0
    """Accelerators of each host. 0 for cpu, and while a node does not say."""
    devices: Devices = ()
    """For cpu, the extended resources of the host, without incidental ones. Always empty for other kinds: only their accelerators
    matter."""

    @property
    def smallest_units(self) -> int:
        """How many units fit at most on a slice: one, or one for each accelerator of a host that units may share."""
        return max(1, self.chips_per_host) if is_divisible(self.accelerator) else 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The hardware that one unit of a pool needs. Two pools of equal shape compete for the same slices."""

    accelerator: str
    """Name in the catalogue, or "cpu"."""
    topology: str = ""
    """TPU only."""
    chips_per_host: int = 0
    """For TPUs, the chips of each host. 0 for cpu. Otherwise the accelerators that the pool asks for on each host, which may have more."""
    hosts: int = 1
    devices: Devices = ()
    """For cpu, the extended resources that the pool's template requests on each host, without incidental ones. Otherwise always empty."""
    alone: bool = False
    """Whether nothing else may run on its hosts, because its pods use their network or ports."""

    @property
    def divides(self) -> bool:
        """Whether a unit takes only the accelerators that it asks for, and leaves the rest of its host to others."""
        # Pods cannot share the chips of a TPU host, and a unit of several hosts needs all links of each.
        return self.hosts == 1 and not self.alone and is_divisible(self.accelerator)

    @property
    def size(self) -> float:
        """How many hosts a unit takes, for shares. A part of a host counts as a part of the largest host of this accelerator."""
        # The quotient is exact, since hosts have powers of two.
        return min(1.0, self.chips_per_host / CATALOGUE[self.accelerator].host_sizes[-1]) if self.divides else float(self.slots)

    @property
    def smallest_units(self) -> int:
        """The slices that a unit takes, in the unit of `SliceKind.smallest_units`."""
        return max(1, self.hosts * self.chips_per_host) if is_divisible(self.accelerator) else self.slots

    @property
    def slots(self) -> int:
        """How many `Slice`s make one unit. A TPU slice is one; placement puts other hosts together."""
        return 1 if self.topology else self.hosts

    @property
    def slice_shape(self) -> Shape:
        """The shape of one of its `Slice`s. Units of several hosts have it in common with units of one."""
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
    """In the order of their index in the unit."""
    kind: SliceKind
    capacity: CapacityType
    node_pool: str
    labels: Mapping[str, str]
    """The labels that all its hosts have."""
    taints: tuple[Taint, ...]
    """NoSchedule and NoExecute taints that a pod must tolerate to run on it, except the taints of the accelerator itself."""
    room: Resources
    """What each host has left for a unit: what is allocatable, less what other pods use."""
    locality: Domain
    """The nearest domain that contains all its hosts."""
    in_part: bool
    """Whether other units or pods use accelerators of this host. `kind` then counts the accelerators that are left."""
    part: str = ""
    """A name that other parts of the same host do not have. "" for the whole host, or all that is left of it."""

    @property
    def key(self) -> str:
        """A name that no other slice has that is offered at the same time."""
        return f"{self.hosts[0].node}/{self.part}" if self.part else self.hosts[0].node


GROUP_SEPARATOR = "+"


def group_name(slices: Sequence[Slice]) -> str:
    """Return the name of a unit's slices in status and on its pods. `Fleet.resolve` reads it."""
    return GROUP_SEPARATOR.join(s.name for s in slices)


@dataclass(frozen=True, slots=True)
class Holder:
    """Another job that has reserved slices of a shape."""

    job: str
    """Its key."""
    slices: int
    leaving: int = 0
    """How many of them its units are leaving."""
    surplus: int | None = None
    """How many of the others it could lose without falling below a minimum. None if that is not known."""
    priority: int = 0


class NearbySlices(NamedTuple):
    """Slices of the accelerator of a shape, but of another topology or size."""

    kind: SliceKind
    total: int
    free: int
    """Free ones among them, for TPUs. 0 for other accelerators."""


class OddNodes(NamedTuple):
    """Nodes with accelerators that a pool which names a kind does not get, all for one reason (`nearby.Oddity`)."""

    what: str
    """What they have, to stand after `has`."""
    remedy: str
    """What a person can do about it. "" if nothing."""
    nodes: int
    first: str


class UsedHosts(NamedTuple):
    """The hosts of one slice that other pods use."""

    slice: str
    hosts: int
    """How many hosts the slice has."""
    used: int
    """How many of them are used."""
    users: tuple[tuple[str, str], ...]
    """(node, namespace/name of the first pod on it) for at most `slice_counting.REASONS` hosts."""


@dataclass(frozen=True, slots=True)
class SliceCounts:
    """Who has the slices of a shape, as seen by one job. No slice is in two of `of_job`, `ending`, `holders`, `unusable_count` and `used`.
    The rest of `total` is free."""

    total: int
    """Slices of this shape in the fleet, whatever their state."""
    of_job: int
    """Slices that the job keeps or gets."""
    ending: int
    """Usable slices that the job has reserved besides, because its pods there have not ended."""
    holders: tuple[Holder, ...]
    """The other jobs that have slices, the one with most first."""
    unusable: tuple[str, ...]
    """Why slices cannot be used now, in a sentence for each, at most `slice_counting.REASONS`."""
    unusable_count: int
    """Slices that cannot be used now, without those that the job keeps or that other jobs have."""
    other_devices: tuple[str, ...] = ()
    """Names of the devices of hosts that would be of this shape if they had exactly the devices that the pool's template requests.
    Incidental devices do not matter."""
    other_devices_count: int = 0
    """How many such hosts there are. `total` does not include them."""
    used: int = 0
    """Slices that are usable and that no job has reserved, but whose accelerators other pods use."""
    used_by: str = ""
    """namespace/name of the first of these pods."""
    used_by_count: int = 0
    """How many such pods there are."""
    used_hosts: UsedHosts | None = None
    """The used hosts of the first slice that other pods use. None if there is none, or if its slices have one host each."""
    hosts: int = 0
    """If not 0, units share hosts: all figures count accelerators, and this is the number of hosts."""
    scattered: tuple[tuple[str, int], ...] = ()
    """(node, free accelerators) of hosts that have some free, but fewer than a unit needs. The host with most comes first."""
    nearby: tuple[NearbySlices, ...] = ()
    """Slices of the same accelerator that do not fit the shape."""
    odd: tuple[OddNodes, ...] = ()
    """Odd nodes with accelerators of the shape's vendor, or of an unknown one."""

    @property
    def held(self) -> int:
        """How many slices other jobs have."""
        return sum(holder.slices for holder in self.holders)


class Fleet(Protocol):
    """What placement and reconcile see of the fleet, on behalf of one job."""

    def free(self, shape: Shape, pool: str) -> Iterator[Slice]:
        """Yield the free slices that units of this shape and pool of the job may take, lazily, in a fixed order."""
        ...

    def slices(self, shape: Shape) -> Iterator[Slice]:
        """Yield all slices of this shape in whatever state, lazily."""
        ...

    def kept(self, shape: Shape, pool: str) -> Iterator[tuple[Slice, str]]:
        """Yield other free slices of this shape, each with the key of the job that it is kept for. The key is "" if it is kept for no job
        or for this one."""
        ...

    def resolve(self, shape: Shape, name: str) -> tuple[Slice, ...] | None:
        """Return the slices that `group_name` named, in whatever state they are. None if one of them is no longer in the fleet."""
        ...

    def usable(self, slice_: Slice) -> bool:
        """Whether every host is there, ready and not cordoned, no disruption is announced, and no other pod uses its accelerators."""
        ...

    def shortage(self, slice_: Slice, needs: Resources) -> str:
        """Return which host of the slice has too little room for a pod with these needs, and who uses it, in words. "" if all have
        enough."""
        ...

    def counts(self, shape: Shape, job: str = "", job_nodes: Mapping[str, int] = NOTHING_TAKEN) -> SliceCounts:
        """Count the slices of this shape. `job_nodes` maps the first node of each slice that `job` keeps or gets to the accelerators that
        it takes there."""
        ...

    def wanted_before(self, shape: Shape, *, starts: bool) -> bool:
        """Whether another job may get a slice of this accelerator that becomes free. If this job `starts`, only jobs that come before it
        may."""
        ...

    def uses(self, node: str) -> tuple[PodUse, ...]:
        """Return the other pods on this node, which are not of units that have reserved it."""
        ...

    def node(self, name: str) -> NodeView | None:
        """Return the node with this name. None if it is not in the fleet."""
        ...

    @property
    def not_ready(self) -> NotReadyCounts: ...

    @property
    def signs(self) -> Collection[Sign]:
        """The signs of the label dialects that its nodes speak."""
        ...


def named_hosts(fleet: Fleet, shape: Shape, name: str) -> list[Host]:
    """Return the hosts of the slices that `group_name` named. Empty without a name, or if a slice is no longer in the fleet."""
    slices = fleet.resolve(shape, name) if name else None
    return [host for slice_ in slices or () for host in slice_.hosts]
