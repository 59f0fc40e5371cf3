"""What the flow can give: slices, counted in stocks. To the flow, all slices of one stock are the same. Pure.

A host that units have in parts is a stock of its own. Its room is counted in points, `ROOM` in all. A unit takes the largest share that it
needs of any resource, in points; so units whose points fit together fit onto the host.

Whole hosts that units may divide are one stock if each size in points is a multiple of the next smaller one, or if units of several hosts
want them. A unit then takes the n-th part of a host on which n such units fit, and units whose points fit can be divided between the hosts.
Otherwise each of these hosts is a stock.

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
"""Points of a whole host. A half, a third … a tenth, and a sixteenth of it are whole numbers."""
type Traits = tuple[SliceKind, int, tuple[tuple[int, Hashable], ...]]
"""How slices look to the units that want some now: their kind, the bits of the requirements that they meet, and (requirement, domain) for
units of several slices."""


class Parts(NamedTuple):
    """What a host means to the units that may take parts of it, one entry per requirement. Hosts with equal `Parts` are the same to the
    flow, even if other pods leave different amounts of memory on them."""

    sizes: tuple[int, ...]
    """Points that a unit takes."""
    counts: tuple[int, ...]
    """How many such units fit."""
    alike: bool
    """Whether such hosts are one stock: units whose points fit can be divided between them."""


type Barred = Mapping[Location, frozenset[int]]
"""Host in parts -> requirements of units that do not fit on it, although their points do."""


@dataclass(slots=True, eq=False)
class Stock:
    """Slices that are the same to every unit that wants some now."""

    kind: SliceKind
    mask: int
    """The bits of the requirements with which new units may take some of it."""
    points_per_slice: int = 1
    host: HostUse | None = None
    """The host, if the stock is a host in parts; else None."""
    room_of_each: Resources = Resources()  # noqa: RUF009 -- immutable
    """Room of one host, if its hosts may be divided."""
    free: list[Location] = field(default_factory=list)
    """Free slices, in the order in which the inventory offers them."""
    leaving: list[Location] = field(default_factory=list)
    members: list[Mapping[Location, Slice]] = field(default_factory=list)
    """Members of the classes that its slices are from: not copied, because they are large."""
    held: int = 0
    """Points of the units that the flow may ask to leave."""
    first: Location | None = None
    """The first of its slices. It decides the place of the stock in the order of names."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of a requirement -> points that a unit with it takes."""
    name: str = ""
    hub: str = ""
    points_per_room: int = 1
    """How many points are one unit of room in the flow."""
    for_group: bool = False
    """The stock is a group of hosts for one unit of several slices. New units of one slice take none, and units of other minima stay
    elsewhere if they can."""
    is_spread: bool = False
    """The stock is what one unit has, whose slices would be of several stocks."""

    def add(self, class_: SliceClass, places: Iterable[Location], *, leaving: bool) -> None:
        (self.leaving if leaving else self.free).extend(places)
        if not self.members or self.members[-1] is not class_.members:
            self.members.append(class_.members)

    def slice_at(self, location: Location) -> Slice:
        return next(members[location] for members in self.members if location in members)

    def meets(self, number: int) -> bool:
        """Whether a new unit with this requirement may take some of it."""
        return bool(self.mask >> number & 1)

    @property
    def room(self) -> int:
        """Points that are free, will be, or are held."""
        return (len(self.free) + len(self.leaving)) * self.points_per_slice + self._rest() + self.held

    def _rest(self) -> int:
        """Return the points that are left of a host in parts, or 0 for another stock. If more units fit than points are left, it is what
        they take."""
        if self.host is None:
            return 0
        # Units that need different resources may come to more points than there are: all GPUs for one, most CPUs for another.
        rest = max(0, ROOM - sum(points(needs, self.host.whole.room) for needs in self.host.units.values()))
        for number, needs in self._fitting.items():
            rest = max(rest, how_many(needs, self.host.rest) * self.sizes[number])
        return rest

    _fitting: dict[int, Resources] = field(default_factory=dict)
    """Requirement of units that may take parts -> what one of them needs."""

    def note(self, number: int, requirements: SliceRequirements) -> int:
        """Return the points that a unit with these requirements takes, and remember them."""
        if number in self.sizes:
            return self.sizes[number]
        shape, size = requirements.shape, requirements.shape.slots * self.points_per_slice
        if self.host is not None:
            size = points(requirements.needs, self.host.whole.room) if shape.divides else self._all()
        elif shape.divides and self.room_of_each != Resources() and (count := how_many(requirements.needs, self.room_of_each)):
            size = self.points_per_slice // count
        if shape.divides and self.host is not None and self.meets(number):
            self._fitting[number] = requirements.needs
        self.sizes[number] = max(1, size)
        return self.sizes[number]

    def _all(self) -> int:
        """Return the points of the whole host: `ROOM`, or the sum of its units' points if that is more."""
        assert self.host is not None
        held = sum(points(needs, self.host.whole.room) for needs in self.host.units.values())
        return max(ROOM, held)

    @property
    def accelerators_left(self) -> int:
        """Accelerators that are left of a host in parts, or that one whole slice has."""
        return self.host.accelerators_left if self.host is not None else self.kind.chips_per_host


def points(needs: Resources, room: Resources) -> int:
    """Return how many of the `ROOM` points of a host a pod takes: its largest share of any resource, rounded up."""
    most = 1
    for name in ("cpu", "memory", "pods", *(name for name, _ in needs.devices)):
        wanted, has = amount_of(needs, name), amount_of(room, name)
        if wanted and has < UNLISTED // 2:
            most = max(most, -(-wanted * ROOM // has) if has > 0 else ROOM)
    return most


class Stocks:
    """The stocks of a fleet. `ProblemBuilder.add` notes what each unit holds; then `finish` names the stocks."""

    def __init__(
        self,
        classes: Iterable[SliceClass],
        requirements: Callable[[int], SliceRequirements],
        hosts: Callable[[Location], HostUse | None],
        barred: Barred,
        wanted: int,
        groups: Sequence[Sequence[Located]] = (),
    ) -> None:
        """Sort slices into stocks.

        Args:
            wanted: the bits of the requirements that tell slices apart.
            groups: slices of several stocks that one unit may have together. Each group becomes a stock of its own.
        """
        self._requirements = requirements
        self._hosts = hosts
        self._barred = barred
        self._wanted = wanted
        self._traits: dict[SliceClass, Traits] = {}
        self._by_traits: dict[tuple[Traits, object], Stock] = {}
        self._divided: dict[Traits, list[Resources]] = {}
        """What a unit needs, for each requirement of units that may take parts of such slices."""
        self._parts: dict[tuple[Traits, Resources], Parts] = {}
        """See `_parts_of`."""
        self._grouped: dict[Location, Stock] = {}
        for group in groups:
            stock = self._together(group)
            stock.for_group = True
            stock.mask = sum(1 << number for number in bits(stock.mask) if requirements(number).shape.slots > 1)
            for class_, location in group:
                # Any other slice has a unit on it.
                if location in class_.leaving or class_.is_free(location):
                    stock.add(class_, (location,), leaving=location in class_.leaving)
            self._grouped |= dict.fromkeys((location for _, location in group), stock)
        for class_ in classes:
            leaving = sorted(class_.leaving - self._grouped.keys())
            free = [location for location in class_.free if location not in self._grouped] if self._grouped else class_.free
            for places, kept in ((free, False), (leaving, True)):
                if places and self._key(class_, places[0]) is None:  # nothing divides this class: all its slices are in one stock
                    self._put(class_, places[0]).add(class_, places, leaving=kept)
                    continue
                for location in places:
                    stock = self._put(class_, location)
                    if stock.host is None:
                        stock.add(class_, (location,), leaving=kept)

    def at(self, class_: SliceClass, location: Location) -> Stock:
        return self._put(class_, location)

    def spread(self, slices: Sequence[Located]) -> Stock:
        """Return a stock of its own for the slices of a unit that are of several stocks."""
        stock = self._together(slices)
        stock.is_spread = True
        for number in bits(self._wanted & ~stock.mask):
            requirements = self._requirements(number)
            in_domain = Counter(class_.domains.get(number) for class_, location in slices if self._put(class_, location).meets(number))
            # A unit needs its slices in one domain.
            if max(in_domain.values(), default=0) >= requirements.shape.slots:
                # It counts as taking the whole stock, although it leaves some slices to others.
                stock.mask |= 1 << number
                stock.sizes[number] = len(slices) * stock.points_per_slice
        return stock

    def _together(self, slices: Sequence[Located]) -> Stock:
        """Return the stock of slices that a unit can have only together. It meets the requirements that all of them meet."""
        parts = [self._put(class_, location) for class_, location in slices]
        mask = parts[0].mask
        for part in parts:
            mask &= part.mask
        for number in bits(mask):
            # A unit's hosts exchange every gradient, so slices of two domains are no use to a unit that asks for one domain.
            if len({class_.domains.get(number) for class_, _ in slices}) > 1:
                mask &= ~(1 << number)
        locations = [location for _, location in slices]
        key = ((parts[0].kind, 0, ()), tuple(locations))
        stock = Stock(parts[0].kind, mask, parts[0].points_per_slice, room_of_each=parts[0].room_of_each, first=min(locations))
        return self._by_traits.setdefault(key, stock)

    def _put(self, class_: SliceClass, location: Location) -> Stock:
        if location in self._grouped:
            return self._grouped[location]
        key = self._traits_of(class_), self._key(class_, location)
        stock, room = self._by_traits.get(key), class_.members[location].room
        if stock is None:
            stock = self._by_traits[key] = self._new(key[0], location, key[1])
        if stock.first is None or location[1] < stock.first[1]:
            stock.first = location
        if isinstance(key[1], Parts):
            # Any of these hosts would do. The one with the least room does not depend on the order in which they came.
            stock.room_of_each = min(stock.room_of_each, room) if stock.room_of_each != Resources() else room
        return stock

    def _traits_of(self, class_: SliceClass) -> Traits:
        if class_ not in self._traits:
            domains = tuple(sorted((number, domain) for number, domain in class_.domains.items() if self._wanted >> number & 1))
            self._traits[class_] = class_.kind, class_.mask & self._wanted, domains
        return self._traits[class_]

    def _key(self, class_: SliceClass, location: Location) -> object:
        if not is_divisible(class_.kind.accelerator):
            return None
        host = self._hosts(location)
        if host is not None and host.in_parts:
            return location
        traits = self._traits_of(class_)
        if traits not in self._divided:
            requirements = map(self._requirements, bits(traits[1]))
            self._divided[traits] = [each.needs for each in requirements if each.shape.divides]
        needs = self._divided[traits]
        if not needs:
            return None
        room = class_.members[location].room
        if (traits, room) not in self._parts:
            self._parts[traits, room] = self._parts_of(traits, room, needs)
        parts = self._parts[traits, room]
        return parts if host is None or parts.alike else location

    def _parts_of(self, traits: Traits, room: Resources, needs: Sequence[Resources]) -> Parts:
        sizes = tuple(points(each, room) for each in needs)
        groups = any(self._requirements(number).shape.slots > 1 for number in bits(traits[1]))
        multiples = not any(larger % smaller for smaller, larger in pairwise(sorted({*sizes, ROOM})))
        return Parts(sizes, tuple(how_many(each, room) for each in needs), groups or multiples)

    def _new(self, traits: Traits, location: Location, key: object) -> Stock:
        kind, mask, _ = traits
        if not is_divisible(kind.accelerator):
            return Stock(kind, mask)
        host = self._hosts(location) if key == location else None
        if host is None:
            return Stock(kind, mask, ROOM)
        for number in self._barred.get(location, ()):
            mask &= ~(1 << number)
        for number in bits(mask):
            # A unit of several hosts takes whole ones, and the flow must not count what is left of this one for it.
            if self._requirements(number).shape.slots > 1:
                mask &= ~(1 << number)
        return Stock(kind, mask, ROOM, host)

    def hosts(self, hosts: Iterable[HostUse], class_at: Callable[[Location], SliceClass | None]) -> None:
        """Make a stock of each host in parts."""
        for host in hosts:
            if (class_ := class_at(host.location)) is not None:
                self._put(class_, host.location)

    def finish(self, component: int) -> list[Stock]:
        """Return all stocks, with names that do not depend on the order in which jobs came. The tightest kind comes first, then what fewer
        requirements can use. Groups come last, because a minimum keeps the first of equal places."""
        ordered = sorted(self._by_traits.values(), key=lambda stock: (stock.kind, stock.mask.bit_count(), stock.first or ("", ("", ""))))
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
        for alike in hubs.values():
            unit = gcd(*(size for stock in alike for size in stock.sizes.values())) if alike[0].sizes else 1
            for stock in alike:
                stock.hub, stock.points_per_room = f"hub {alike[0].name}", unit
        return stocks
