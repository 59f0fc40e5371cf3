"""Jobs that have nothing and wait for slices, in lines of equal ones. An allotment looks at the first of each line only.

Equal jobs differ in nothing but their age. So if one of them gets nothing, neither does any behind it, and what a job behind such a one
wants changes no other's slices. Thousands of equal jobs cost an allotment no more than the slices that they could get.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from diloco_operator.placement.request import JobRequest


@dataclass(slots=True)
class _Line:
    """Equal jobs, the oldest first."""

    mask: int
    """The bits of their requirements."""
    jobs: list[tuple[float, str]] = field(default_factory=list)
    """When each was created, and its key: the order of `JobRequest` among equals."""
    considered: int | None = None
    """The last allotment looked at so many; None: at all, or there was none."""

    asks: bool = False
    """Some of their pods need a dry run before units of others leave for them. It says yes to one job and no to another."""

    def looked_at(self, free: int, leaving: int) -> int | None:
        """Return how many of the first are looked at; None: all."""
        return None if self.asks and leaving else free + leaving + 1

    def matters(self, place: int) -> bool:
        """Return whether the next allotment may differ because of the job in this place."""
        return self.considered is None or place < self.considered


class WaitingJobs:
    """Kept up to date by the allotment. An update costs the logarithm of the number of equal jobs, but for moving references."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._line_of: dict[str, tuple[Hashable, tuple[float, str]]] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._line_of

    def add(self, request: JobRequest, mask: int) -> bool:
        """Let the job wait from now on. `mask`: the bits of its requirements. Returns whether the allotment may change."""
        key, entry = (request.priority, request.min, request.most, request.pools), (request.created, request.job)
        line = self._lines.setdefault(key, _Line(mask, asks=not all(pool.admitted for pool in request.pools)))
        place = bisect.bisect_left(line.jobs, entry)
        line.jobs.insert(place, entry)
        self._line_of[request.job] = key, entry
        return line.matters(place)

    def discard(self, job: str) -> bool:
        """Let the job wait no more. Returns whether the allotment may change, which is so for a job that did not wait."""
        found = self._line_of.pop(job, None)
        if found is None:
            return True
        key, entry = found
        line = self._lines[key]
        place = bisect.bisect_left(line.jobs, entry)
        del line.jobs[place]
        if not line.jobs:
            del self._lines[key]
        return line.matters(place)

    def masks(self) -> set[int]:
        """Return the masks of all lines."""
        return {line.mask for line in self._lines.values()}

    def first(self, component: int, free: int, leaving: int) -> Iterator[str]:
        """Yield the first jobs of each line with requirements of this component: one more than can get a slice. `free`, `leaving`: units
        that find room at most where slices are free, and where units of others may have to leave."""
        found = (line for line in self._lines.values() if line.mask & component)
        return (job for line in found for _, job in line.jobs[: line.looked_at(free, leaving)])

    def note(self, component: int, free: int, leaving: int) -> None:
        """Note that an allotment looks at these now."""
        for line in self._lines.values():
            if line.mask & component:
                line.considered = line.looked_at(free, leaving)


def only_waits(request: JobRequest) -> bool:
    """Return whether the job has nothing and wants slices."""
    if request.occupied or request.shared or not any(pool.wanted for pool in request.pools):
        return False
    return not any(pool.units or pool.moving or pool.draining_or_completed or pool.counted_for_min for pool in request.pools)
