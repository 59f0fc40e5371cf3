"""Who waits for hardware, and whom to wake when some becomes free: not everybody at every event."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable

from diloco_operator.fleet import Fleet, Shape

type Order = tuple[int, float, tuple[str, str]]
"""The job's priority, negative, when it was created, and its key: the highest is asked first, among equals the oldest."""


class CapacityQueue:
    """Jobs in the order of their priority and age, for each shape that they lack.

    When slices of a shape are free, the first job waiting for it is woken; when it has been looked at and slices of that shape are
    still free, the next is. So a free slice costs as many passes as it takes to find a taker, not one for every waiting job.
    """

    def __init__(self, fleet: Fleet, wake: Callable[[tuple[str, str]], None]) -> None:
        self._fleet = fleet
        self._wake_job = wake
        self._waiting: dict[Shape, list[Order]] = {}
        self._wants: dict[tuple[str, str], tuple[Order, frozenset[Shape]]] = {}
        self._asked: set[tuple[str, str]] = set()
        """Woken and not looked at yet. Only their passes ask the next, or every pass of a waiting job would ask all after it."""

    def set_wants(self, key: tuple[str, str], created: float, shapes: Iterable[Shape], *, priority: int = 0) -> None:
        """The job `key` waits for slices of these shapes from now on; none: it does not wait."""
        wanted = frozenset(shapes)
        order: Order = (-priority, created, key)
        old_order, old = self._wants.get(key, (order, frozenset()))
        if old_order != order:  # another job under the same name, or of another priority
            self._withdraw(old_order, old)
            old = frozenset()
        self._withdraw(order, old - wanted)
        for shape in wanted - old:
            bisect.insort(self._waiting.setdefault(shape, []), order)
        if wanted:
            self._wants[key] = (order, wanted)
        else:
            self._wants.pop(key, None)

    def freed(self) -> None:
        """Slices may have become free: wake the first job that waits for each shape of which there are enough for a unit."""
        for shape, waiting in self._waiting.items():
            if self._enough(shape):
                self._wake(waiting[0][2])

    def looked_at(self, key: tuple[str, str]) -> None:
        """After a pass over `key`: what it was offered and left free is offered to the next."""
        if key not in self._asked:
            return
        self._asked.discard(key)
        if key not in self._wants:
            self.freed()  # it no longer waits, for whatever reason: begin with the first again
            return
        order, shapes = self._wants[key]
        for shape in shapes:
            waiting = self._waiting[shape]
            after = bisect.bisect_right(waiting, order)
            if after < len(waiting) and self._enough(shape):
                self._wake(waiting[after][2])

    def _wake(self, key: tuple[str, str]) -> None:
        self._asked.add(key)
        self._wake_job(key)

    def _enough(self, shape: Shape) -> bool:
        return sum(1 for _ in itertools.islice(self._fleet.free(shape), shape.slots)) == shape.slots

    def _withdraw(self, order: Order, shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            waiting = self._waiting[shape]
            del waiting[bisect.bisect_left(waiting, order)]
            if not waiting:
                del self._waiting[shape]
