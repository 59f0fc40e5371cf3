"""Slices in classes: no present requirement tells two slices of one class apart, so matching counts slices and need not list them.

Only `SliceRequirements.suits` decides whether a slice meets a requirement. It is asked once per pair, when either of them comes or changes.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import Slice, SliceKind
from diloco_operator.placement.requirements import SliceRequirements

_KEY = itemgetter(1)
type _Key = tuple[SliceKind, int, tuple[Hashable, ...]]


@dataclass(slots=True, eq=False)
class SliceClass:
    """Usable slices that all present requirements treat alike."""

    kind: SliceKind
    mask: int
    """The bits of the requirements that its slices meet."""
    domains: dict[int, Hashable]
    """Number of a requirement whose units take several slices -> the domain in which these slices are. A unit's slices must share it."""
    members: dict[Location, Slice] = field(default_factory=dict)
    free: list[Location] = field(default_factory=list)
    """Free slices, in the order in which the inventory offers them."""
    leaving: set[Location] = field(default_factory=set)
    """Slices that no job keeps, but on which processes have not ended yet."""

    @property
    def most_units(self) -> int:
        """How many units fit at most on the slices that no job keeps."""
        return (len(self.free) + len(self.leaving)) * self.kind.smallest_units

    def is_free(self, location: Location) -> bool:
        index = bisect.bisect_left(self.free, location[1], key=_KEY)
        return index < len(self.free) and self.free[index] == location

    def note(self, location: Location, *, free: bool, leaving: bool) -> None:
        """Note whether the slice is free, being left, or neither: then a job has it."""
        index = bisect.bisect_left(self.free, location[1], key=_KEY)
        if index < len(self.free) and self.free[index] == location:
            if not free:
                del self.free[index]
        elif free:
            self.free.insert(index, location)
        if leaving:
            self.leaving.add(location)
        else:
            self.leaving.discard(location)


type Located = tuple[SliceClass, Location]


class SliceClasses:
    """The classes of all usable slices for the requirements of all jobs."""

    def __init__(self) -> None:
        self._ids: dict[SliceRequirements, int] = {}
        self._requirements: dict[int, SliceRequirements] = {}
        self._uses: dict[SliceRequirements, int] = {}
        self._classes: dict[_Key, SliceClass] = {}
        self._class_of: dict[Location, SliceClass] = {}
        self._fitting: dict[int, dict[SliceClass, None]] = {}

    # --- requirements --------------------------------------------------------------------------------------------------
    def use(self, requirements: SliceRequirements) -> None:
        """Count one pool more with these requirements."""
        self._uses[requirements] = self._uses.get(requirements, 0) + 1
        if requirements in self._ids:
            return
        # The lowest that is not in use: numbers are places of bits, so masks stay short.
        number = next(i for i in range(len(self._ids) + 1) if i not in self._requirements)
        self._ids[requirements] = number
        self._requirements[number] = requirements
        self._fitting[number] = {}
        for class_ in list(self._classes.values()):
            if not requirements.suits_kind(class_.kind):
                continue
            for location, slice_ in list(class_.members.items()):
                if requirements.fits(slice_):
                    domain = _domain(requirements, slice_)
                    self._move(location, class_.mask | 1 << number, {**class_.domains, **({number: domain} if domain is not None else {})})

    def drop(self, requirements: SliceRequirements) -> int:
        """Count one pool less with these requirements. Returns the bits of other requirements that some of the same slices meet."""
        number = self._ids[requirements]
        concerned = 0
        for class_ in self._fitting[number]:
            concerned |= class_.mask
        self._uses[requirements] -= 1
        if self._uses[requirements]:
            return concerned
        del self._uses[requirements]
        for class_ in list(self._fitting[number]):
            domains = {each: domain for each, domain in class_.domains.items() if each != number}
            for location in list(class_.members):
                self._move(location, class_.mask & ~(1 << number), domains)
        del self._ids[requirements], self._requirements[number], self._fitting[number]
        return concerned & ~(1 << number)

    def is_connected(self, requirements: SliceRequirements, mask: int) -> bool:
        """Whether these requirements belong to the component `mask`, or would: slices meet them and some of the component."""
        if (number := self._ids.get(requirements)) is not None:
            return bool(1 << number & mask)
        classes = (class_ for class_ in self._classes.values() if class_.mask & mask and requirements.suits_kind(class_.kind))
        return any(requirements.fits(slice_) for class_ in classes for slice_ in class_.members.values())

    def meets_any(self, slice_: Slice, mask: int) -> bool:
        """Whether a slice meets some of the requirements whose bits are set."""
        return any(self._requirements[number].suits(slice_) for number in bits(mask))

    def number(self, requirements: SliceRequirements) -> int:
        """Return the number of requirements that are in use. Their bit in masks is `1 << number`."""
        return self._ids[requirements]

    # --- slices --------------------------------------------------------------------------------------------------------
    def put(self, location: Location, slice_: Slice, *, free: bool, leaving: bool) -> int:
        """Put a usable slice that is new or has changed into its class. Returns the bits of its classes before and after, or 0 if nothing
        changed for any request."""
        old = self._class_of.get(location)
        before, class_ = 0, old
        if old is None or old.members[location] != slice_:
            mask, domains = self._test(slice_)
            if old is not None and (old.kind, old.mask, old.domains) == (slice_.kind, mask, domains):
                old.members[location] = slice_  # the two slices are the same to every request
            else:
                before = self.remove(location)
                class_ = self._join(location, slice_, mask, domains)
        assert class_ is not None
        if class_ is old and (class_.is_free(location), location in class_.leaving) == (free, leaving):
            return 0
        class_.note(location, free=free, leaving=leaving)
        return before | class_.mask

    def _test(self, slice_: Slice) -> tuple[int, dict[int, Hashable]]:
        """Return the bits of the requirements that the slice meets, and its domains."""
        mask, domains = 0, {}
        for number, requirements in self._requirements.items():
            if requirements.suits(slice_):
                mask |= 1 << number
                if (domain := _domain(requirements, slice_)) is not None:
                    domains[number] = domain
        return mask, domains

    def remove(self, location: Location) -> int:
        """Remove a slice that is gone or unusable. Returns the mask of its class, or 0 if it had none."""
        class_ = self._class_of.pop(location, None)
        if class_ is None:
            return 0
        del class_.members[location]
        class_.note(location, free=False, leaving=False)
        if not class_.members:
            del self._classes[_key(class_.kind, class_.mask, class_.domains)]
            for number in bits(class_.mask):
                self._fitting[number].pop(class_, None)
        return class_.mask

    def class_at(self, location: Location) -> SliceClass | None:
        """Return the class of the slice. None if no usable slice is at this location."""
        return self._class_of.get(location)

    def located(self, locations: Iterable[Location]) -> list[Located]:
        """Return the slices at these locations, without those that are not usable."""
        slices = ((self.class_at(location), location) for location in locations)
        return [(class_, location) for class_, location in slices if class_ is not None]

    def requirements(self, number: int) -> SliceRequirements:
        return self._requirements[number]

    def masks(self) -> set[int]:
        return {class_.mask for class_ in self._classes.values()}

    def __iter__(self) -> Iterator[SliceClass]:
        return iter(self._classes.values())

    def _move(self, location: Location, mask: int, domains: dict[int, Hashable]) -> None:
        old = self._class_of[location]
        slice_, free, leaving = old.members[location], old.is_free(location), location in old.leaving
        self.remove(location)
        self._join(location, slice_, mask, domains).note(location, free=free, leaving=leaving)

    def _join(self, location: Location, slice_: Slice, mask: int, domains: dict[int, Hashable]) -> SliceClass:
        key = _key(slice_.kind, mask, domains)
        class_ = self._classes.get(key)
        if class_ is None:
            self._classes[key] = class_ = SliceClass(slice_.kind, mask, domains)
            for number in bits(mask):
                self._fitting[number][class_] = None
        class_.members[location] = slice_
        self._class_of[location] = class_
        return class_


def _key(kind: SliceKind, mask: int, domains: dict[int, Hashable]) -> _Key:
    return (kind, mask, tuple(sorted(domains.items(), key=lambda item: item[0])))


def _domain(requirements: SliceRequirements, slice_: Slice) -> Hashable:
    """Return the domain of the slice that all slices of a unit must share. None if units have only one slice."""
    return requirements.domain(slice_) if requirements.shape.slots > 1 else None


def bits(mask: int) -> Iterable[int]:
    """Yield the places of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
