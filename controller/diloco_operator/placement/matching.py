"""Matching wants to free slices so that nobody who can be served stays unserved: augmenting paths (Kuhn, Berge).

Units with equal wants are interchangeable, so the search runs over classes of wants instead of units: a path is at most as long as
there are classes, however many units wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diloco_operator.fleet.affinity import NodeTerm, attracts
from diloco_operator.fleet.node import Toleration
from diloco_operator.fleet.slices import Fleet, Shape, Slice
from diloco_operator.placement.request import PoolWant


class WantClass(NamedTuple):
    """Everything that decides which slices fit."""

    shape: Shape
    capacity: str
    node_selector: frozenset[tuple[str, str]] = frozenset()
    affinity: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def fits(self, part: Slice) -> bool:
        if self.capacity and part.capacity != self.capacity:
            return False
        if any(part.labels.get(key) != value for key, value in self.node_selector):
            return False
        if not all(attracts(self.affinity, part.labels, host.node) for host in part.hosts):
            return False
        return all(any(t.tolerates(taint) for t in self.tolerations) for taint in part.taints)


def want_class(pool: PoolWant) -> WantClass:
    return WantClass(pool.shape, pool.capacity, frozenset(pool.node_selector.items()), pool.affinity, pool.tolerations)


class _Offer:
    """The free slices that fit one class, read from the fleet only as far as needed."""

    def __init__(self, wants: WantClass, fleet: Fleet) -> None:
        self._more: Iterator[Slice] = (s for s in fleet.free(wants.shape) if wants.fits(s))
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
        self._offers: dict[WantClass, _Offer] = {}
        self._taken: dict[str, str] = {}
        """First node of a slice -> unit."""
        self._class: dict[str, WantClass] = {}
        self.parts: dict[str, list[Slice]] = {}
        """Unit -> its slices."""
        self._hopeless: set[WantClass] = set()
        """A class that found no path finds none later: a path opens only when a unit is removed."""

    def reserve(self, unit: str, parts: tuple[Slice, ...]) -> bool:
        """These are in use by a unit that stays. False: another unit of the request has one of them."""
        if any(part.hosts[0].node in self._taken for part in parts):
            return False
        for part in parts:
            self._taken[part.hosts[0].node] = unit
        return True

    def add(self, unit: str, wants: WantClass) -> bool:
        """Serve this unit too, moving others of this round among free slices if that is what it takes. False: nothing changed."""
        if wants in self._hopeless:
            return False
        self._class[unit] = wants
        self.parts[unit] = []
        if self._take_group(unit, wants):
            return True
        for _ in range(wants.shape.slots - len(self.parts[unit])):
            if not self._augment(unit):
                self._drop(unit)
                self._hopeless.add(wants)
                return False
        return True

    def remove(self, unit: str) -> None:
        """Take back what `add` gave."""
        self._drop(unit)
        self._hopeless.clear()

    def _drop(self, unit: str) -> None:
        for part in self.parts.pop(unit):
            del self._taken[part.hosts[0].node]
        del self._class[unit]
        for offer in self._offers.values():
            offer.cursor = 0

    def _offer(self, wants: WantClass) -> _Offer:
        if wants not in self._offers:
            self._offers[wants] = _Offer(wants, self._fleet)
        return self._offers[wants]

    def _give(self, unit: str, part: Slice) -> None:
        self._taken[part.hosts[0].node] = unit
        self.parts[unit].append(part)

    def _take_group(self, unit: str, wants: WantClass) -> bool:
        """Untaken slices for all slots of the unit, from one node pool if any has enough. Keeps what it could get."""
        slots = wants.shape.slots
        offer = self._offer(wants)
        fallback: list[Slice] = []
        run: list[Slice] = []
        for index, part in offer.untaken(self._taken, offer.cursor):
            if not fallback:
                offer.cursor = index
            if len(fallback) < slots:
                fallback.append(part)
            if run and run[-1].node_pool != part.node_pool:
                run = []
            run.append(part)
            if len(run) == slots:
                break
        chosen = run if len(run) == slots else fallback
        for part in chosen:
            self._give(unit, part)
        return len(chosen) == slots

    def _augment(self, unit: str) -> bool:
        """One more slice for this unit along a shortest path of classes: each takes a slice of the next, the last a free one."""
        start = self._class[unit]
        came: dict[WantClass, tuple[WantClass, Slice]] = {}
        queue = [start]
        for here in queue:
            offer = self._offer(here)
            free = next(offer.untaken(self._taken, 0), None)
            if free is not None:
                self._shift(unit, start, here, came, free[1])
                return True
            for part in offer.seen:
                owner = self._class.get(self._taken[part.hosts[0].node])
                if owner is not None and owner != start and owner not in came:
                    came[owner] = (here, part)
                    queue.append(owner)
        return False

    def _shift(self, unit: str, start: WantClass, end: WantClass, came: dict[WantClass, tuple[WantClass, Slice]], free: Slice) -> None:
        here, part = end, free
        while here != start:
            before, wanted = came[here]
            owner = self._taken[wanted.hosts[0].node]
            self.parts[owner].remove(wanted)
            self._give(owner, part)
            here, part = before, wanted
        self._give(unit, part)
