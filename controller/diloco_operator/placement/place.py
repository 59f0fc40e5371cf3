"""Which unit gets which slice: units stay where they are, and new ones get what is free for their pool. Pure.

The allotment decides, over all jobs and pools, which slices are free for a pool. So pools do not compete here.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.fleet.slices import Fleet, Slice
from diloco_operator.placement.barred import FreeSlices
from diloco_operator.placement.domains import DomainRooms
from diloco_operator.placement.explain import WAITS, pool_outcome, unplaced_reason, with_nodes_for_all
from diloco_operator.placement.request import JobRequest, PlacedUnit, Placement, PoolRequest, UnplacedUnit


def place(job: JobRequest, fleet: Fleet, avoid: Collection[str] = ()) -> Placement:
    """Place the units of a job: first those that its pools' minima need, then those that run, then new ones in the order of the pools.

    No slice is given twice, a unit with a slice keeps it or gets none, and the maxima of the job and its pools hold. New units get the
    nodes of `avoid` only if there are no others.
    """
    placing = _Placing.of(job, fleet, avoid)
    placing.meet_pool_minima()
    placing.keep_running()
    placing.grow()
    return placing.placement()


def _candidates(job: JobRequest, pool: PoolRequest) -> Iterator[str]:
    """Yield the units of a pool that have slices, and those that may get some."""
    return itertools.chain((unit.name for unit in pool.units), job.startable(pool))


class _Offers:
    """Hands out free slices. It reads them from the fleet only as far as needed."""

    def __init__(self, fleet: Fleet, avoid: Collection[str]) -> None:
        self._fleet = fleet
        self._avoid = avoid
        self.taken: set[str] = set()
        """Keys of slices that units keep or got."""
        self._fitting: dict[str, Iterator[Slice]] = {}
        """Pool -> free slices for its units that have not been read yet."""
        self._rooms: dict[str, tuple[DomainRooms, ...]] = {}
        """Pool with units of several slices -> the slices that are left for it: without nodes to avoid, if there are such, then all."""

    def reserve(self, slices: Sequence[Slice]) -> bool:
        """Take the slices that a unit has. False if another unit has one of them."""
        if any(slice_.key in self.taken for slice_ in slices):
            return False
        self._take(slices)
        return True

    def next(self, pool: PoolRequest) -> tuple[Slice, ...]:
        """Take slices for one more unit of the pool: the first, or several that are nearest to each other. Empty if there are too few."""
        slots = pool.shape.slots
        if slots > 1:
            slices: list[Slice] = []
            for rooms in self._near(pool):
                slices = rooms.take(slots)
                if slices:
                    break
        else:
            if pool.name not in self._fitting:
                self._fitting[pool.name] = self._all(pool)
            first = next((slice_ for slice_ in self._fitting[pool.name] if slice_.key not in self.taken), None)
            slices = [first] if first is not None else []
        self._take(slices)
        return tuple(slices)

    def _take(self, slices: Sequence[Slice]) -> None:
        self.taken.update(slice_.key for slice_ in slices)
        for rooms in itertools.chain.from_iterable(self._rooms.values()):
            for slice_ in slices:
                rooms.discard(slice_)

    def _near(self, pool: PoolRequest) -> tuple[DomainRooms, ...]:
        if pool.name not in self._rooms:
            left = [slice_ for slice_ in self._all(pool) if slice_.key not in self.taken]
            offers = [left]
            if self._avoid:
                offers.insert(0, [slice_ for slice_ in left if not self._is_avoided(slice_)])
            self._rooms[pool.name] = tuple(DomainRooms(each, pool.requirements.locality) for each in offers)
        return self._rooms[pool.name]

    def _all(self, pool: PoolRequest) -> Iterator[Slice]:
        avoided = []
        for slice_ in filter(pool.requirements.suits, self._fleet.free(pool.shape, pool.name)):
            if self._is_avoided(slice_):
                avoided.append(slice_)
            else:
                yield slice_
        yield from avoided

    def _is_avoided(self, slice_: Slice) -> bool:
        return any(host.node in self._avoid for host in slice_.hosts)


@dataclass(slots=True)
class _Pool:
    """What is decided for one pool."""

    request: PoolRequest
    undecided: list[str] = field(default_factory=list)
    """Units with slices that may stay or have to leave."""
    new: list[str] = field(default_factory=list)
    """Units without slices. The next to get one is the last."""
    placed: dict[str, tuple[Slice, ...]] = field(default_factory=dict)
    """Unit -> its slices."""

    @property
    def room(self) -> int:
        """How many more units with slices may stay."""
        return self.request.max - len(self.placed)

    @property
    def room_for_new(self) -> int:
        return self.room - self.request.draining_or_completed - self.request.asked


@dataclass(slots=True)
class _Placing:
    """What is decided for one job."""

    job: JobRequest
    fleet: Fleet
    free: _Offers
    pools: list[_Pool]
    kept: dict[str, tuple[Slice, ...]]
    """Unit -> the slices that it has already."""

    @classmethod
    def of(cls, job: JobRequest, fleet: Fleet, avoid: Collection[str]) -> _Placing:
        free = _Offers(fleet, avoid)
        kept: dict[str, tuple[Slice, ...]] = {}
        pools = []
        for request in job.pools:
            pool = _Pool(request)
            unplaced = []
            for unit in request.units:
                slices = fleet.resolve(request.shape, unit.slice)
                # Several units may have one divisible host, so none reserves it: free is what they leave of it.
                if slices and (request.shape.divides or free.reserve(slices)):
                    kept[unit.name] = slices
                    pool.undecided.append(unit.name)
                else:
                    unplaced.append(unit.name)
            pool.new = [*unplaced, *job.startable(request)][::-1]
            pools.append(pool)
        return cls(job, fleet, free, pools, kept)

    @property
    def placed(self) -> int:
        return sum(len(pool.placed) for pool in self.pools)

    @property
    def room(self) -> int:
        """How many more units with slices may stay."""
        return self.job.max - self.placed

    def meet_pool_minima(self) -> None:
        for pool in self.pools:
            while pool.undecided and len(pool.placed) < pool.request.min and pool.room > 0 and self.room > 0:
                self._keep(pool)
        for pool in self.pools:
            self._add(pool, pool.request.min - pool.request.draining_or_completed - pool.request.asked - len(pool.placed))

    def keep_running(self) -> None:
        """Keep units that run, one of each pool in turn, as far as the maxima of the job and the pools allow."""
        room = self.room
        waiting = [pool for pool in self.pools if pool.undecided and pool.room > 0]
        while waiting and room > 0:
            for pool in waiting[:room]:
                self._keep(pool)
            room -= len(waiting[:room])
            waiting = [pool for pool in waiting if pool.undecided and pool.room > 0]

    def grow(self) -> None:
        """Add new units, in the order of the pools."""
        for pool in self.pools:
            self._add(pool, len(pool.new))

    def _keep(self, pool: _Pool) -> None:
        unit = pool.undecided.pop(0)
        pool.placed[unit] = self.kept[unit]

    def _add(self, pool: _Pool, count: int) -> None:
        for _ in range(min(count, len(pool.new), pool.room_for_new, self.room - self.job.reserved)):
            slices = self.free.next(pool.request)
            if not slices:
                return
            pool.placed[pool.new.pop()] = slices

    def placement(self) -> Placement:
        """Return which units have slices, and why the others have none."""
        assigned: list[PlacedUnit] = []
        job_nodes: Counter[str] = Counter()
        for pool in self.pools:
            chips = pool.request.shape.chips_per_host
            for unit in _candidates(self.job, pool.request):
                if unit in pool.placed:
                    assigned.append(PlacedUnit(pool.request.name, unit, pool.placed[unit]))
                    job_nodes.update({slice_.hosts[0].node: chips for slice_ in pool.placed[unit]})
        unplaced: list[UnplacedUnit] = []
        outcomes = []

        @functools.cache
        def free_for(pool: str) -> FreeSlices:
            named = next(each for each in self.pools if each.request.name == pool)
            return FreeSlices.of(named.request, self.fleet, self.free.taken)

        for pool in self.pools:
            outcome = pool_outcome(
                self.job,
                pool.request,
                self.fleet,
                len(pool.placed),
                job_room=self.room - self.job.reserved,
                job_nodes=job_nodes,
                free_for=free_for,
            )
            outcomes.append(outcome)
            undecided = frozenset(pool.undecided)
            for unit in _candidates(self.job, pool.request):
                if unit not in pool.placed:
                    reason = UnitReason.SCALED_DOWN if unit in undecided else unplaced_reason(outcome)
                    message = WAITS.format(pool.request.name) if follows(reason, Follows.POOL_SAYS_WHY) else outcome.causes
                    unplaced.append(UnplacedUnit(pool.request.name, unit, reason, message))
        return Placement(tuple(assigned), tuple(unplaced), tuple(outcomes if job_nodes else with_nodes_for_all(self.job, outcomes)))
