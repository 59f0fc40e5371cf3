"""Matching of units to free slices so that no unit stays without one that could have one: augmenting paths (Kuhn, Berge).

Units with equal requirements are interchangeable. The search therefore runs over distinct requirements, not over units: a path is at
most as long as there are distinct requirements, however many units wait.

See docs/decisions/0043-placement.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from diloco_operator.accelerators import CATALOGUE
from diloco_operator.api.job import Locality
from diloco_operator.fleet.affinity import NodeTerm, attracts
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.node import Taint, Toleration
from diloco_operator.fleet.resources import Resources, amount_of
from diloco_operator.fleet.slice_kinds import kinds_for
from diloco_operator.fleet.slices import Fleet, Shape, Slice, SliceKind
from diloco_operator.placement.domains import DEPTH, Candidates, DomainRooms
from diloco_operator.placement.request import PoolRequest


class SliceRequirements(NamedTuple):
    """Everything that decides which slices fit a unit. Units with equal requirements are interchangeable."""

    shape: Shape
    capacity: str
    node_selector: frozenset[tuple[str, str]] = frozenset()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    locality: Locality = Locality.ANY
    """How near to each other the slices of one unit must be; always Any for units of one slice."""
    avoided: frozenset[str] = frozenset()
    """Nodes on which no unit of the job may start now."""
    within: Domain = ()
    """The domain that the matching chose for a unit of several slices."""
    needs: Resources = Resources()
    """What the pod of each host requests."""

    def fits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice of its shape, or on it and others, beside what other pods use there."""
        return (self.shape.divides or not slice_.in_part) and self.needs.fits(slice_.room) and self.admits(slice_)

    def admits(self, slice_: Slice) -> bool:
        """The same, if it had room enough."""
        return self.attracts(slice_) and next(self.untolerated(slice_), None) is None

    def attracts(self, slice_: Slice) -> bool:
        """The same, if it had no taints either."""
        if len(slice_.locality) < DEPTH[self.locality] or slice_.locality[: len(self.within)] != self.within:
            return False
        if self.capacity and slice_.capacity != self.capacity:
            return False
        if self.avoided and any(host.node in self.avoided for host in slice_.hosts):
            return False
        if any(slice_.labels.get(key) != value for key, value in self.node_selector):
            return False
        return all(attracts(self.affinity, slice_.labels, host.node) for host in slice_.hosts)

    def untolerated(self, slice_: Slice) -> Iterator[Taint]:
        """The taints that keep a unit from this slice."""
        return (taint for taint in slice_.taints if not any(t.tolerates(taint) for t in self.tolerations))

    def suits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice, or on it and others: `fits`, for a slice of any shape."""
        return self.suits_kind(slice_.kind) and self.fits(slice_)

    def suits_kind(self, kind: SliceKind) -> bool:
        """Whether slices of this kind are of its shape."""
        return bool(kinds_for(self.shape, (kind,)))

    def domain(self, slice_: Slice) -> Domain:
        """The domain of this slice that all slices of one unit must share."""
        return slice_.locality[: DEPTH[self.locality]]

    def near_enough(self, slices: Sequence[Slice]) -> bool:
        """Whether one unit may run on these slices together."""
        return len({self.domain(slice_) for slice_ in slices}) <= 1


def slice_requirements(pool: PoolRequest) -> SliceRequirements:
    """Of the units of this pool."""
    locality = pool.locality if pool.shape.slots > 1 else Locality.ANY
    return SliceRequirements(
        pool.shape,
        pool.capacity,
        frozenset(pool.node_selector.items()),
        pool.affinity,
        pool.tolerations,
        locality,
        frozenset(pool.avoided),
        needs=with_accelerators(pool.needs, pool.shape),
    )


def with_accelerators(needs: Resources, shape: Shape) -> Resources:
    """What a unit takes of a host that it shares: at least its accelerators."""
    resource = CATALOGUE[shape.accelerator].resource
    if not shape.divides or amount_of(needs, resource) >= shape.chips_per_host:
        return needs
    return needs._replace(devices=tuple(sorted({**dict(needs.devices), resource: shape.chips_per_host}.items())))


class Matching:
    """Which unit has which of the free slices. Mutable inside one call of a solver."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._candidates: dict[SliceRequirements, Candidates] = {}
        self._rooms: dict[SliceRequirements, DomainRooms] = {}
        """Of requirements of units with several slices."""
        self._taken: dict[str, str] = {}
        """First node of a slice -> unit."""
        self._requirements: dict[str, SliceRequirements] = {}
        self.slices: dict[str, list[Slice]] = {}
        """Unit -> its slices."""
        self._movable: dict[SliceRequirements, dict[SliceRequirements, dict[str, Slice]]] = {}
        """Requirements -> requirements of units that have slices which meet them -> these slices by their first node. Only for requirements
        that a search has visited."""
        self._exhausted: set[SliceRequirements] = set()
        """Requirements that found no path. They find none later either: only the removal of a unit opens a path."""

    def reserve(self, unit: str, slices: tuple[Slice, ...], *, divides: bool = False) -> bool:
        """Take slices that a unit uses and keeps. False: another unit of the request has one of them. `divides`: units share hosts; what is
        offered of a host is what they leave of it."""
        if divides:
            return True
        if any(slice_.key in self._taken for slice_ in slices):
            return False
        for slice_ in slices:
            self._take(slice_.key, unit)
        return True

    def add(self, unit: str, requirements: SliceRequirements) -> bool:
        """Give slices to this unit as well. Units of this round may move to other free slices for it. False: nothing changed."""
        if requirements in self._exhausted:
            return False
        added = self._add_one(unit, requirements) if requirements.shape.slots == 1 else self._add_group(unit, requirements)
        if not added:
            self._exhausted.add(requirements)
        return added

    def _add_one(self, unit: str, requirements: SliceRequirements) -> bool:
        self._open(unit, requirements)
        found = self._candidates_for(requirements).take(self._taken, 1)
        if found:
            self._assign(unit, found[0])
            return True
        return self._augment_all(unit, 1)

    def _add_group(self, unit: str, requirements: SliceRequirements) -> bool:
        """Take free slices that are as near to each other as there are; if no domain has enough, make room in one."""
        rooms = self._rooms_for(requirements)
        slots = requirements.shape.slots
        if (domain := rooms.nearest(slots)) is not None:
            self._open(unit, requirements._replace(within=rooms.required(domain)))
            for slice_ in rooms.candidates[domain].take(self._taken, slots):
                self._assign(unit, slice_)
            return True
        for domain in rooms.widest(slots):
            self._open(unit, requirements._replace(within=domain))
            if self._augment_all(unit, slots):
                return True
        return False

    def left(self, requirements: SliceRequirements) -> Mapping[Domain, int]:
        """Of the domains of which a unit of several slices needs one: free slices that fit and that no unit has taken; most first."""
        return self._rooms_for(requirements).left() if requirements.shape.slots > 1 else {}

    def remove(self, unit: str) -> None:
        """Undo `add`."""
        self._release(unit)
        self._exhausted.clear()

    def _open(self, unit: str, requirements: SliceRequirements) -> None:
        self._requirements[unit] = requirements
        self.slices[unit] = []

    def _release(self, unit: str) -> None:
        for slice_ in self.slices.pop(unit):
            self._note_owner(slice_, self._requirements[unit], owned=False)
            node = slice_.key
            del self._taken[node]
            for rooms in self._rooms.values():
                rooms.count(node, 1)
        del self._requirements[unit]
        for candidates in self._candidates.values():
            candidates.cursor = 0
        for rooms in self._rooms.values():
            for candidates in rooms.candidates.values():
                candidates.cursor = 0

    def _fitting(self, requirements: SliceRequirements) -> Iterator[Slice]:
        return (slice_ for slice_ in self._fleet.free(requirements.shape) if requirements.fits(slice_))

    def _candidates_for(self, requirements: SliceRequirements) -> Candidates:
        if requirements not in self._candidates:
            rooms = self._rooms.get(requirements._replace(within=()))
            slices = self._fitting(requirements) if rooms is None else rooms.slices_in(requirements.within)
            self._candidates[requirements] = Candidates(slices)
        return self._candidates[requirements]

    def _rooms_for(self, requirements: SliceRequirements) -> DomainRooms:
        if requirements not in self._rooms:
            self._rooms[requirements] = DomainRooms(self._fitting(requirements), self._taken, requirements.locality)
        return self._rooms[requirements]

    def _take(self, node: str, unit: str) -> None:
        if node not in self._taken:
            for rooms in self._rooms.values():
                rooms.count(node, -1)
        self._taken[node] = unit

    def _note_owner(self, slice_: Slice, owner: SliceRequirements, *, owned: bool) -> None:
        for requirements, movable in self._movable.items():
            if requirements.suits(slice_):
                if owned:
                    movable.setdefault(owner, {})[slice_.key] = slice_
                else:
                    del movable[owner][slice_.key]

    def _movable_for(self, requirements: SliceRequirements) -> Mapping[SliceRequirements, Mapping[str, Slice]]:
        found = self._movable.get(requirements)
        if found is None:
            self._movable[requirements] = found = {}
            for unit, slices in self.slices.items():
                for slice_ in slices:
                    if requirements.suits(slice_):
                        found.setdefault(self._requirements[unit], {})[slice_.key] = slice_
        return found

    def _assign(self, unit: str, slice_: Slice) -> None:
        self._note_owner(slice_, self._requirements[unit], owned=True)
        self._take(slice_.key, unit)
        self.slices[unit].append(slice_)

    def _augment_all(self, unit: str, slots: int) -> bool:
        """Give the unit so many slices along augmenting paths, or none."""
        for _ in range(slots):
            if not self._augment(unit):
                self._release(unit)
                return False
        return True

    def _augment(self, unit: str) -> bool:
        """Give the unit one more slice along a shortest path of requirements: each takes a slice of the next, the last a free one."""
        start = self._requirements[unit]
        previous: dict[SliceRequirements, tuple[SliceRequirements, Slice]] = {}
        queue = [start]
        for here in queue:
            candidates = self._candidates_for(here)
            free = next(candidates.untaken(self._taken, candidates.cursor), None)
            if free is not None:
                candidates.cursor = free[0]
                self._shift(unit, start, here, previous, free[1])
                return True
            candidates.cursor = len(candidates.seen)
            for owner, slices in self._movable_for(here).items():
                if slices and owner != start and owner not in previous:
                    previous[owner] = (here, next(iter(slices.values())))
                    queue.append(owner)
        return False

    def _shift(
        self,
        unit: str,
        start: SliceRequirements,
        end: SliceRequirements,
        previous: dict[SliceRequirements, tuple[SliceRequirements, Slice]],
        free: Slice,
    ) -> None:
        here, slice_ = end, free
        while here != start:
            before, target = previous[here]
            owner = self._taken[target.key]
            self.slices[owner].remove(target)
            self._note_owner(target, self._requirements[owner], owned=False)
            self._assign(owner, slice_)
            here, slice_ = before, target
        self._assign(unit, slice_)
