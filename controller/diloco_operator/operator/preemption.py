"""Who gives scavenged slices back, and how many: over all jobs, so that for one want not two units leave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from diloco_operator.fleet import Fleet, Slice
from diloco_operator.operator.caches import JobKey
from diloco_operator.placement.matching import SliceRequirements
from diloco_operator.reconcile.units.preemption import fits

type _Rank = tuple[int, float, JobKey]
"""Who gives first: the lowest priority, and among equals the youngest job."""


class Preemption:
    """What jobs lack, and what others have scavenged."""

    def __init__(self, fleet: Fleet, wake: Callable[[JobKey], None]) -> None:
        self._fleet = fleet
        self._wake = wake
        self._demand: dict[JobKey, Mapping[SliceRequirements, int]] = {}
        self._reclaimable: dict[JobKey, tuple[_Rank, Sequence[Slice]]] = {}

    def set(
        self, key: JobKey, *, priority: int, created: float, demand: Mapping[SliceRequirements, int], reclaimable: Sequence[Slice]
    ) -> None:
        """The demand of the job, and its slices that others may reclaim, from now on. Wakes those who are to give something back for it."""
        before = self._demand.pop(key, {})
        if demand:
            self._demand[key] = demand
        self._reclaimable.pop(key, None)
        if reclaimable:
            self._reclaimable[key] = ((priority, -created, key), reclaimable)
        if any(count > before.get(requirements, 0) for requirements, count in demand.items()):
            for lender in [other for other in self._reclaimable if other != key]:
                if any(self.reclaims(lender).values()):
                    self._wake(lender)

    def reclaims(self, key: JobKey) -> dict[SliceRequirements, int]:
        """What other jobs lack, and how many slices this one is to give back for it, those included that its units are leaving."""
        wanted: dict[SliceRequirements, int] = {}
        for job, demand in self._demand.items():
            if job != key:
                for requirements, count in demand.items():
                    wanted[requirements] = wanted.get(requirements, 0) + count
        return {requirements: self._due(key, requirements, count) for requirements, count in wanted.items()}

    def _due(self, key: JobKey, requirements: SliceRequirements, short: int) -> int:
        free = (slice_ for slice_ in self._fleet.free(requirements.shape) if requirements.fits(slice_))
        short -= sum(1 for _ in itertools.islice(free, short))  # those need only be taken
        for _, lender, lent in sorted((rank, lender, lent) for lender, (rank, lent) in self._reclaimable.items()):
            if short <= 0:
                return 0
            count = sum(fits(requirements, slice_) for slice_ in lent)
            if lender == key:
                return min(short, count)
            short -= count
        return 0
