"""The divisible hosts of the fleet: which units have parts of them, and what is left.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.allotment.classes import SliceClasses
from diloco_operator.fleet.inventory import Inventory, Location
from diloco_operator.fleet.occupancy import HostParts
from diloco_operator.fleet.resources import Resources, amount_of, left
from diloco_operator.fleet.slices import Slice
from diloco_operator.fleet.use import UnitKey
from diloco_operator.placement.request import JobRequest


@dataclass(frozen=True, slots=True)
class HostUse:
    """A divisible host and what units have of it."""

    location: Location
    whole: Slice
    """The host as one slice. Its room is what other pods leave."""
    units: Mapping[UnitKey, Resources]
    """What each unit needs that is to stay on the host."""
    now: Resources
    """What other pods and all units leave free. Units that are leaving still count."""

    @property
    def rest(self) -> Resources:
        """What is free, or will be. Amounts are negative if other pods have taken what units need."""
        return left(self.whole.room, self.units.values())

    @property
    def accelerators_left(self) -> int:
        """How many accelerators are free, or will be."""
        return max(0, amount_of(self.rest, CATALOGUE[self.location[0].accelerator].resource))

    @property
    def in_parts(self) -> bool:
        """Whether units or other pods have parts of the host. One unit that has all accelerators takes and leaves it as a whole."""
        return self.whole.in_part or len(self.units) > 1 or (len(self.units) == 1 and self.accelerators_left > 0)


def parts_of(request: JobRequest | None) -> HostParts:
    """Return what units of the job need on hosts that they may share. Empty if there is no request."""
    if request is None:
        return {}
    parts = dict(request.shared)
    for pool in request.pools:
        # A unit of another shape takes whole hosts, and no other unit gets a part of these.
        if pool.requirements.shape.divides:
            parts |= {(node, unit.name): pool.requirements.needs for unit in pool.units for node in unit.nodes}
    return parts


class SharedHosts:
    """Which units have parts of the divisible hosts. The allotment keeps it up to date. Not thread-safe."""

    def __init__(self, fleet: Inventory, classes: SliceClasses) -> None:
        self._fleet = fleet
        self._classes = classes
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> what units have of it."""
        self._hosts: dict[Location, HostUse] = {}
        """Hosts that no unit has as a whole."""
        self._in_parts: dict[Location, HostUse] = {}
        """The hosts among `_hosts` that are in parts."""

    def assign(self, job: str, before: HostParts, now: HostParts) -> set[str]:
        """Record that the units of a job now have these parts. Returns the nodes on which that is a change."""
        changed = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
        for node, unit in changed:
            units = self._units.setdefault(node, {})
            if (needs := now.get((node, unit))) is not None:
                units[job, unit] = needs
            else:
                del units[job, unit]
            if not units:
                del self._units[node]
        return {node for node, _ in changed}

    def read(self, location: Location, *, whole: bool) -> int:
        """Read one host anew. Returns the bits of the requirements that a change of it concerns.

        Args:
            whole: whether a unit that takes all of the host is to stay on it.
        """
        before = self._hosts.pop(location, None)
        self._in_parts.pop(location, None)
        slice_ = self._fleet.slice_at(location)
        if slice_ is None or not self._fleet.usable(slice_):
            return self._classes.remove(location)
        if whole:
            return self._classes.put(location, slice_, free=False, leaving=False) | self._mask(location, before is not None)
        use = HostUse(location, slice_, dict(self._units.get(slice_.hosts[0].node, {})), self._fleet.room_left(slice_))
        self._hosts[location] = use
        if use.in_parts:
            self._in_parts[location] = use
        is_held, is_free = use.in_parts or bool(use.units), slice_.room.fits(use.now)
        mask = self._classes.put(location, slice_, free=is_free and not is_held, leaving=not is_free and not is_held)
        return mask | self._mask(location, before != use)

    def _mask(self, location: Location, changed: bool) -> int:
        class_ = self._classes.class_at(location) if changed else None
        return class_.mask if class_ is not None else 0

    def at(self, location: Location) -> HostUse | None:
        """Return the host at a location. None if a unit takes all of it and shares with none, or if it is not usable."""
        return self._hosts.get(location)

    def within(self, component: int) -> Iterator[HostUse]:
        """Yield the hosts in parts that meet some of these requirements."""
        return (host for location, host in self._in_parts.items() if self._mask(location, changed=True) & component)


def how_many(needs: Resources, room: Resources) -> int:
    """Return how many pods with these needs fit into the room."""
    names = ("cpu", "memory", "pods", *(name for name, _ in needs.devices))
    return max(0, min((amount_of(room, name) // amount_of(needs, name) for name in names if amount_of(needs, name)), default=0))
