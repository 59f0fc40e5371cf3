"""Jobs that have nothing and wait for slices, in lines of equal jobs. An allotment looks only at the first of each line.

Equal jobs differ only in their age. If one of them gets nothing, the jobs behind it get nothing either, and change no other job's slices.
So an allotment need look at no more jobs of a line than could get a slice, even if thousands wait.

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
    """The bits of the jobs' requirements."""
    jobs: list[tuple[float, str]] = field(default_factory=list)
    """When each was created, and its key: the order of `JobRequest` among equals."""
    considered: int | None = None
    """How many the last allotment looked at. None if it looked at all, or there was none."""

    asks: bool = False
    """Whether some of the pods need a dry run before units of other jobs leave for them."""

    def looked_at(self, free: int, leaving: int) -> int | None:
        """How many an allotment looks at, from the first on. None if it looks at all."""
        # A dry run may admit one job and refuse the next, so the first that fails says nothing about those behind it.
        return None if self.asks and leaving else free + leaving + 1

    def matters(self, place: int) -> bool:
        """Whether the job in this place may change the next allotment."""
        return self.considered is None or place < self.considered


class WaitingJobs:
    """The lines of waiting jobs. The allotment keeps them up to date; an update costs the logarithm of a line's length, but for moving
    references."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._line_of: dict[str, tuple[Hashable, tuple[float, str]]] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._line_of

    def add(self, request: JobRequest, mask: int) -> bool:
        """Let the job wait. `mask` has the bits of its requirements. Returns whether the allotment may change."""
        key, entry = (request.priority, request.min, request.room, request.pools), (request.created, request.job)
        line = self._lines.setdefault(key, _Line(mask, asks=not all(pool.admitted for pool in request.pools)))
        place = bisect.bisect_left(line.jobs, entry)
        line.jobs.insert(place, entry)
        self._line_of[request.job] = key, entry
        return line.matters(place)

    def discard(self, job: str) -> bool:
        """Let the job wait no more. Returns whether the allotment may change: always True for a job that did not wait."""
        place_in_line = self._line_of.pop(job, None)
        if place_in_line is None:
            return True
        key, entry = place_in_line
        line = self._lines[key]
        place = bisect.bisect_left(line.jobs, entry)
        del line.jobs[place]
        if not line.jobs:
            del self._lines[key]
        return line.matters(place)

    def masks(self) -> set[int]:
        return {line.mask for line in self._lines.values()}

    def first(self, component: int, free: int, leaving: int) -> Iterator[str]:
        """Yield the first jobs of each line with requirements of this component: one more than can get a slice.

        Args:
            free: units that fit at most into free slices.
            leaving: units that fit at most where units of other jobs may have to leave.
        """
        lines = (line for line in self._lines.values() if line.mask & component)
        return (job for line in lines for _, job in line.jobs[: line.looked_at(free, leaving)])

    def note(self, component: int, free: int, leaving: int) -> None:
        """Note that an allotment now looks at the jobs that `first` gives for the same arguments."""
        for line in self._lines.values():
            if line.mask & component:
                line.considered = line.looked_at(free, leaving)


def only_waits(request: JobRequest) -> bool:
    """Whether the job has nothing and wants slices."""
    if request.occupied or request.shared or not any(pool.wanted for pool in request.pools):
        return False
    return not any(pool.units or pool.moving or pool.draining_or_completed or pool.counted_for_min for pool in request.pools)
