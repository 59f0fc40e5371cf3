"""Which jobs give reclaimable slices back, and how many. Decided over all jobs, so that one missing slice does not evict two units.

See docs/decisions/0032-capacity-queue-and-preemption.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from diloco_operator.fleet import Fleet, Slice
from diloco_operator.operator.caches import JobKey
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.reconcile.units.preemption import fits

type _Rank = tuple[int, float, JobKey]
"""Order of giving back: the lowest priority first, among equals the youngest job."""


class Preemption:
    """The demand of jobs, and the slices that other jobs may reclaim from Scavenged pools."""

    def __init__(self, fleet: Fleet, wake: Callable[[JobKey], None]) -> None:
        self._fleet = fleet
        self._wake = wake
        self._demand: dict[JobKey, Mapping[SliceRequirements, int]] = {}
        self._reclaimable: dict[JobKey, tuple[_Rank, Sequence[Slice]]] = {}

    def set(
        self, key: JobKey, *, priority: int, created: float, demand: Mapping[SliceRequirements, int], reclaimable: Sequence[Slice]
    ) -> None:
        """The job's demand and reclaimable slices from now on. Wakes the jobs that must give slices back for it."""
        before = self._demand.pop(key, {})
        if demand:
            self._demand[key] = demand
        self._reclaimable.pop(key, None)
        if reclaimable:
            self._reclaimable[key] = ((priority, -created, key), reclaimable)
        if any(count > before.get(requirements, 0) for requirements, count in demand.items()):
            for other in [other for other in self._reclaimable if other != key]:
                if any(self.reclaims(other).values()):
                    self._wake(other)

    def reclaims(self, key: JobKey) -> dict[SliceRequirements, int]:
        """The demand of other jobs, each with the number of slices that this job must give back for it. Slices that its units are leaving
        already count."""
        wanted: dict[SliceRequirements, int] = {}
        for job, demand in self._demand.items():
            if job != key:
                for requirements, count in demand.items():
                    wanted[requirements] = wanted.get(requirements, 0) + count
        return {requirements: self._share(key, requirements, count) for requirements, count in wanted.items()}

    def _share(self, key: JobKey, requirements: SliceRequirements, short: int) -> int:
        free = (slice_ for slice_ in self._fleet.free(requirements.shape) if requirements.fits(slice_))
        short -= sum(1 for _ in itertools.islice(free, short))  # free slices need no preemption
        for _, other, slices in sorted((rank, other, slices) for other, (rank, slices) in self._reclaimable.items()):
            if short <= 0:
                return 0
            count = sum(fits(requirements, slice_) for slice_ in slices)
            if other == key:
                return min(short, count)
            short -= count
        return 0
