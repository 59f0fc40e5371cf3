"""Matching of units to free slices so that no unit stays without one that could have one: augmenting paths (Kuhn, Berge).

Units with equal requirements are interchangeable. The search therefore runs over distinct requirements, not over units: a path is at
most as long as there are distinct requirements, however many units wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diloco_operator.fleet.affinity import NodeTerm, attracts
from diloco_operator.fleet.node import Toleration
from diloco_operator.fleet.slices import Fleet, Shape, Slice
from diloco_operator.placement.request import PoolRequest


class SliceRequirements(NamedTuple):
    """Everything that decides which slices fit."""

    shape: Shape
    capacity: str
    node_selector: frozenset[tuple[str, str]] = frozenset()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def fits(self, slice_: Slice) -> bool:
        if self.capacity and slice_.capacity != self.capacity:
            return False
        if any(slice_.labels.get(key) != value for key, value in self.node_selector):
            return False
        if not all(attracts(self.affinity, slice_.labels, host.node) for host in slice_.hosts):
            return False
        return all(any(t.tolerates(taint) for t in self.tolerations) for taint in slice_.taints)


def slice_requirements(pool: PoolRequest) -> SliceRequirements:
    return SliceRequirements(pool.shape, pool.capacity, frozenset(pool.node_selector.items()), pool.affinity, pool.tolerations)


class _Offer:
    """The free slices that fit one class, read from the fleet only as far as needed."""

    def __init__(self, requirements: SliceRequirements, fleet: Fleet) -> None:
        self._more: Iterator[Slice] = (s for s in fleet.free(requirements.shape) if requirements.fits(s))
        self.seen: list[Slice] = []
        self.cursor = 0
        """Everything before it is taken."""

    def untaken(self, taken: dict[str, str], start: int) -> Iterator[tuple[int, Slice]]:
        index = start
        while True:
            if index == len(self.seen):
                following = next(self._more, None)
                if following is None:
                    return
                self.seen.append(following)
            if self.seen[index].hosts[0].node not in taken:
                yield index, self.seen[index]
            index += 1


class Matching:
    """Who has which of the free slices. Mutable inside one call of a solver."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._offers: dict[SliceRequirements, _Offer] = {}
        self._taken: dict[str, str] = {}
        """First node of a slice -> unit."""
        self._class: dict[str, SliceRequirements] = {}
        self.slices: dict[str, list[Slice]] = {}
        """Unit -> its slices."""
        self._hopeless: set[SliceRequirements] = set()
        """A class that found no path finds none later: a path opens only when a unit is removed."""

    def reserve(self, unit: str, slices: tuple[Slice, ...]) -> bool:
        """These are in use by a unit that stays. False: another unit of the request has one of them."""
        if any(slice_.hosts[0].node in self._taken for slice_ in slices):
            return False
        for slice_ in slices:
            self._taken[slice_.hosts[0].node] = unit
        return True

    def add(self, unit: str, requirements: SliceRequirements) -> bool:
        """Serve this unit too, moving others of this round among free slices if that is what it takes. False: nothing changed."""
        if requirements in self._hopeless:
            return False
        self._class[unit] = requirements
        self.slices[unit] = []
        if self._take_group(unit, requirements):
            return True
        for _ in range(requirements.shape.slots - len(self.slices[unit])):
            if not self._augment(unit):
                self._drop(unit)
                self._hopeless.add(requirements)
                return False
        return True

    def remove(self, unit: str) -> None:
        """Take back what `add` gave."""
        self._drop(unit)
        self._hopeless.clear()

    def _drop(self, unit: str) -> None:
        for slice_ in self.slices.pop(unit):
            del self._taken[slice_.hosts[0].node]
        del self._class[unit]
        for offer in self._offers.values():
            offer.cursor = 0

    def _offer(self, requirements: SliceRequirements) -> _Offer:
        if requirements not in self._offers:
            self._offers[requirements] = _Offer(requirements, self._fleet)
        return self._offers[requirements]

    def _give(self, unit: str, slice_: Slice) -> None:
        self._taken[slice_.hosts[0].node] = unit
        self.slices[unit].append(slice_)

    def _take_group(self, unit: str, requirements: SliceRequirements) -> bool:
        """Untaken slices for all slots of the unit, from one node pool if any has enough. Keeps what it could get."""
        slots = requirements.shape.slots
        offer = self._offer(requirements)
        fallback: list[Slice] = []
        run: list[Slice] = []
        for index, slice_ in offer.untaken(self._taken, offer.cursor):
            if not fallback:
                offer.cursor = index
            if len(fallback) < slots:
                fallback.append(slice_)
            if run and run[-1].node_pool != slice_.node_pool:
                run = []
            run.append(slice_)
            if len(run) == slots:
                break
        chosen = run if len(run) == slots else fallback
        for slice_ in chosen:
            self._give(unit, slice_)
        return len(chosen) == slots

    def _augment(self, unit: str) -> bool:
        """One more slice for this unit along a shortest path of classes: each takes a slice of the next, the last a free one."""
        start = self._class[unit]
        came: dict[SliceRequirements, tuple[SliceRequirements, Slice]] = {}
        queue = [start]
        for here in queue:
            offer = self._offer(here)
            free = next(offer.untaken(self._taken, 0), None)
            if free is not None:
                self._shift(unit, start, here, came, free[1])
                return True
            for slice_ in offer.seen:
                owner = self._class.get(self._taken[slice_.hosts[0].node])
                if owner is not None and owner != start and owner not in came:
                    came[owner] = (here, slice_)
                    queue.append(owner)
        return False

    def _shift(
        self,
        unit: str,
        start: SliceRequirements,
        end: SliceRequirements,
        came: dict[SliceRequirements, tuple[SliceRequirements, Slice]],
        free: Slice,
    ) -> None:
        here, slice_ = end, free
        while here != start:
            before, target = came[here]
            owner = self._taken[target.hosts[0].node]
            self.slices[owner].remove(target)
            self._give(owner, slice_)
            here, slice_ = before, target
        self._give(unit, slice_)
