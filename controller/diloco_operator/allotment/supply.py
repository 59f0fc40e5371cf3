"""The fleet as a decision reads it: as it is, and as it will be once some units have left their slices. Pure.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from diloco_operator.allotment.classes import Located, SliceClass, SliceClasses
from diloco_operator.allotment.hosts import HostUse, SharedHosts
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import is_divisible
from diloco_operator.fleet.use import UnitKey
from diloco_operator.placement.request import HeldUnit, JobRequest
from diloco_operator.placement.requirements import SliceRequirements


class Supply(Protocol):
    """The usable slices, and which units have parts of hosts."""

    def within(self, component: int) -> Iterator[SliceClass]:
        """Yield the classes that meet some of these requirements."""

    def class_at(self, location: Location) -> SliceClass | None:
        """See `SliceClasses.class_at`."""

    def located(self, locations: Iterable[Location]) -> list[Located]:
        """See `SliceClasses.located`."""

    def slices_of(self, unit: HeldUnit) -> list[Located]:
        """Return the usable slices of a unit."""

    def number(self, requirements: SliceRequirements) -> int:
        """See `SliceClasses.number`."""

    def requirements(self, number: int) -> SliceRequirements:
        """See `SliceClasses.requirements`."""

    def host(self, location: Location) -> HostUse | None:
        """See `SharedHosts.at`."""

    def hosts(self, component: int) -> Iterator[HostUse]:
        """See `SharedHosts.within`."""


class PresentSupply:
    """The fleet as it is."""

    def __init__(self, classes: SliceClasses, shared: SharedHosts, locate: Callable[[Iterable[str]], Iterable[Location]]) -> None:
        """`locate` returns the locations of the slices on some nodes."""
        self._classes = classes
        self._locate = locate
        self.class_at = classes.class_at
        self.located = classes.located
        self.number = classes.number
        self.requirements = classes.requirements
        self.host = shared.at
        self.hosts = shared.within

    def within(self, component: int) -> Iterator[SliceClass]:
        return (class_ for class_ in self._classes if class_.mask & component)

    def slices_of(self, unit: HeldUnit) -> list[Located]:
        return self._classes.located(self._locate(unit.nodes))


class LaterSupply:
    """The fleet once some units have left: what they had is being left, or room on a host in parts."""

    def __init__(self, supply: Supply, requests: Iterable[JobRequest], gone: AbstractSet[UnitKey]) -> None:
        self._supply = supply
        self.number = supply.number
        self.requirements = supply.requirements
        self._hosts: dict[Location, HostUse] = {}
        """The hosts that these units left, as they are then."""
        self._copies: dict[SliceClass, SliceClass] = {}
        """Class with slices that they left -> the class as it is then."""
        slices_of_gone = {
            (request.job, unit.name): self._supply.slices_of(unit)
            for request in requests
            for pool in request.pools
            for unit in pool.units
            if (request.job, unit.name) in gone
        }
        for key, slices in slices_of_gone.items():
            for class_, location in slices:
                self._leave(key, class_, location)

    def _leave(self, key: UnitKey, class_: SliceClass, location: Location) -> None:
        if is_divisible(location[0].accelerator):
            slice_ = class_.members[location]
            use = self.host(location) or HostUse(location, slice_, {}, slice_.room)
            use = self._hosts[location] = replace(use, units={each: needs for each, needs in use.units.items() if each != key})
            if use.units or use.in_parts:
                return
        if class_ not in self._copies:
            self._copies[class_] = replace(class_, free=list(class_.free), leaving=set(class_.leaving))
        self._copies[class_].note(location, free=False, leaving=True)

    def within(self, component: int) -> Iterator[SliceClass]:
        return (self._copies.get(class_, class_) for class_ in self._supply.within(component))

    def class_at(self, location: Location) -> SliceClass | None:
        class_ = self._supply.class_at(location)
        return self._copies.get(class_, class_) if class_ is not None else None

    def located(self, locations: Iterable[Location]) -> list[Located]:
        return [(self._copies.get(class_, class_), location) for class_, location in self._supply.located(locations)]

    def slices_of(self, unit: HeldUnit) -> list[Located]:
        return [(self._copies.get(class_, class_), location) for class_, location in self._supply.slices_of(unit)]

    def host(self, location: Location) -> HostUse | None:
        return self._hosts.get(location) or self._supply.host(location)

    def hosts(self, component: int) -> Iterator[HostUse]:
        for host in self._supply.hosts(component):
            if host.location not in self._hosts:
                yield host
        for location, host in self._hosts.items():
            if host.in_parts and (class_ := self.class_at(location)) is not None and class_.mask & component:
                yield host


def staying(request: JobRequest) -> JobRequest:
    """Return the request as if none of its units could be asked to leave."""
    return replace(
        request, pools=tuple(replace(pool, units=tuple(unit._replace(settling=True) for unit in pool.units)) for pool in request.pools)
    )


def without(request: JobRequest, gone: AbstractSet[UnitKey]) -> JobRequest:
    """Return the request as it will be once these units have left and want other slices."""
    pools = []
    for pool in request.pools:
        units = tuple(unit for unit in pool.units if (request.job, unit.name) not in gone)
        pools.append(replace(pool, units=units, wanted=pool.wanted + len(pool.units) - len(units)))
    return replace(request, pools=tuple(pools), runs=request.runs or any(pool.units for pool in request.pools))
