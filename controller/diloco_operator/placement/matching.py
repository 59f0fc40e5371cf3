"""Matching of units to free slices so that no unit stays without one that could have one: augmenting paths (Kuhn, Berge).

Units with equal requirements are interchangeable. The search therefore runs over distinct requirements, not over units: a path is at
most as long as there are distinct requirements, however many units wait.

See docs/decisions/0043-placement.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diloco_operator.fleet.affinity import NodeTerm, attracts
from diloco_operator.fleet.node import Toleration
from diloco_operator.fleet.slices import Fleet, Shape, Slice
from diloco_operator.placement.request import PoolRequest


class SliceRequirements(NamedTuple):
    """Everything that decides which slices fit a unit. Units with equal requirements are interchangeable."""

    shape: Shape
    capacity: str
    node_selector: frozenset[tuple[str, str]] = frozenset()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def fits(self, slice_: Slice) -> bool:
        """Whether a unit may run on this slice of its shape."""
        if self.capacity and slice_.capacity != self.capacity:
            return False
        if any(slice_.labels.get(key) != value for key, value in self.node_selector):
            return False
        if not all(attracts(self.affinity, slice_.labels, host.node) for host in slice_.hosts):
            return False
        return all(any(t.tolerates(taint) for t in self.tolerations) for taint in slice_.taints)


def slice_requirements(pool: PoolRequest) -> SliceRequirements:
    """Of the units of this pool."""
    return SliceRequirements(pool.shape, pool.capacity, frozenset(pool.node_selector.items()), pool.affinity, pool.tolerations)


class _Candidates:
    """The free slices that meet one set of requirements, read from the fleet only as far as needed."""

    def __init__(self, requirements: SliceRequirements, fleet: Fleet) -> None:
        self._more: Iterator[Slice] = (s for s in fleet.free(requirements.shape) if requirements.fits(s))
        self.seen: list[Slice] = []
        self.cursor = 0
        """All slices before this index are taken."""

    def untaken(self, taken: dict[str, str], start: int) -> Iterator[tuple[int, Slice]]:
        """Slices that no unit has taken, from this index on, with their indexes."""
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
    """Which unit has which of the free slices. Mutable inside one call of a solver."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._candidates: dict[SliceRequirements, _Candidates] = {}
        self._taken: dict[str, str] = {}
        """First node of a slice -> unit."""
        self._requirements: dict[str, SliceRequirements] = {}
        self.slices: dict[str, list[Slice]] = {}
        """Unit -> its slices."""
        self._exhausted: set[SliceRequirements] = set()
        """Requirements that found no path. They find none later either: only the removal of a unit opens a path."""

    def reserve(self, unit: str, slices: tuple[Slice, ...]) -> bool:
        """Take slices that a unit uses and keeps. False: another unit of the request has one of them."""
        if any(slice_.hosts[0].node in self._taken for slice_ in slices):
            return False
        for slice_ in slices:
            self._taken[slice_.hosts[0].node] = unit
        return True

    def add(self, unit: str, requirements: SliceRequirements) -> bool:
        """Give slices to this unit as well. Units of this round may move to other free slices for it. False: nothing changed."""
        if requirements in self._exhausted:
            return False
        self._requirements[unit] = requirements
        self.slices[unit] = []
        if self._take_group(unit, requirements):
            return True
        for _ in range(requirements.shape.slots - len(self.slices[unit])):
            if not self._augment(unit):
                self._release(unit)
                self._exhausted.add(requirements)
                return False
        return True

    def remove(self, unit: str) -> None:
        """Undo `add`."""
        self._release(unit)
        self._exhausted.clear()

    def _release(self, unit: str) -> None:
        for slice_ in self.slices.pop(unit):
            del self._taken[slice_.hosts[0].node]
        del self._requirements[unit]
        for candidates in self._candidates.values():
            candidates.cursor = 0

    def _candidates_for(self, requirements: SliceRequirements) -> _Candidates:
        if requirements not in self._candidates:
            self._candidates[requirements] = _Candidates(requirements, self._fleet)
        return self._candidates[requirements]

    def _assign(self, unit: str, slice_: Slice) -> None:
        self._taken[slice_.hosts[0].node] = unit
        self.slices[unit].append(slice_)

    def _take_group(self, unit: str, requirements: SliceRequirements) -> bool:
        """Take free slices for all slots of the unit, from one node pool if one has enough. Keeps what it got."""
        slots = requirements.shape.slots
        candidates = self._candidates_for(requirements)
        fallback: list[Slice] = []
        run: list[Slice] = []
        for index, slice_ in candidates.untaken(self._taken, candidates.cursor):
            if not fallback:
                candidates.cursor = index
            if len(fallback) < slots:
                fallback.append(slice_)
            if run and run[-1].node_pool != slice_.node_pool:
                run = []
            run.append(slice_)
            if len(run) == slots:
                break
        chosen = run if len(run) == slots else fallback
        for slice_ in chosen:
            self._assign(unit, slice_)
        return len(chosen) == slots

    def _augment(self, unit: str) -> bool:
        """Give the unit one more slice along a shortest path of requirements: each takes a slice of the next, the last a free one."""
        start = self._requirements[unit]
        previous: dict[SliceRequirements, tuple[SliceRequirements, Slice]] = {}
        queue = [start]
        for here in queue:
            candidates = self._candidates_for(here)
            free = next(candidates.untaken(self._taken, 0), None)
            if free is not None:
                self._shift(unit, start, here, previous, free[1])
                return True
            for slice_ in candidates.seen:
                owner = self._requirements.get(self._taken[slice_.hosts[0].node])
                if owner is not None and owner != start and owner not in previous:
                    previous[owner] = (here, slice_)
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
            owner = self._taken[target.hosts[0].node]
            self.slices[owner].remove(target)
            self._assign(owner, slice_)
            here, slice_ = before, target
        self._assign(unit, slice_)
