"""What the flow can give: slices, counted in stocks that nothing in it tells apart. Pure.

A host that units have in parts is a stock of its own. Its room counts points, of which a unit takes as many as it needs of the resource
that it needs most of: units that fit by points fit together. Whole hosts of which units may take parts are one stock where each size is a
multiple of the next smaller one, or units of several hosts want them: then each unit takes one part of as many as fit, and what fits by
points can be divided between the hosts. Else each of them is a stock.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from diloco_operator.allotment.classes import Located, SliceClass, bits
from diloco_operator.allotment.hosts import HostUse, how_many
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.resources import UNLISTED, Resources, amount_of
from diloco_operator.fleet.slices import Slice, SliceKind, is_divisible
from diloco_operator.placement.requirements import SliceRequirements

ROOM = 5040
"""Points of a whole host: a half, a third … a tenth, and a sixteenth are whole numbers of them."""
type Face = tuple[SliceKind, int, tuple[tuple[int, Hashable], ...]]
"""Kind, and of the requirements with which units look for slices: their bits, and domains of units of several slices."""


class Parts(NamedTuple):
    """What units that take parts of a host get of it. Hosts that differ in nothing else, as by what other pods leave of their memory, are
    the same to the flow."""

    sizes: tuple[int, ...]
    """Points that each takes."""
    counts: tuple[int, ...]
    """How many find room."""
    alike: bool
    """Such hosts are one stock: what fits by points can be divided between them."""


type Barred = Mapping[Location, frozenset[int]]
"""Host in parts -> requirements of units for which there is no room on it, although the points allow it."""


@dataclass(slots=True, eq=False)
class Stock:
    """Slices that are the same to all requirements with which units look for some now."""

    kind: SliceKind
    mask: int
    """The bits of the requirements that they meet."""
    each: int = 1
    """Points of one slice."""
    host: HostUse | None = None
    """The host, of one in parts."""
    room_of_each: Resources = Resources()  # noqa: RUF009 -- immutable
    """Room of a host that may be divided."""
    free: list[Location] = field(default_factory=list)
    """In the order in which the inventory offers them."""
    leaving: list[Location] = field(default_factory=list)
    members: list[Mapping[Location, Slice]] = field(default_factory=list)
    """Members of the classes that its slices are from. They are large, and no copies."""
    held: int = 0
    """Points that units have which the flow may ask to leave."""
    first: Location | None = None
    """One of its slices: that which names it."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Requirements -> points of a unit."""
    name: str = ""
    hub: str = ""
    unit: int = 1
    """Points that count as one for the flow."""
    for_group: bool = False
    """It is for a unit of several slices: no small one is new in it, and units of other minima stay elsewhere, if they can."""
    is_spread: bool = False
    """It is what one unit has of several stocks."""

    def add(self, class_: SliceClass, places: Iterable[Location], *, leaving: bool) -> None:
        """Add slices of the class, in the order of its free ones."""
        (self.leaving if leaving else self.free).extend(places)
        if not self.members or self.members[-1] is not class_.members:
            self.members.append(class_.members)

    def slice_at(self, location: Location) -> Slice:
        """Return the slice that is there."""
        return next(members[location] for members in self.members if location in members)

    def meets(self, number: int) -> bool:
        """Return whether a new unit may take some of it."""
        return bool(self.mask >> number & 1)

    @property
    def room(self) -> int:
        """Points that are free, will be, or are held."""
        return (len(self.free) + len(self.leaving)) * self.each + self._rest() + self.held

    def _rest(self) -> int:
        """Return points that are left of a host in parts. Where one more unit fits although points are few, as many as it takes."""
        if self.host is None:
            return 0
        # Units that need different resources may come to more points than there are: all GPUs for one, most CPUs for another.
        rest = max(0, ROOM - sum(points(needs, self.host.whole.room) for needs in self.host.units.values()))
        for number, needs in self._fitting.items():
            rest = max(rest, how_many(needs, self.host.rest) * self.sizes[number])
        return rest

    _fitting: dict[int, Resources] = field(default_factory=dict)
    """Requirements of units that take parts -> what one needs."""

    def note(self, number: int, requirements: SliceRequirements) -> int:
        """Return the points that a unit with these requirements takes."""
        if number in self.sizes:
            return self.sizes[number]
        shape, size = requirements.shape, requirements.shape.slots * self.each
        if self.host is not None:
            size = points(requirements.needs, self.host.whole.room) if shape.divides else self._all()
        elif shape.divides and self.room_of_each != Resources() and (count := how_many(requirements.needs, self.room_of_each)):
            size = self.each // count
        if shape.divides and self.host is not None and self.meets(number):
            self._fitting[number] = requirements.needs
        self.sizes[number] = max(1, size)
        return self.sizes[number]

    def _all(self) -> int:
        """Return points of the host, those of its units included."""
        assert self.host is not None
        held = sum(points(needs, self.host.whole.room) for needs in self.host.units.values())
        return max(ROOM, held)

    @property
    def accelerators_left(self) -> int:
        """Return the accelerators that are left of a host in parts."""
        return self.host.accelerators_left if self.host is not None else self.kind.chips_per_host


def points(needs: Resources, room: Resources) -> int:
    """Return what a pod with these needs takes of a host with this room, of `ROOM`."""
    most = 1
    for name in ("cpu", "memory", "pods", *(name for name, _ in needs.devices)):
        wanted, has = amount_of(needs, name), amount_of(room, name)
        if wanted and has < UNLISTED // 2:
            most = max(most, -(-wanted * ROOM // has) if has > 0 else ROOM)
    return most


class Stocks:
    """The stocks of a fleet. First all units that hold something `note` it, then `finish` names the stocks."""

    def __init__(
        self,
        classes: Iterable[SliceClass],
        requirements: Callable[[int], SliceRequirements],
        hosts: Callable[[Location], HostUse | None],
        barred: Barred,
        wanted: int,
        groups: Sequence[Sequence[Located]] = (),
    ) -> None:
        """Sort slices into stocks by the bits of the requirements that tell them apart, `wanted`. `groups`: slices of several stocks that
        one unit may have together, each a stock of its own."""
        self._requirements = requirements
        self._hosts = hosts
        self._barred = barred
        self._wanted = wanted
        self._faces: dict[SliceClass, Face] = {}
        self._found: dict[tuple[Face, object], Stock] = {}
        self._divided: dict[Face, list[Resources]] = {}
        """What units need that may take parts of its slices."""
        self._parts: dict[tuple[Face, Resources], Parts] = {}
        """See `_parts_of`."""
        self._grouped: dict[Location, Stock] = {}
        for group in groups:
            stock = self._together(group)
            stock.for_group = True
            stock.mask = sum(1 << number for number in bits(stock.mask) if requirements(number).shape.slots > 1)
            for class_, location in group:
                if location in class_.leaving or class_.is_free(location):  # else a unit has it
                    stock.add(class_, (location,), leaving=location in class_.leaving)
            self._grouped |= dict.fromkeys((location for _, location in group), stock)
        for class_ in classes:
            leaving = sorted(class_.leaving - self._grouped.keys())
            free = [location for location in class_.free if location not in self._grouped] if self._grouped else class_.free
            for places, kept in ((free, False), (leaving, True)):
                if places and self._key(class_, places[0]) is None:  # all are in one stock
                    self._put(class_, places[0]).add(class_, places, leaving=kept)
                    continue
                for location in places:
                    stock = self._put(class_, location)
                    if stock.host is None:
                        stock.add(class_, (location,), leaving=kept)

    def at(self, class_: SliceClass, location: Location) -> Stock:
        """Return the stock of this slice of the class."""
        return self._put(class_, location)

    def spread(self, slices: Sequence[Located]) -> Stock:
        """Return a stock of its own for a unit whose slices are of several. A unit that can use only some of them takes the place of the
        whole: it is not counted what it leaves to others."""
        stock = self._together(slices)
        stock.is_spread = True
        for number in bits(self._wanted & ~stock.mask):
            requirements = self._requirements(number)
            places = Counter(class_.domains.get(number) for class_, location in slices if self._put(class_, location).meets(number))
            # It needs them within one domain: enough of them in two are no place for a unit.
            if max(places.values(), default=0) >= requirements.shape.slots:
                stock.mask |= 1 << number
                stock.sizes[number] = len(slices) * stock.each
        return stock

    def _together(self, slices: Sequence[Located]) -> Stock:
        """Return the stock of slices that a unit can only have together; it meets what all of them meet."""
        parts = [self._put(class_, location) for class_, location in slices]
        mask = parts[0].mask
        for part in parts:
            mask &= part.mask
        for number in bits(mask):
            # A unit's hosts exchange every gradient: slices of two domains are none for who asks for one.
            if len({class_.domains.get(number) for class_, _ in slices}) > 1:
                mask &= ~(1 << number)
        locations = [location for _, location in slices]
        key = ((parts[0].kind, 0, ()), tuple(locations))
        stock = Stock(parts[0].kind, mask, parts[0].each, room_of_each=parts[0].room_of_each, first=min(locations))
        return self._found.setdefault(key, stock)

    def _put(self, class_: SliceClass, location: Location) -> Stock:
        if location in self._grouped:
            return self._grouped[location]
        place = self._face(class_), self._key(class_, location)
        stock, room = self._found.get(place), class_.members[location].room
        if stock is None:
            stock = self._found[place] = self._new(place[0], location, place[1])
        if stock.first is None or location[1] < stock.first[1]:
            stock.first = location
        if isinstance(place[1], Parts):
            # Any of them would do; the least one does not depend on the order in which they came.
            stock.room_of_each = min(stock.room_of_each, room) if stock.room_of_each != Resources() else room
        return stock

    def _face(self, class_: SliceClass) -> Face:
        if class_ not in self._faces:
            domains = tuple(sorted((number, domain) for number, domain in class_.domains.items() if self._wanted >> number & 1))
            self._faces[class_] = class_.kind, class_.mask & self._wanted, domains
        return self._faces[class_]

    def _key(self, class_: SliceClass, location: Location) -> object:
        if not is_divisible(class_.kind.accelerator):
            return None
        host = self._hosts(location)
        if host is not None and host.in_parts:
            return location
        face = self._face(class_)
        if face not in self._divided:
            self._divided[face] = [found.needs for number in bits(face[1]) if (found := self._requirements(number)).shape.divides]
        if not (needs := self._divided[face]):
            return None
        room = class_.members[location].room
        if (face, room) not in self._parts:
            self._parts[face, room] = self._parts_of(face, room, needs)
        parts = self._parts[face, room]
        return parts if host is None or parts.alike else location

    def _parts_of(self, face: Face, room: Resources, needs: Sequence[Resources]) -> Parts:
        sizes = tuple(points(each, room) for each in needs)
        groups = any(self._requirements(number).shape.slots > 1 for number in bits(face[1]))
        multiples = not any(larger % smaller for smaller, larger in pairwise(sorted({*sizes, ROOM})))
        return Parts(sizes, tuple(how_many(each, room) for each in needs), groups or multiples)

    def _new(self, face: Face, location: Location, key: object) -> Stock:
        kind, mask, _ = face
        if not is_divisible(kind.accelerator):
            return Stock(kind, mask)
        host = self._hosts(location) if key == location else None
        if host is None:
            return Stock(kind, mask, ROOM)
        for number in self._barred.get(location, ()):
            mask &= ~(1 << number)
        for number in bits(mask):
            # A unit of several hosts takes whole ones, and the flow must not count a rest of this one for it.
            if self._requirements(number).shape.slots > 1:
                mask &= ~(1 << number)
        return Stock(kind, mask, ROOM, host)

    def hosts(self, hosts: Iterable[HostUse], class_at: Callable[[Location], SliceClass | None]) -> None:
        """Make stocks of hosts in parts."""
        for host in hosts:
            if (class_ := class_at(host.location)) is not None:
                self._put(class_, host.location)

    def finish(self, component: int) -> list[Stock]:
        """Return all stocks, with names that do not depend on the order in which jobs came: the tightest kind first, then what fewer
        requirements can use; those for groups last, as of equal places a minimum keeps the first."""
        ordered = sorted(self._found.values(), key=lambda stock: (stock.kind, stock.mask.bit_count(), stock.first or ("", ("", ""))))
        stocks = sorted(ordered, key=lambda stock: stock.for_group)
        hubs: dict[object, list[Stock]] = {}
        for index, stock in enumerate(stocks):
            stock.name = f"{index:06d}"
            if len(stock.members) > 1:  # the slices of one class are in order
                stock.free.sort(key=lambda location: location[1])
            for number in bits(stock.mask & component):
                stock.note(number, self._requirements(number))
            key = (stock.kind, stock.mask, stock.host is not None and stock.accelerators_left, tuple(sorted(stock.sizes.items())))
            hubs.setdefault(key, []).append(stock)
        for found in hubs.values():
            unit = gcd(*(size for stock in found for size in stock.sizes.values())) if found[0].sizes else 1
            for stock in found:
                stock.hub, stock.unit = f"hub {found[0].name}", unit
        return stocks
