"""Who gives scavenged slices back, and how many: over all jobs, so that for one want not two units leave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from diloco_operator.fleet import Fleet, Slice
from diloco_operator.operator.caches import JobKey
from diloco_operator.placement.matching import WantClass
from diloco_operator.reconcile.units.preemption import fits

type _Rank = tuple[int, float, JobKey]
"""Who gives first: the lowest priority, and among equals the youngest job."""


class Lending:
    """What jobs lack, and what others have scavenged."""

    def __init__(self, fleet: Fleet, wake: Callable[[JobKey], None]) -> None:
        self._fleet = fleet
        self._wake = wake
        self._lacks: dict[JobKey, Mapping[WantClass, int]] = {}
        self._lends: dict[JobKey, tuple[_Rank, Sequence[Slice]]] = {}

    def set(self, key: JobKey, *, priority: int, created: float, lacks: Mapping[WantClass, int], lends: Sequence[Slice]) -> None:
        """What the job lacks and lends from now on. Wakes those who are to give something back for it."""
        before = self._lacks.pop(key, {})
        if lacks:
            self._lacks[key] = lacks
        self._lends.pop(key, None)
        if lends:
            self._lends[key] = ((priority, -created, key), lends)
        if any(count > before.get(want, 0) for want, count in lacks.items()):
            for lender in [other for other in self._lends if other != key]:
                if any(self.claims(lender).values()):
                    self._wake(lender)

    def claims(self, key: JobKey) -> dict[WantClass, int]:
        """What other jobs lack, and how many slices this one is to give back for it, those included that its units are leaving."""
        wanted: dict[WantClass, int] = {}
        for job, lacks in self._lacks.items():
            if job != key:
                for want, count in lacks.items():
                    wanted[want] = wanted.get(want, 0) + count
        return {want: self._due(key, want, count) for want, count in wanted.items()}

    def _due(self, key: JobKey, want: WantClass, short: int) -> int:
        free = (part for part in self._fleet.free(want.shape) if want.fits(part))
        short -= sum(1 for _ in itertools.islice(free, short))  # those need only be taken
        for _, lender, lent in sorted((rank, lender, lent) for lender, (rank, lent) in self._lends.items()):
            if short <= 0:
                return 0
            count = sum(fits(want, part) for part in lent)
            if lender == key:
                return min(short, count)
            short -= count
        return 0
