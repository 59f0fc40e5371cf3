"""The rules with which the flow is compared: first fit, and gangs. Pure.

First fit serves the same wants as the flow, in the same order: units that the minima of running jobs lack; minima of waiting jobs as a
whole, the oldest first; then one unit at a time for the job that has the fewest beyond its minimum. The difference is where a unit goes:
here to the first kind in the job's order that has a free slice. No unit leaves a slice for a better one, and no slice is kept for a
minimum.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.trace.inputs import TraceJob
from benchmarks.trace.scene import Orders, Present, Scene, Taken

type Order = Callable[[TraceJob], Sequence[str]]
"""The kinds for a job, in the order in which they are tried."""


def at_random(job: TraceJob) -> Sequence[str]:
    return job.at_random


def by_speed(job: TraceJob) -> Sequence[str]:
    return job.by_speed


def first_fit(scene: Scene, order: Order) -> Orders:
    """First fit. If no slice is free, a minimum takes the slice of a unit beyond another job's minimum."""
    book = _Book(scene, order)
    for present in scene.jobs:
        if present.admitted:
            while book.units[present.job.key] < present.job.min and book.add(present, displace=True):
                pass
    for present in scene.jobs:
        if not present.admitted and not book.spent:
            before = len(book.steps)
            while book.units[present.job.key] < present.job.min:
                if not book.add(present, displace=True):
                    book.undo(before)
                    break
    book.share()
    return book.orders()


@dataclass(frozen=True, slots=True)
class _Step:
    orders: Taken
    key: str
    kind: str
    units: int
    """1 if the job gains a unit, -1 if it loses one."""


class _Book:
    """Which job has how many units while first fit decides."""

    def __init__(self, scene: Scene, order: Order) -> None:
        self._free = dict(scene.free)
        self._order = order
        self._jobs = {present.job.key: present for present in scene.jobs}
        self._givers = [present for present in scene.jobs if present.units > present.job.min]
        self.units = {key: present.units for key, present in self._jobs.items()}
        self.leave: Taken = {}
        self.take: Taken = {}
        self.steps: list[_Step] = []

    @property
    def spent(self) -> bool:
        """No slice is free, and no unit is beyond a minimum."""
        return not any(self._free.values()) and all(self.units[each.job.key] <= each.job.min for each in self._givers)

    def add(self, present: Present, *, displace: bool) -> bool:
        """Add a unit on a free slice. With `displace`, if none is free, on the slice of a unit beyond a minimum. False if there is none."""
        tried = self._order(present.job)
        kind = next((kind for kind in tried if self._free.get(kind)), None)
        if kind is None and displace:
            kind = next((kind for kind in tried if self._displace(present, kind)), None)
        if kind is None:
            return False
        self._step(_Step(self.take, present.job.key, kind, 1))
        return True

    def _displace(self, for_: Present, kind: str) -> bool:
        """Let a unit leave this kind; it is of the job with the most units beyond its minimum. False if there is none."""
        givers = []
        for present in self._givers:
            job = present.job
            settled = present.held.get(kind, 0) - present.settling.get(kind, 0)
            if present is not for_ and self.units[job.key] > job.min and settled > self.leave.get((job.key, kind), 0):
                givers.append((self.units[job.key] - job.min, job.created, job.key))
        if not givers:
            return False
        self._step(_Step(self.leave, max(givers)[2], kind, -1))
        return True

    def _step(self, step: _Step, times: int = 1) -> None:
        """Let one unit come or leave. `times` -1 takes that back."""
        self._free[step.kind] = self._free.get(step.kind, 0) - times * step.units
        self.units[step.key] += times * step.units
        step.orders[step.key, step.kind] = step.orders.get((step.key, step.kind), 0) + times
        if times > 0:
            self.steps.append(step)

    def undo(self, left: int) -> None:
        """Take back all steps but the first `left`."""
        while len(self.steps) > left:
            self._step(self.steps.pop(), -1)

    def orders(self) -> Orders:
        return Orders(*({key: units for key, units in orders.items() if units} for orders in (self.leave, self.take)))

    def share(self) -> None:
        """Give the free slices in turns to jobs that have their minimum."""
        open_ = [present for present in self._jobs.values() if present.job.min <= self.units[present.job.key] < present.job.max]
        while open_ and any(self._free.values()):
            present = min(open_, key=lambda each: (self.units[each.job.key] - each.job.min, each.job.created, each.job.key))
            if not self.add(present, displace=False) or self.units[present.job.key] == present.job.max:
                open_.remove(present)


def gangs(scene: Scene) -> Orders:
    """Run a job with `size` units of one kind, the first in its user's order with enough free slices, or not at all. If a job loses a unit,
    all its units leave, and it waits again at its old place. A later job may start when an earlier one does not fit."""
    free = dict(scene.free)
    leave: Taken = {}
    take: Taken = {}
    for present in scene.jobs:
        job = present.job
        if 0 < present.units < job.size:
            leave.update({(job.key, kind): units for kind, units in present.held.items()})
        elif not present.units and (kinds := [kind for kind in job.by_speed if free.get(kind, 0) >= job.size]):
            take[job.key, kinds[0]] = job.size
            free[kinds[0]] -= job.size
    return Orders(leave, take)
