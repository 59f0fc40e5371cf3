"""Parts of divisible hosts: what each unit has of a host, what is left of it, and how that is divided for units that want less. Pure.

The solver knows slices only. A part is a slice of a smaller host, so it is given, kept and revoked like any other.

See docs/decisions/0168-shared-hosts.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.resources import Resources, amount_of, left
from diloco_operator.fleet.slices import Slice
from diloco_operator.fleet.use import UnitKey

type Division = Mapping[Location, Resources]
"""Part -> what each unit needs for which it is divided."""


class Part(NamedTuple):
    """One part of a host."""

    slice_: Slice
    free: bool = False
    leaving: bool = False
    """It will be free: processes on it have not ended."""
    unit: UnitKey | None = None
    """Who has it."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """A divisible host and what units have of it."""

    location: Location
    whole: Slice
    """Its room: what other pods leave."""
    units: Mapping[UnitKey, Resources]
    """What units that are there to stay need. Together they fit."""
    now: Resources
    """What other pods and all units leave, those that are leaving included."""

    @property
    def resource(self) -> str:
        return CATALOGUE[self.location[0].accelerator].resource

    def parts(self, division: Division) -> dict[Location, Part]:
        """All parts, divided as asked. With more than one part, the first stands for the host as a whole: it cannot be taken, and
        connects those that compete for the host in parts with those that want all of it."""
        found = dict(self._parts(division))
        if len(found) == 1:
            return found
        kind, (pool, node) = self.location
        return {(kind, (pool, f"{node}/all")): Part(replace(self.whole, part="all")), **found}

    def _parts(self, division: Division) -> Iterator[tuple[Location, Part]]:
        rest = left(self.whole.room, self.units.values())
        for (job, unit), needs in sorted(self.units.items()):
            size = amount_of(needs, self.resource)
            if size:
                alone = len(self.units) == 1 and amount_of(rest, self.resource) <= 0
                room = Resources(
                    needs.cpu + max(0, rest.cpu), needs.memory + max(0, rest.memory), needs.pods + max(0, rest.pods), needs.devices
                )
                yield from self._divided(*self._part(f"{job}/{unit}", size, room, in_part=not alone, unit=(job, unit)), division)
        size = amount_of(rest, self.resource)
        if size <= 0:
            return
        name = f"{zlib.crc32(repr(sorted(self.units)).encode()):08x}" if self.units else ""
        is_free = rest.fits(self.now)
        found = self._part(name, size, rest, in_part=self.whole.in_part or bool(self.units), free=is_free, leaving=not is_free)
        yield from self._divided(*found, division)

    def _part(
        self,
        name: str,
        size: int,
        room: Resources,
        *,
        in_part: bool,
        free: bool = False,
        leaving: bool = False,
        unit: UnitKey | None = None,
    ) -> tuple[Location, Part]:
        kind, (pool, _) = self.location
        smaller = kind._replace(chips_per_host=min(size, kind.chips_per_host)) if in_part else kind
        slice_ = replace(self.whole, kind=smaller, room=room, part=name, in_part=in_part)
        return (smaller, (pool, slice_.key)), Part(slice_, free, leaving, unit)

    def _divided(self, location: Location, part: Part, division: Division) -> Iterator[tuple[Location, Part]]:
        needs = division.get(location)
        if needs is None:
            yield location, part
            return
        count = how_many(needs, part.slice_.room)
        size = amount_of(needs, self.resource)
        room = _share(part.slice_.room, count, self.resource, size)
        for index in range(count):
            is_free = part.unit is None and times(needs, index + 1).fits(self.now)
            name = f"{part.slice_.part}#{index}"
            each = self._part(name, size, room, in_part=True, free=is_free, leaving=part.unit is None and not is_free, unit=part.unit)
            yield from self._divided(*each, division)


def worth_dividing(part: Part, needs: Resources, now: Resources) -> bool:
    """Whether more than one unit with these needs finds room in it, or one at once in what others are about to leave."""
    count = how_many(needs, part.slice_.room)
    return count > 1 or (count == 1 and part.leaving and needs.fits(now))


def how_many(needs: Resources, room: Resources) -> int:
    """How many pods with these needs fit into the room."""
    names = ("cpu", "memory", "pods", *(name for name, _ in needs.devices))
    return max(0, min(amount_of(room, name) // amount_of(needs, name) for name in names if amount_of(needs, name)))


def times(needs: Resources, count: int) -> Resources:
    return Resources(
        needs.cpu * count, needs.memory * count, needs.pods * count, tuple((name, amount * count) for name, amount in needs.devices)
    )


def _share(room: Resources, count: int, resource: str, size: int) -> Resources:
    """An equal share of the room, with so many accelerators."""
    devices = tuple((name, size if name == resource else amount // count) for name, amount in room.devices)
    return Resources(room.cpu // count, room.memory // count, room.pods // count, devices)
