"""The divisible hosts of the fleet, in parts: who has which, and how the rest is divided at the moment.

How a host is divided follows from the present requests alone, and anew each time: units take places on whole hosts first, as the order
says; a host that a unit of less took is divided for as many as wait; and so on until nothing changes. So a host is divided only for whom
the order prefers, and no more hosts than are needed.

See docs/decisions/0168-shared-hosts.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.allotment.classes import SliceClass, SliceClasses
from diloco_operator.allotment.parts import HostUse, Part, how_many, worth_dividing
from diloco_operator.allotment.request import AllotmentRequest
from diloco_operator.allotment.solve import HostInParts, Outcome
from diloco_operator.fleet.inventory import Inventory, Location, Shares
from diloco_operator.fleet.resources import Resources, amount_of, left
from diloco_operator.fleet.use import UnitKey


def shares_of(request: AllotmentRequest | None) -> Shares:
    """What the units of a job need that share hosts."""
    if request is None:
        return {}
    found = dict(request.shared)
    for pool in request.pools:
        if pool.requirements.shape.divides:
            found |= {(node, unit.name): pool.requirements.needs for unit in pool.units for node in unit.nodes}
    return found


class SharedHosts:
    """Kept up to date by the allotment, for one thread."""

    def __init__(self, fleet: Inventory, classes: SliceClasses) -> None:
        self._fleet = fleet
        self._classes = classes
        self._units: dict[str, dict[UnitKey, Resources]] = {}
        """Node -> who has parts of it."""
        self._parts: dict[Location, dict[Location, Part]] = {}
        """Host -> its parts."""
        self._hosts: dict[Location, Location] = {}
        """Part -> its host."""
        self._divisions: dict[Location, dict[Location, Resources]] = {}
        """Host -> its parts that are divided."""

    def assign(self, job: str, before: Shares, now: Shares) -> set[str]:
        """The units of a job have these parts now. Returns the nodes that this changes."""
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
        now = self._present(location, whole=whole)
        mask = 0
        for part in self._parts.pop(location, {}).keys() - now.keys():
            mask |= self._classes.remove(part)
            del self._hosts[part]
        for part, found in now.items():
            mask |= self._classes.put(part, found.slice_, free=found.free, leaving=found.leaving)
            self._hosts[part] = location
        if now:
            self._parts[location] = now
        return mask

    def mask(self, location: Location) -> int:
        """The bits of the requirements that the host, or a part of it, meets."""
        mask = 0
        for part in self._parts.get(location, ()):
            if (class_ := self._classes.class_at(part)) is not None:
                mask |= class_.mask
        return mask

    def _present(self, location: Location, *, whole: bool) -> dict[Location, Part]:
        slice_ = self._fleet.slice_at(location)
        if slice_ is None or not self._fleet.usable(slice_):
            return {}
        if whole:
            return {location: Part(slice_)}
        units = self._units.get(slice_.hosts[0].node, {})
        return HostUse(location, slice_, units, self._fleet.room_left(slice_)).parts(self._divisions.get(location, {}))

    def has_parts(self, node: str) -> bool:
        """Whether units have parts of it."""
        return node in self._units

    def classes_of(self, job: str, unit: str, nodes: Iterable[str]) -> list[SliceClass]:
        """Of the parts that a unit has, one for each."""
        locations = (self._fleet.location(node) for node in nodes)
        mine = (part for at in locations if at is not None for part, each in self._parts.get(at, {}).items() if each.unit == (job, unit))
        return [class_ for part in mine if (class_ := self._classes.class_at(part)) is not None]

    def in_parts(self, component: int) -> list[HostInParts]:
        """The hosts of these requirements that units have in parts, as long as what is left is not divided."""
        found = []
        for host, parts in self._parts.items():
            whole = next(iter(parts)) if len(parts) > 1 else None
            class_ = self._classes.class_at(whole) if whole is not None else None
            units = self._units.get(host[1][1])
            if class_ is None or not class_.mask & component or not units:
                continue
            rest = [part for part, each in parts.items() if each.unit is None and part != whole]
            slice_ = self._fleet.slice_at(host)
            if slice_ is not None and len(rest) <= 1:
                rest_class = self._classes.class_at(rest[0]) if rest else None
                resource, room = CATALOGUE[host[0].accelerator].resource, left(slice_.room, units.values())
                sizes = sorted((amount_of(needs, resource) for needs in units.values()), reverse=True)
                found.append(
                    HostInParts(
                        class_.mask,
                        units,
                        room,
                        rest_class,
                        amount_of(room, resource),
                        sizes,
                        leaving=any(parts[part].leaving for part in rest),
                    )
                )
        return found

    # --- dividing ----------------------------------------------------------------------------------------------------------
    def unite(self, component: int) -> None:
        """No host of these requirements is divided any more."""
        for host in list(self._divisions):
            if any(class_.mask & component for part in self._parts.get(host, ()) if (class_ := self._classes.class_at(part)) is not None):
                del self._divisions[host]
                self.read(host, whole=False)

    def divide(self, outcome: Outcome) -> bool:
        """Divide hosts of which units took places that are larger than they need. False: there is nothing to divide."""
        revoked = {(job, unit) for job, allotted in outcome.allotted.items() for unit in allotted.revoked}
        changed: set[Location] = set()
        for (number, _), classes in outcome.taken.items():
            requirements = self._classes.requirements(number)
            if requirements.shape.divides:
                places = [each for class_, count in classes.items() for each in self._worth(class_, count, revoked, requirements.needs)]
                waiting = len(places) + outcome.refused.get(number, 0)
                for part, count in places:
                    host = self._hosts[part]
                    if waiting > 0 and part not in self._divisions.get(host, {}):
                        self._divisions.setdefault(host, {})[part] = requirements.needs
                        changed.add(host)
                    waiting -= count
        for host in changed:
            self.read(host, whole=False)
        return bool(changed)

    def _worth(self, class_: SliceClass, count: int, revoked: Collection[UnitKey], needs: Resources) -> Iterator[tuple[Location, int]]:
        """Parts of this class that units took and that are worth dividing, each with the units that it has room for."""
        held = (part for part in class_.members if revoked and self._part(part).unit in revoked)
        for part in islice(chain(class_.free, sorted(class_.leaving), held), count):
            found = self._part(part)
            if worth_dividing(found, needs, self._fleet.room_left(found.slice_)):
                yield part, how_many(needs, found.slice_.room)

    def _part(self, part: Location) -> Part:
        return self._parts[self._hosts[part]][part]
