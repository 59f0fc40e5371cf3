"""The allotment of slices to jobs, from nothing: `allot(jobs, classes) -> {job: Allotted}`. Pure and deterministic.

1. Minima of all jobs, the highest priority first, among equals the oldest job. Pool minima are part of a job's minimum.
2. Surplus, the highest priority first; jobs of equal priority get equal shares, counted in slices.
3. Scavenged pools, by the rule of surplus.
4. Slices for units that would leave theirs, from what is left over.

A unit that finds no slice left may have one on which a unit of a later step runs: that unit is revoked. Within surplus of equal priority
this happens only if the shares become strictly more equal, so no two jobs take a slice from each other in turns. Units of a minimum are
never revoked. Nor is a unit that has just got its slices, and none is for a pool whose pods have not been admitted by a dry run.

See docs/decisions/0129-allotment.md. See docs/decisions/0206-dry-runs-before-revocations.md.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.allotment.classes import SliceClass
from diloco_operator.allotment.request import AllotmentRequest, Allotted, HeldUnit, PoolDemand
from diloco_operator.allotment.supply import SliceDemand, Supply
from diloco_operator.api.job import Locality
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.resources import Resources, total
from diloco_operator.fleet.slices import Shape, Slice
from diloco_operator.fleet.use import UnitKey
from diloco_operator.placement.domains import DomainRooms

_FIRM, _SCAVENGED = False, True
"""The two bands: Scavenged pools come after all others."""


class Applicant(NamedTuple):
    """A job, with what the allotment must know of it."""

    request: AllotmentRequest
    numbers: Sequence[int]
    """Of the requirements of its pools."""
    preferred: Sequence[int]
    """Of the slices that its pools prefer; the same number: of none."""
    classes_of: Callable[[HeldUnit], list[SliceClass]]
    """Of the usable slices that a unit has."""


class HostInParts(NamedTuple):
    """A host of which several units have parts, for one that wants more than any of them has."""

    mask: int
    """The bits of the requirements that the host would meet if all its units left."""
    units: Mapping[UnitKey, Resources]
    """Job and unit -> what the unit has."""
    rest: Resources
    """What they leave."""
    rest_class: SliceClass | None
    """Of the part that is free or will be; None: no part is."""
    free: int
    """Its accelerators."""
    sizes: Sequence[int]
    """Accelerators of each part that a unit has, the largest first."""
    leaving: bool
    """What is free will be so: processes there have not ended."""

    def least_leavers(self, wanted: int) -> int:
        """So many units must leave at least for one that wants so many accelerators."""
        free, count = self.free, 0
        for size in self.sizes:
            if free >= wanted:
                break
            free, count = free + size, count + 1
        return count


class _Rank(NamedTuple):
    """What comes first gets first, and gives last."""

    band: bool
    surplus: bool
    priority: int
    """Negative; 0 for minima."""


@dataclass(slots=True)
class _Pool:
    demand: PoolDemand
    size: float
    """Of one of its units, in hosts."""
    number: int
    preferred: int
    wanted: int
    room: int
    counted: int
    """Units that count towards the minimum."""
    firm: int
    """Of these, units that run: those beyond the minimum may be revoked."""


@dataclass(slots=True, eq=False)
class _Surplus:
    """What a job has beyond its minimum in one band."""

    share: float
    """In slices; a part of a host is a part of one."""
    revocable: int
    """Units."""
    rank: tuple[bool, bool, int]
    """What they give way to comes before this rank."""


class _Grant(NamedTuple):
    job: str
    shape: Shape
    demand: SliceDemand


class _Revocation(NamedTuple):
    job: _Job
    band: bool
    pool: _Pool
    unit: HeldUnit


class _Job:
    """One job during the allotment."""

    def __init__(self, applicant: Applicant) -> None:
        self.request = request = applicant.request
        self.classes_of = applicant.classes_of
        self.pools = [_pool(*each) for each in zip(request.pools, applicant.numbers, applicant.preferred, strict=True)]
        self.room = request.max - sum(len(pool.demand.units) + pool.demand.others for pool in self.pools)
        self._leaving: dict[bool, Sequence[tuple[_Pool, HeldUnit]]] = {}
        self.surplus = {band: self._surplus(band) for band in (_FIRM, _SCAVENGED)}
        self.revoked: dict[str, str] = {}
        self.checks: set[str] = set()
        """Names of its pools that would get slices of others."""
        self._units: dict[str, tuple[_Pool, HeldUnit]] | None = None

    @property
    def key(self) -> str:
        return self.request.job

    def of(self, band: bool) -> list[_Pool]:
        return [pool for pool in self.pools if pool.demand.scavenged is band]

    def missing(self) -> int:
        """Units to its minimum."""
        return self.request.min - sum(pool.counted for pool in self.of(_FIRM))

    def _surplus(self, band: bool) -> _Surplus:
        pools = self.of(band)
        units = sum(len(pool.demand.units) for pool in pools)
        revocable = units if band is _SCAVENGED else min(units, max(0, sum(pool.counted for pool in pools) - self.request.min))
        spare = {
            id(pool): len(pool.demand.units) if band is _SCAVENGED else min(len(pool.demand.units), pool.counted - pool.demand.min)
            for pool in pools
        }
        sizes = {pool.size for pool in pools}
        rank = (band, True, -self.request.priority)
        if len(sizes) <= 1:
            share = sum(sizes) * min(revocable, sum(max(0, count) for count in spare.values()))
            return _Surplus(share, revocable, rank)
        share, left = 0.0, revocable
        for pool, _ in self._in_order_of_leaving(band):
            if left > 0 and spare[id(pool)] > 0:
                left -= 1
                spare[id(pool)] -= 1
                share += pool.size
        return _Surplus(share, revocable, rank)

    def _in_order_of_leaving(self, band: bool) -> Sequence[tuple[_Pool, HeldUnit]]:
        """The units of this band: those with which the job loses least first, then the last of the last pool."""
        if band not in self._leaving:
            units = [(pool, unit) for pool in self.of(band) for unit in pool.demand.units][::-1]
            self._leaving[band] = sorted(units, key=lambda each: each[1].loss)
        return self._leaving[band]

    def leaver(self, band: bool, classes: frozenset[SliceClass]) -> tuple[_Pool, HeldUnit] | None:
        """The next unit that may be revoked and has a slice of one of these classes."""
        surplus = self.surplus[band]
        if surplus.revocable <= 0:
            return None
        for pool, unit in self._in_order_of_leaving(band):
            if unit.name in self.revoked or unit.settling or (band is _FIRM and pool.firm <= pool.demand.min):
                continue
            if not classes.isdisjoint(self.classes_of(unit)):
                return pool, unit
        return None

    def unit(self, name: str) -> tuple[_Pool, HeldUnit] | None:
        """A unit that may be asked to leave, and its pool."""
        if self._units is None:
            self._units = {unit.name: (pool, unit) for pool in self.pools for unit in pool.demand.units}
        return self._units.get(name)

    def revoke(self, band: bool, pool: _Pool, unit: HeldUnit, winner: str) -> None:
        surplus = self.surplus[band]
        surplus.revocable -= 1
        surplus.share -= pool.size
        pool.firm -= 1
        pool.counted -= 1
        self.revoked[unit.name] = winner

    def restore(self, band: bool, pool: _Pool, unit: HeldUnit) -> None:
        """Undo `revoke`."""
        surplus = self.surplus[band]
        surplus.revocable += 1
        surplus.share += pool.size
        pool.firm += 1
        pool.counted += 1
        del self.revoked[unit.name]


def _pool(demand: PoolDemand, number: int, preferred: int) -> _Pool:
    held = len(demand.units)
    counted, room = held + demand.lasting, demand.max - held - demand.others
    return _Pool(demand, demand.requirements.shape.size, number, preferred, demand.wanted, room, counted, counted)


class Outcome(NamedTuple):
    """The allotment, and what it says about hosts that should be divided."""

    allotted: dict[str, Allotted]
    taken: Mapping[SliceDemand, Mapping[SliceClass, int]]
    """Slices of each class that were taken, free or not."""
    refused: Mapping[int, int]
    """Requirements -> units that found nothing."""


def allot(
    applicants: Iterable[Applicant], classes: Iterable[SliceClass], hosts: Sequence[HostInParts] = ()
) -> Generator[None, None, Outcome]:
    """What each job gets and gives, in steps of about one unit or one job, between which the caller may do other things that change no
    argument. Cost: one augmenting path for each unit that gets slices, and one for each job that gets none."""
    jobs: list[_Job] = []
    for applicant in applicants:
        jobs.append(_Job(applicant))
        yield
    round_ = _Round(sorted(jobs, key=lambda job: job.request.order), Supply(classes), hosts)
    for job in round_.jobs:
        round_.meet_minimum(job)
        yield
    for band in (_FIRM, _SCAVENGED):
        for priority in sorted({job.request.priority for job in round_.jobs}, reverse=True):
            yield from round_.share_out(band, priority)
    for job in round_.jobs:
        round_.replace_slices(job)
        yield
    refused: dict[int, int] = {}
    for job in round_.jobs:
        for pool in job.pools:
            if (missing := min(pool.wanted, pool.room, job.room)) > 0:
                refused[pool.number] = refused.get(pool.number, 0) + missing
        yield
    taken = {demand: {stock.class_: count for stock, count in given.items()} for demand, given in round_.supply.given.items()}
    return Outcome((yield from round_.result()), taken, refused)


class _Round:
    def __init__(self, jobs: Sequence[_Job], supply: Supply, hosts: Sequence[HostInParts] = ()) -> None:
        self.jobs = jobs
        self.supply = supply
        self._hosts = dict(enumerate(hosts))
        """Those that no unit has got as a whole in this round."""
        self._by_key = {job.key: job for job in jobs} if hosts else {}
        self.coming: dict[str, int] = {}
        """Job -> its units that get a host in parts once others have left it."""
        self.grants: list[_Grant] = []
        self._revoked: list[_Revocation] = []
        self._givers: dict[SliceClass, dict[_Job, None]] | None = None
        """Class -> jobs of which units may be revoked there."""

    # --- the steps -------------------------------------------------------------------------------------------------------
    def meet_minimum(self, job: _Job) -> None:
        """Pool minima, then units of any pool up to the minimum of the job."""
        rank = _Rank(_FIRM, surplus=False, priority=0)
        pools = job.of(_FIRM)
        for pool in pools:
            while pool.counted < pool.demand.min and self._claim(job, pool, rank):
                pass
        if job.missing() <= 0:
            return
        if len({pool.size for pool in pools}) < 2:
            self._grow(job, pools, rank)
            return
        undo = self._snapshot(job)
        self._grow(job, pools, rank)
        if (missing := job.missing()) > 0:  # small units first may reach it
            undo()
            undo = self._snapshot(job)
            self._grow(job, sorted(pools, key=lambda pool: pool.size), rank)
            if job.missing() >= missing:
                undo()
                self._grow(job, pools, rank)

    def _grow(self, job: _Job, pools: Sequence[_Pool], rank: _Rank) -> None:
        for pool in pools:
            while job.missing() > 0 and self._claim(job, pool, rank):
                pass

    def share_out(self, band: bool, priority: int) -> Generator[None, None, None]:
        """One unit after the other goes to the job with the smallest share."""
        rank = _Rank(band, surplus=True, priority=-priority)
        asking = [job for job in self.jobs if job.request.priority == priority and any(pool.wanted > 0 for pool in job.of(band))]
        places = {job: place for place, job in enumerate(asking)}
        queue = [(job.surplus[band].share, place) for job, place in places.items()]
        heapq.heapify(queue)
        while queue:
            yield
            share, place = heapq.heappop(queue)
            job = asking[place]
            if share != job.surplus[band].share:  # it got or gave meanwhile, and stands elsewhere in the queue
                continue
            before = len(self._revoked)
            for pool in job.of(band):
                if self._claim(job, pool, rank):
                    job.surplus[band].share += pool.size
                    for changed in (job, *(revocation.job for revocation in self._revoked[before:])):
                        if changed in places:
                            heapq.heappush(queue, (changed.surplus[band].share, places[changed]))
                    break

    # --- one unit --------------------------------------------------------------------------------------------------------
    def _claim(self, job: _Job, pool: _Pool, rank: _Rank) -> bool:
        """Slices for one more unit of this pool, if there are any."""
        if pool.wanted <= 0 or pool.room <= 0 or job.room <= 0:
            return False
        shape = pool.demand.requirements.shape
        takes = (self._take_left, self._take_from_others) if pool.demand.admitted else (self._take_left,)
        for take in takes:
            for demand in self._demands(pool, shape.slots):
                if take(job, demand, shape, rank):
                    self.grants.append(_Grant(job.key, shape, demand))
                    self._count(job, pool)
                    return True
        if pool.demand.spares:
            return False
        if not pool.demand.admitted:
            if pool.demand.name not in job.checks and self._would_take(job, pool, shape, rank):
                job.checks.add(pool.demand.name)
            return False
        if shape.slots == 1 and self._hosts and self._take_parts_from_others(job, pool, rank):
            self._count(job, pool)
            return True
        return False

    def _count(self, job: _Job, pool: _Pool) -> None:
        """One more unit of the pool has got what it needs."""
        pool.wanted -= 1
        pool.room -= 1
        pool.counted += 1
        job.room -= 1

    def _demands(self, pool: _Pool, slots: int) -> Iterator[SliceDemand]:
        """What a unit of the pool may take, the best first."""
        for number in dict.fromkeys((pool.preferred, pool.number)):
            domains: Sequence[Hashable] = (None,) if slots == 1 else self.supply.domains(number, slots)
            yield from ((number, domain) for domain in domains)

    def replace_slices(self, job: _Job) -> None:
        """For units that would leave their slices."""
        for pool in job.pools:
            shape = pool.demand.requirements.shape
            for _ in range(pool.demand.moving):
                demand = next((demand for demand in self._demands(pool, shape.slots) if self.supply.take(demand, shape.slots)), None)
                if demand is None:
                    break
                self.grants.append(_Grant(job.key, shape, demand))

    def _take_left(self, _job: _Job, demand: SliceDemand, shape: Shape, _rank: _Rank) -> bool:
        return self.supply.take(demand, shape.slots)

    def _would_take(self, job: _Job, pool: _Pool, shape: Shape, rank: _Rank) -> bool:
        """Whether a unit of another job would leave for one of this pool, which has found nothing left. A unit of several slices may need
        more than one to leave; a dry run for nothing is cheap."""
        reached = (self.supply.reach(demand) for demand in self._demands(pool, shape.slots))
        if any(self._leaver(job, classes, shape.size, rank) is not None for classes in reached):
            return True
        return shape.slots == 1 and self._host_in_parts(job, pool, rank) is not None

    def _take_from_others(self, job: _Job, demand: SliceDemand, shape: Shape, rank: _Rank) -> bool:
        slots, size = shape.slots, shape.size
        restore: Callable[[], None] | None = None
        before = len(self._revoked)
        for _ in range(slots):
            while restore is None or not self.supply.take_one(demand):
                leaver = self._leaver(job, self.supply.reach(demand), size, rank)
                if leaver is None:
                    self._restore_revoked(before)
                    if restore is not None:
                        restore()
                    return False
                if restore is None:  # a unit of one slice needs no undo: once a unit leaves for it, it gets that slice
                    restore = self.supply.snapshot() if slots > 1 else _nothing
                leaver.job.revoke(leaver.band, leaver.pool, leaver.unit, job.key)
                self._revoked.append(leaver)
                for class_ in leaver.job.classes_of(leaver.unit):
                    self.supply.add(class_)
        return True

    def _host_in_parts(self, job: _Job, pool: _Pool, rank: _Rank) -> int | None:
        """The host that units have in parts on which the fewest must leave for one of this pool. None: there is none."""
        wanted = pool.demand.requirements.shape.chips_per_host
        best: tuple[int, int] | None = None
        hosts = [(host.least_leavers(wanted), index) for index, host in self._hosts.items() if host.mask >> pool.number & 1]
        for least, index in sorted(hosts):
            if best is not None and least >= best[0]:
                break
            before = len(self._revoked)
            if self._clear(job, pool, rank, self._hosts[index]) and (best is None or len(self._revoked) - before < best[0]):
                best = len(self._revoked) - before, index
            self._restore_revoked(before)
        return best[1] if best is not None else None

    def _take_parts_from_others(self, job: _Job, pool: _Pool, rank: _Rank) -> bool:
        """A host that units have in parts: as many of them leave as it takes, on the host where the fewest must."""
        best = self._host_in_parts(job, pool, rank)
        if best is None:
            return False
        host = self._hosts.pop(best)
        if host.rest_class is not None and not self.supply.withdraw(host.rest_class, leaving=host.leaving):
            return self._take_parts_from_others(job, pool, rank)
        self._clear(job, pool, rank, host)
        self.coming[job.key] = self.coming.get(job.key, 0) + 1
        return True

    def _clear(self, job: _Job, pool: _Pool, rank: _Rank, host: HostInParts) -> bool:
        """Revoke units on this host until there is room for one of the pool. False: too few may be revoked; those that were stay so."""
        rest, needs, units = host.rest, pool.demand.requirements.needs, dict(host.units)
        while not needs.fits(rest):
            found = max(self._leavers(job, pool, rank, units), key=lambda each: each[0], default=None)
            if found is None:
                return False
            leaver = found[1]
            leaver.job.revoke(leaver.band, leaver.pool, leaver.unit, job.key)
            self._revoked.append(leaver)
            rest = total((rest, units.pop((leaver.job.key, leaver.unit.name))))
        return True

    def _leavers(self, job: _Job, pool: _Pool, rank: _Rank, units: Iterable[UnitKey]) -> Iterator[tuple[tuple[object, ...], _Revocation]]:
        """Of these units those that leave for one of this rank; the first to leave has the largest key."""
        for key, name in units:
            other = self._by_key.get(key)
            found = other.unit(name) if other is not None and other is not job else None
            if other is None or found is None or name in other.revoked or found[1].settling:
                continue
            its, unit = found
            band = its.demand.scavenged
            surplus, size = other.surplus[band], max(pool.size, its.size)
            if surplus.revocable <= 0 or surplus.rank < tuple(rank) or (band is _FIRM and its.firm <= its.demand.min):
                continue
            if surplus.rank == tuple(rank) and job.surplus[band].share + size >= surplus.share:
                continue
            priority, created, _ = other.request.order
            yield (band, priority, surplus.share, created, -unit.loss, key, name), _Revocation(other, band, its, unit)

    def _restore_revoked(self, count: int) -> None:
        """Undo all revocations but the first `count`."""
        while len(self._revoked) > count:
            revocation = self._revoked.pop()
            revocation.job.restore(revocation.band, revocation.pool, revocation.unit)

    def _leaver(self, job: _Job, classes: frozenset[SliceClass], size: float, rank: _Rank) -> _Revocation | None:
        """The unit that leaves for a unit of this rank: Scavenged before others, the lowest priority first, among equals from the job
        with the largest share, then from the youngest."""
        givers = self._givers_by_class()
        own = tuple(rank)
        best: _Revocation | None = None
        best_rank: tuple[object, ...] = ()
        for other in {other: None for class_ in classes for other in givers.get(class_, ())}:
            for band, surplus in other.surplus.items():
                if surplus.revocable <= 0 or surplus.rank < own or other is job:
                    continue
                equal = surplus.rank == own
                if equal and job.surplus[band].share + size >= surplus.share:  # the shares would not become strictly more equal
                    continue
                priority, created, key = other.request.order
                its_rank = (band, priority, surplus.share, created, key)
                if best is not None and its_rank <= best_rank:
                    continue
                leaver = other.leaver(band, classes)
                if leaver is None or (equal and job.surplus[band].share + leaver[0].size >= surplus.share):
                    continue
                best, best_rank = _Revocation(other, band, *leaver), its_rank
        return best

    def _givers_by_class(self) -> Mapping[SliceClass, Mapping[_Job, None]]:
        if self._givers is None:
            self._givers = {}
            for job in self.jobs:
                for pool in job.pools:
                    if job.surplus[pool.demand.scavenged].revocable > 0:
                        for unit in pool.demand.units:
                            for class_ in job.classes_of(unit):
                                self._givers.setdefault(class_, {})[job] = None
        return self._givers

    def _snapshot(self, job: _Job) -> Callable[[], None]:
        """A function that restores the present state, after claims of this job alone."""
        supply = self.supply.snapshot()
        grants = len(self.grants)
        pools = [(pool, pool.wanted, pool.room, pool.counted) for pool in job.pools]
        room = job.room
        revoked = len(self._revoked)
        hosts, coming = dict(self._hosts), dict(self.coming)

        def restore() -> None:
            self._restore_revoked(revoked)
            self._hosts, self.coming = hosts, coming
            supply()
            del self.grants[grants:]
            job.room = room
            for pool, wanted, pool_room, counted in pools:
                pool.wanted, pool.room, pool.counted = wanted, pool_room, counted

        return restore

    # --- the slices ------------------------------------------------------------------------------------------------------
    def result(self) -> Generator[None, None, dict[str, Allotted]]:
        """Which slices: in the order of the grants, free ones first. Only of jobs that get or give something."""
        stocks = {class_: _FreeSlices(class_) for given in self.supply.given.values() for class_ in (stock.class_ for stock in given)}
        left = {demand: {stock.class_: count for stock, count in given.items()} for demand, given in self.supply.given.items()}
        granted: dict[str, dict[Shape, list[Slice]]] = {}
        coming = dict(self.coming)
        for grant in self.grants:
            for slice_ in _chosen(grant.shape.slots, left[grant.demand], stocks):
                if slice_ is None:
                    coming[grant.job] = coming.get(grant.job, 0) + 1
                else:
                    granted.setdefault(grant.job, {}).setdefault(grant.shape, []).append(slice_)
            yield
        found: dict[str, Allotted] = {}
        for job in self.jobs:
            slices = {shape: tuple(each) for shape, each in granted.get(job.key, {}).items()}
            if slices or job.key in coming or job.revoked or job.checks:
                found[job.key] = Allotted(slices, coming.get(job.key, 0), job.revoked, frozenset(job.checks))
            yield
        return found


class _FreeSlices:
    """The free slices of one class, in the order in which the inventory offers them."""

    def __init__(self, class_: SliceClass) -> None:
        self._members = class_.members
        self._ordered = deque(class_.free)
        self._taken: set[Location] = set()
        self.left = len(self._ordered)

    def next(self) -> Slice | None:
        """None: no free one is left."""
        while self._ordered:
            location = self._ordered.popleft()
            if location not in self._taken:
                self.left -= 1
                return self._members[location]
        return None

    def near(self, count: int) -> list[Slice]:
        """So many that are as near to each other as there are."""
        free = {self._members[each].key: each for each in self._ordered if each not in self._taken}
        rooms = DomainRooms((self._members[each] for each in free.values()), (), Locality.ANY)
        domain = rooms.nearest(count)
        if domain is None:
            return []
        found = rooms.candidates[domain].take((), count)
        self._taken.update(free[slice_.key] for slice_ in found)
        self.left -= len(found)
        return found


def _chosen(slots: int, counts: dict[SliceClass, int], free: Mapping[SliceClass, _FreeSlices]) -> Iterable[Slice | None]:
    """Slices for one unit, None for each that is not free yet. `counts`: how many slices of each class its requirements have got."""
    if slots > 1:
        for class_, count in counts.items():
            if count >= slots and free[class_].left >= slots:
                counts[class_] -= slots
                return free[class_].near(slots)
    if slots == 1:
        class_ = next((class_ for class_, count in counts.items() if count and free[class_].left), None) or next(
            class_ for class_, count in counts.items() if count
        )
        counts[class_] -= 1
        return (free[class_].next(),)
    found: list[Slice | None] = []
    for class_ in sorted((class_ for class_, count in counts.items() if count), key=lambda class_: not free[class_].left):
        while counts[class_] and len(found) < slots and free[class_].left:
            counts[class_] -= 1
            found.append(free[class_].next())
    for class_ in counts:
        while counts[class_] and len(found) < slots:
            counts[class_] -= 1
            found.append(None)
    return found


def _nothing() -> None:
    """There is nothing to undo."""
