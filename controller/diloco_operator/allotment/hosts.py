"""The divisible hosts of the fleet: which units have parts of which, and what they leave.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.allotment.classes import SliceClasses
from diloco_operator.fleet.inventory import Inventory, Location
from diloco_operator.fleet.occupancy import Shares
from diloco_operator.fleet.resources import Resources, amount_of, left
from diloco_operator.fleet.slices import Slice
from diloco_operator.fleet.use import UnitKey
from diloco_operator.placement.request import JobRequest


@dataclass(frozen=True, slots=True)
class HostUse:
    """A divisible host and what units have of it."""

    location: Location
    whole: Slice
    """Its room: what other pods leave."""
    units: Mapping[UnitKey, Resources]
    """What units that are there to stay need."""
    now: Resources
    """What other pods and all units leave, those that are leaving included."""

    @property
    def rest(self) -> Resources:
        """What is free, or will be. Less than nothing: other pods have taken what units need."""
        return left(self.whole.room, self.units.values())

    @property
    def accelerators_left(self) -> int:
        """Return the accelerators of what is free, or will be."""
        return max(0, amount_of(self.rest, CATALOGUE[self.location[0].accelerator].resource))

    @property
    def in_parts(self) -> bool:
        """Whether it is more than one place: units have parts of it, or other pods do. A host with one unit that has all accelerators is
        given and left as a whole."""
        return self.whole.in_part or len(self.units) > 1 or (len(self.units) == 1 and self.accelerators_left > 0)


def shares_of(request: JobRequest | None) -> Shares:
    """Find what the units of a job need that share hosts."""
    if request is None:
        return {}
    found = dict(request.shared)
    for pool in request.pools:
        # Only of shapes that divide: the others take whole hosts, of which no one else gets a part.
        if pool.requirements.shape.divides:
            found |= {(node, unit.name): pool.requirements.needs for unit in pool.units for node in unit.nodes}
    return found


class SharedHosts:
    """Who has which parts of the divisible hosts. The allotment keeps it up to date; for one thread."""

    def __init__(self, fleet: Inventory, classes: SliceClasses) -> None:
        self._fleet = fleet
        self._classes = classes
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> who has parts of it."""
        self._hosts: dict[Location, HostUse] = {}
        """Those that no unit has as a whole."""
        self._in_parts: dict[Location, HostUse] = {}
        """Those among them in parts."""

    def assign(self, job: str, before: Shares, now: Shares) -> set[str]:
        """Note that the units of a job have these parts now. Returns the nodes that this changes."""
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
        """Read one host anew. `whole`: units that take all of it are there to stay. Returns the bits of the requirements that its change
        concerns."""
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
        """Return the host there; None: a unit has all of it, and may share it with none."""
        return self._hosts.get(location)

    def within(self, component: int) -> Iterator[HostUse]:
        """Find hosts in parts that meet some of these requirements."""
        return (host for location, host in self._in_parts.items() if self._mask(location, changed=True) & component)


def how_many(needs: Resources, room: Resources) -> int:
    """Count the pods with these needs that fit into the room."""
    names = ("cpu", "memory", "pods", *(name for name, _ in needs.devices))
    return max(0, min((amount_of(room, name) // amount_of(needs, name) for name in names if amount_of(needs, name)), default=0))
