"""The first solver: minima first, then units that run already, then growth in the order of the pools; augmenting paths where pools compete.

Every unit that has a slice keeps it, so only free slices are matched.

See docs/decisions/0043-placement.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from diloco_operator.api.reasons import UnitReason
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.explain import WAITS, pool_outcome, unplaced_reason
from diloco_operator.placement.matching import Matching, SliceRequirements, slice_requirements
from diloco_operator.placement.request import (
    JobRequest,
    PlacedUnit,
    Placement,
    PlacementRequest,
    PoolOutcome,
    PoolRequest,
    UnitRequest,
    UnplacedUnit,
)


def place(request: PlacementRequest) -> Placement:
    """See `Solver`. Cost: the slices that are read, about one per unit where many are free."""
    matching = Matching(request.fleet)
    placements = [_JobPlacement.open(job, request, matching) for job in sorted(request.jobs, key=lambda j: -j.priority)]
    for placement in placements:
        placement.meet_pool_minima()
    for placement in placements:
        placement.keep_running()
    for placement in placements:
        placement.grow(placement.job.min)
    for placement in placements:
        placement.grow(placement.job.max)
    by_key = {placement.job.key: placement for placement in placements}
    assigned: list[PlacedUnit] = []
    unplaced: list[UnplacedUnit] = []
    pools: list[PoolOutcome] = []
    for job in request.jobs:
        by_key[job.key].close(assigned, unplaced, pools)
    return Placement(tuple(assigned), tuple(unplaced), tuple(pools))


@dataclass(slots=True)
class _PoolPlacement:
    request: PoolRequest
    requirements: SliceRequirements
    undecided: list[UnitRequest]
    """Units with a slice that are not decided yet."""
    new: list[UnitRequest]
    """Units without a slice that are not decided yet; the next one stands last."""
    placed: dict[str, tuple[Slice, ...] | None] = field(default_factory=dict)
    """Unit -> the slices that it keeps; None: those that the matching gave it."""

    @property
    def room(self) -> int:
        """Units that run for which there is room."""
        return self.request.max - len(self.placed)

    @property
    def room_for_new(self) -> int:
        return self.room - self.request.reserved - self.request.asked


@dataclass(slots=True)
class _JobPlacement:
    """What this round decides for one job."""

    job: JobRequest
    request: PlacementRequest
    matching: Matching
    pools: list[_PoolPlacement]
    kept: dict[str, tuple[Slice, ...]]
    """Unit -> the slices that it has already."""

    @classmethod
    def open(cls, job: JobRequest, request: PlacementRequest, matching: Matching) -> _JobPlacement:
        kept: dict[str, tuple[Slice, ...]] = {}
        pools = []
        for pool in job.pools:
            placed, new = [], []
            for unit in pool.units:
                slices = request.fleet.resolve(pool.shape, unit.slice) if unit.slice else None
                if (
                    slices
                    and len(slices) == pool.shape.slots
                    and matching.reserve(f"{job.key} {unit.name}", slices, divides=pool.shape.divides)
                ):
                    kept[unit.name] = slices
                    placed.append(unit)
                else:
                    new.append(unit)
            pools.append(_PoolPlacement(pool, slice_requirements(pool), placed, new[::-1]))
        return cls(job, request, matching, pools, kept)

    @property
    def placed(self) -> int:
        return sum(len(pool.placed) for pool in self.pools)

    @property
    def room(self) -> int:
        """Units that run for which there is room."""
        return self.job.max - self.placed

    def meet_pool_minima(self) -> None:
        for pool in self.pools:
            self._keep(pool, pool.request.min)
        for pool in self.pools:
            self._add(pool, pool.request.min - pool.request.reserved - pool.request.asked - len(pool.placed))

    def keep_running(self) -> None:
        """Units that run stay, round robin over the pools, as long as the maxima of the job and the pool allow."""
        room = self.room
        waiting = [pool for pool in self.pools if pool.undecided and pool.room > 0]
        while waiting and room > 0:
            for pool in waiting[:room]:
                unit = pool.undecided.pop(0)
                pool.placed[unit.name] = self.kept[unit.name]
            room -= len(waiting[:room])
            waiting = [pool for pool in waiting if pool.undecided and pool.room > 0]

    def grow(self, target: int) -> None:
        """Add units up to `target` in all, in the order of the pools; if that does not reach it, small units first."""
        before = {unit for pool in self.pools for unit in pool.placed}
        if self._grow_over(self.pools, target) or target != self.job.min or len({p.requirements.shape.slots for p in self.pools}) < 2:
            return
        first = self._undo(before)
        self._grow_over(sorted(self.pools, key=lambda p: p.requirements.shape.slots), target)
        if self.placed < first:
            self._undo(before)
            self._grow_over(self.pools, target)

    def _grow_over(self, pools: Iterable[_PoolPlacement], target: int) -> bool:
        for pool in pools:
            self._add(pool, target - self.job.reserved - self.placed)
        return self.placed + self.job.reserved >= target

    def _undo(self, before: set[str]) -> int:
        """Undo what was added since `before`. Returns how many units were placed."""
        total = self.placed
        for pool in self.pools:
            for unit in [u for u in pool.placed if u not in before][::-1]:
                self.matching.remove(f"{self.job.key} {unit}")
                del pool.placed[unit]
                pool.new.append(next(u for u in pool.request.units if u.name == unit))
        return total

    def _keep(self, pool: _PoolPlacement, target: int) -> None:
        while pool.undecided and len(pool.placed) < target and pool.room > 0 and self.room > 0:
            unit = pool.undecided.pop(0)
            pool.placed[unit.name] = self.kept[unit.name]

    def _add(self, pool: _PoolPlacement, count: int) -> None:
        for _ in range(min(count, pool.room_for_new, self.room - self.job.reserved, len(pool.new))):
            unit = pool.new[-1]
            if not self.matching.add(f"{self.job.key} {unit.name}", pool.requirements):
                return
            pool.new.pop()
            pool.placed[unit.name] = None

    def close(self, assigned: list[PlacedUnit], unplaced: list[UnplacedUnit], outcomes: list[PoolOutcome]) -> None:
        for pool in self.pools:
            for unit in pool.request.units:
                if unit.name in pool.placed:
                    slices = pool.placed[unit.name] or tuple(self.matching.slices[f"{self.job.key} {unit.name}"])
                    assigned.append(PlacedUnit(self.job.key, pool.request.name, unit.name, slices))
        own: Counter[str] = Counter()
        chips = {pool.request.name: pool.request.shape.chips_per_host for pool in self.pools}
        for each in assigned:
            if each.job == self.job.key:
                own.update({slice_.hosts[0].node: chips[each.pool] for slice_ in each.slices})
        for pool in self.pools:
            outcome = pool_outcome(
                self.job,
                pool.request,
                self.request.fleet,
                pool.requirements,
                len(pool.placed),
                job_room=self.room - self.job.reserved,
                own=own,
                left=self.matching.left(pool.requirements) if pool.new or pool.request.asked else {},
            )
            outcomes.append(outcome)
            undecided = {unit.name for unit in pool.undecided}
            for unit in pool.request.units:
                if unit.name not in pool.placed:
                    dropped = unit.name in undecided
                    reason = UnitReason.SCALED_DOWN if dropped else unplaced_reason(outcome)
                    message = WAITS.format(pool.request.name) if reason is UnitReason.NO_CAPACITY else outcome.causes
                    unplaced.append(UnplacedUnit(self.job.key, pool.request.name, unit.name, reason, message))
