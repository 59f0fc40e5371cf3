"""Which jobs wait for slices, and which one to wake when a slice becomes free.

See docs/decisions/0032-capacity-queue-and-preemption.md.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable

from diloco_operator.fleet import Fleet, Shape

type Order = tuple[int, float, tuple[str, str]]
"""The job's negative priority, its creation time and its key: the highest priority comes first, among equals the oldest job."""


class CapacityQueue:
    """Jobs in the order of their priority and age, for each shape that they wait for.

    When slices of a shape are free, the first job that waits for it is woken. If slices are still free after its reconcile, the next job is
    woken. So a free slice costs only as many reconciles as it takes to find a job that uses it.
    """

    def __init__(self, fleet: Fleet, wake: Callable[[tuple[str, str]], None]) -> None:
        self._fleet = fleet
        self._wake_job = wake
        self._waiting: dict[Shape, list[Order]] = {}
        self._demand: dict[tuple[str, str], tuple[Order, frozenset[Shape]]] = {}
        self._woken: set[tuple[str, str]] = set()
        """Woken and not reconciled yet. Only their reconciles wake the next job. Otherwise every reconcile of a waiting job would wake all
        jobs behind it."""

    def set_demand(self, key: tuple[str, str], created: float, shapes: Iterable[Shape], *, priority: int = 0) -> None:
        """The job `key` waits for slices of these shapes from now on; none: it does not wait."""
        wanted = frozenset(shapes)
        order: Order = (-priority, created, key)
        old_order, old = self._demand.get(key, (order, frozenset()))
        if old_order != order:  # another job with the same name, or another priority
            self._withdraw(old_order, old)
            old = frozenset()
        self._withdraw(order, old - wanted)
        for shape in wanted - old:
            bisect.insort(self._waiting.setdefault(shape, []), order)
        if wanted:
            self._demand[key] = (order, wanted)
        else:
            self._demand.pop(key, None)

    def slices_freed(self) -> None:
        """Slices may have become free. Wake the first job that waits for each shape of which enough slices for one unit are free."""
        for shape, waiting in self._waiting.items():
            if self._enough(shape):
                self._wake(waiting[0][2])

    def reconciled(self, key: tuple[str, str]) -> None:
        """After a reconcile of `key`: wake the next job for the slices that this one left free."""
        if key not in self._woken:
            return
        self._woken.discard(key)
        if key not in self._demand:
            self.slices_freed()  # it waits no longer, whatever the cause: begin with the first job again
            return
        order, shapes = self._demand[key]
        for shape in shapes:
            waiting = self._waiting[shape]
            after = bisect.bisect_right(waiting, order)
            if after < len(waiting) and self._enough(shape):
                self._wake(waiting[after][2])

    def _wake(self, key: tuple[str, str]) -> None:
        self._woken.add(key)
        self._wake_job(key)

    def _enough(self, shape: Shape) -> bool:
        return sum(1 for _ in itertools.islice(self._fleet.free(shape), shape.slots)) == shape.slots

    def _withdraw(self, order: Order, shapes: Iterable[Shape]) -> None:
        for shape in shapes:
            waiting = self._waiting[shape]
            del waiting[bisect.bisect_left(waiting, order)]
            if not waiting:
                del self._waiting[shape]
