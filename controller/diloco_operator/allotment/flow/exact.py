"""The best plan for jobs that compete if units of several sizes take from one class: found in whole numbers, not as a flow. Pure.

The rules are those of the flow, one after the other: minima in their order, then units beyond them by priority, then the value of all, and
at last what slices that are kept for minima are lent for. The result of each step bounds the next ones.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from diloco_operator.allotment.flow.integers import ENOUGH, Integers, SolveStatus, TimeLimit, added, same_limit
from diloco_operator.allotment.flow.model import Lane, Size
from diloco_operator.allotment.flow.objective import Bonuses, segments, share_of
from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowPlan, FlowPool, PoolKey, PoolPlan, unheld

type _Places = dict[PoolKey, PoolPlan]
type _Entry = tuple[str, Lane]
"""A hub, and the lane of new units that enter it. All classes of the hub are the same to them."""


def takes_several_sizes(jobs: Iterable[FlowJob], classes: Iterable[FlowClass]) -> bool:
    """Whether units of several sizes use one class. If not, a flow is exact."""
    return any(len(sizes) > 1 for sizes in _sizes(jobs, classes).values())


def _sizes(jobs: Iterable[FlowJob], classes: Iterable[FlowClass]) -> dict[str, set[Size]]:
    """Return class -> the sizes of units that have or could take room of it."""
    sizes: dict[str, set[Size]] = {class_.name: set() for class_ in classes}
    of_hub: dict[str, list[str]] = {}
    hubs = {class_.name: class_.hub for class_ in classes}
    for name, hub in hubs.items():
        of_hub.setdefault(hub, []).append(name)
    for job in jobs:
        for pool in job.pools:
            for hub in pool.values:
                for name in of_hub.get(hub, ()):
                    sizes[name].add(pool.size_in(hub))
            for each in pool.held:
                sizes[each.class_].add(pool.size_in(hubs[each.class_]))
    return sizes


def best_plan(jobs: Sequence[FlowJob], classes: Sequence[FlowClass], bonus: Bonuses, time_limit: TimeLimit = same_limit) -> FlowPlan:
    """Return the best plan. `jobs` are in the order in which they are served."""
    return _Exact(jobs, classes, bonus, time_limit).plan()


@dataclass(slots=True)
class _Counts:
    """The variables of one job."""

    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> class -> units that stay."""
    new: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> hub -> new units."""
    moved: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> hub -> slices for units that would leave theirs."""
    value: dict[int, int] = field(default_factory=dict)
    """Variable of units -> the value of one of them."""
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    """Segments of its shares: (variable, bonus of a unit, cost of a unit)."""
    least: int = -1
    """The row that keeps the units of its minimum."""
    newcomers: int = -1
    """The row that keeps the new units of its minimum."""
    own: dict[str, int] = field(default_factory=dict)
    """Pool -> the row that keeps the new units of the pool's own minimum."""


class _Exact:
    """One problem: make an object for each, and call `plan` once."""

    def __init__(self, jobs: Sequence[FlowJob], classes: Sequence[FlowClass], bonus: Bonuses, time_limit: TimeLimit) -> None:
        self._jobs = jobs
        self._classes = classes
        self._hubs = {class_.name: class_.hub for class_ in classes}
        self._bonus = bonus
        self._sizes = _sizes(jobs, classes)
        self._sums = Integers(time_limit)
        self._takes: dict[str, dict[int, int]] = {class_.name: {} for class_ in classes}
        """Class -> variable of units -> what one of them takes of its room."""
        self._lanes: dict[_Entry, dict[str, int]] = {}
        """Hub and lane -> class -> variable of the new units that take slices of it."""
        self._entering: dict[_Entry, list[int]] = {}
        """Hub and lane -> variables of the new units that enter it, one for each pool."""
        self._counts: dict[str, _Counts] = {}
        self._met: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._undecided: set[str] = set()
        """Jobs of whose minimum it was not found in time how much fits."""
        self._waiting: dict[str, dict[str, int]] = {}
        """Job that keeps slices for its minimum -> class -> variable of the rest that it keeps too: room that is too small for its
        units."""
        self._kept_rests: list[int] = []
        """The rows that keep these rests."""
        self._by_key = {job.key: job for job in jobs}
        for job in jobs:
            self._counts[job.key] = self._count(job)
        self._bound_rooms()
        self._bonuses: dict[int, int] = {}
        """Variable of a segment -> a unit's bonus for priority, as a small number, because HiGHS counts in floating point."""
        self._worths: dict[int, int] = {}
        """Variable -> what a unit adds to the value of all, without bonuses."""
        for counts in self._counts.values():
            self._worths |= counts.value
            for units, bonus_of_unit, cost in counts.beyond:
                if bonus_of_unit:
                    self._bonuses[units] = bonus_of_unit
                if cost:
                    self._worths[units] = -cost
        if self._bonuses:
            divisor = math.gcd(*self._bonuses.values())
            self._bonuses = {units: each // divisor for units, each in self._bonuses.items()}
            self._bonus_row = self._sums.row(self._bonuses)

    # --- what any plan keeps -----------------------------------------------------------------------------------------------
    def _count(self, job: FlowJob) -> _Counts:
        counts, sums = _Counts(), self._sums
        for pool in job.pools:
            kept = counts.kept[pool.name] = {}
            for each in sorted(pool.held, key=lambda each: each.class_):
                unit = kept[each.class_] = sums.variable(each.units, each.settling)
                counts.value[unit] = each.value
                self._takes[each.class_][unit] = pool.size_in(self._hubs[each.class_])
            new = counts.new[pool.name] = self._enter(pool, pool.values, pool.wanted, displaces=pool.displaces)
            counts.value |= {unit: pool.values[hub] for hub, unit in new.items()}
            better = pool.values if pool.better is None else [hub for hub in pool.values if hub in pool.better]
            moved = counts.moved[pool.name] = self._enter(pool, better, min(pool.moving, pool.has), displaces=True)
            # Least of all values: a unit gets a better slice only if that costs no other unit anything.
            counts.value |= dict.fromkeys(moved.values(), 1)
            if kept and not pool.scavenged:
                sums.row(added(kept.values()), least=min(pool.min, pool.has))
        firm, scavenging = job.firm, [pool for pool in job.pools if pool.scavenged]
        sums.row(self._units(counts, job.pools), most=max(job.max, job.staying))
        if job.has:
            sums.row(self._kept(counts, firm), least=job.protected - job.replaceable)
            if job.most_new is not None:
                sums.row(self._new(counts, firm), most=job.most_new)
        counts.newcomers = sums.row(self._new(counts, firm))
        counts.own = {pool.name: sums.row(self._new(counts, (pool,))) for pool in firm if pool.missing}
        counts.least = self._share(job, counts, firm, scavenged=False)
        if scavenging:
            self._share(job, counts, scavenging, scavenged=True)
        return counts

    def _enter(self, pool: FlowPool, hubs: Iterable[str], most: int, *, displaces: bool) -> dict[str, int]:
        """Return hub -> variable of the units of the pool that take slices of its classes, at most `most` in all."""
        known_hubs = set(self._hubs.values())
        entering: dict[str, int] = {}
        for hub in sorted(hubs) if most else ():
            if hub in known_hubs:
                entering[hub] = self._sums.variable(most)
                self._entering.setdefault((hub, (pool.size_in(hub), displaces)), []).append(entering[hub])
        if len(entering) > 1:
            self._sums.row(added(entering.values()), most=most)
        return entering

    def _share(self, job: FlowJob, counts: _Counts, pools: Sequence[FlowPool], *, scavenged: bool) -> int:
        """Divide the units beyond the minimum into the segments of a share. Returns the row whose bounds are the units of the minimum."""
        most = min(max(job.max, job.staying), sum(pool.has + pool.wanted for pool in pools))
        units = self._units(counts, pools)
        share = share_of(pools)
        for segment in segments(pools, most):
            beyond = self._sums.variable(segment.units)
            units[beyond] = -1
            counts.beyond.append((beyond, self._bonus.of(job, share, scavenged=scavenged), segment.cost))
        return self._sums.row(units, least=0, most=0)

    def _bound_rooms(self) -> None:
        free = unheld(self._jobs, self._classes, successors=True)
        timid: dict[str, dict[int, int]] = {}
        for lane, entering in self._entering.items():
            hub, (size, displaces) = lane
            classes = self._lanes[lane] = {}
            for class_ in self._classes:
                if class_.hub == hub:
                    most = class_.room if displaces else free[class_.name]
                    units = classes[class_.name] = self._sums.variable(max(0, most // size))
                    self._takes[class_.name][units] = size
                    if not displaces:
                        timid.setdefault(class_.name, {})[units] = size
            self._sums.row(added(entering) | dict.fromkeys(classes.values(), -1), least=0, most=0)
        self._rooms = {class_.name: self._sums.row(self._takes[class_.name], most=class_.room) for class_ in self._classes}
        for name, terms in timid.items():
            self._sums.row(terms, most=free[name])

    def _kept(self, counts: _Counts, pools: Iterable[FlowPool]) -> dict[int, int]:
        return added(*(counts.kept[pool.name].values() for pool in pools))

    def _new(self, counts: _Counts, pools: Iterable[FlowPool]) -> dict[int, int]:
        return added(*(counts.new[pool.name].values() for pool in pools))

    def _units(self, counts: _Counts, pools: Sequence[FlowPool]) -> dict[int, int]:
        return self._kept(counts, pools) | self._new(counts, pools)

    # --- the steps ---------------------------------------------------------------------------------------------------------
    def plan(self) -> FlowPlan:
        running = [job for job in self._jobs if job.runs]
        for job in running:
            self._met[job.key] = job.protected
            self._hold(job, job.protected, 0)
        status = self._sums.solve()
        assert status is not SolveStatus.INFEASIBLE, "what is there can stay"
        self._in_turn([job for job in running if job.missing], self._fill)
        self._in_turn([job for job in self._jobs if not job.runs], self._wait)
        is_best = self._best()
        objective, places = self._worth_of(self._counts), self._places()
        kept_for_minimum = {key: self._kept_for_minimum(key, places) for key in self._waiting}
        if not is_best:
            # The last solution is that of the minima. It was found without a goal, so its other units are not worth that others leave.
            gaining = {job.key for job in self._jobs if self._kept_units(job, places) < self._met.get(job.key, 0)}
            return self._planned(self._with_new_only(gaining, places), objective, 0, kept_for_minimum)
        if not self._waiting:
            return self._planned(places, objective, 0, {})
        kept = objective - self._worth_of(self._waiting)
        self._lend_kept(places)
        if not self._best():
            return self._planned(self._with_new_only(self._met, places), objective, 0, kept_for_minimum)
        return self._planned(self._places(), objective, self._worth_of(self._counts) - kept, kept_for_minimum)

    def _in_turn(self, jobs: Sequence[FlowJob], otherwise: Callable[[FlowJob], None]) -> None:
        """Meet the minima of these jobs in turn, and call `otherwise` for a job whose minimum does not fit."""
        begin = 0
        while begin < len(jobs):
            fits, status = self._longest_that_fits(jobs, begin)
            for place, job in enumerate(jobs[begin:], start=begin):
                self._ask(job, all_of_it=place < fits)
                if place < fits:
                    self._met[job.key] = job.protected + job.missing
            if fits < len(jobs):
                if status is SolveStatus.UNDECIDED:
                    self._undecided.add(jobs[fits].key)
                otherwise(jobs[fits])
            begin = fits + 1

    def _longest_that_fits(self, jobs: Sequence[FlowJob], begin: int) -> tuple[int, SolveStatus]:
        """Return the first job, from `begin` on, whose minimum does not fit together with those before: its index, or `len(jobs)`; and
        whether that is certain or undecided."""
        # Mostly all fit, so that is tried first; then the index is found by halves.
        fits, fails, failure = begin, len(jobs) + 1, SolveStatus.FEASIBLE
        while fits + 1 < fails:
            tried = len(jobs) if fails > len(jobs) else (fits + fails) // 2
            for place, job in enumerate(jobs[begin:], start=begin):
                self._ask(job, all_of_it=place < tried)
            status = self._sums.solve()
            if status is not SolveStatus.FEASIBLE:
                fails, failure = tried, status
            elif tried == len(jobs):
                return tried, status
            else:
                fits = tried
        return fits, failure

    def _ask(self, job: FlowJob, *, all_of_it: bool) -> None:
        missing = job.missing if all_of_it else 0
        self._hold(job, job.protected + missing, missing)
        for pool in job.firm:
            self._own(job, pool, pool.missing if all_of_it else 0)

    def _hold(self, job: FlowJob, units: int, new: int) -> None:
        """Require exactly this many units for the job's minimum, and at least this many new ones."""
        counts = self._counts[job.key]
        self._sums.limit(counts.least, units, units)
        self._sums.limit(counts.newcomers, new)

    def _own(self, job: FlowJob, pool: FlowPool, units: int) -> None:
        """Require at least this many new units for the pool's own minimum."""
        if pool.missing:
            self._sums.limit(self._counts[job.key].own[pool.name], units)

    # --- a minimum that does not fit ---------------------------------------------------------------------------------------
    def _fill(self, job: FlowJob) -> None:
        """Fill the minimum of a job that runs as far as there are slices, first the minima of its pools."""
        got = 0
        for pool in job.firm:
            if pool.missing:
                units = self._most(job, (pool,), pool.missing)
                self._own(job, pool, units)
                got += units
        rest = job.missing - sum(pool.missing for pool in job.firm)
        if rest > 0:
            got = self._most(job, job.firm, got + rest)
        self._hold(job, job.protected + got, got)
        self._met[job.key] = job.protected + got
        if got < job.missing:
            self._missing[job.key] = job.missing - got
        else:
            self._undecided.discard(job.key)

    def _most(self, job: FlowJob, pools: Sequence[FlowPool], enough: int) -> int:
        """Return how many new units these pools of the job can get, or `enough` if that is less."""
        new = self._new(self._counts[job.key], pools)
        goal = self._sums.variable(enough)
        self._sums.row({**new, goal: -1}, least=0)
        if self._sums.solve({goal: 1}) is SolveStatus.UNDECIDED:
            self._undecided.add(job.key)
            return min(enough, self._sums.sum_of(new))  # what the last solution gives them
        return self._sums.values[goal]

    def _wait(self, job: FlowJob) -> None:
        """Keep what there is for the minimum of a job that waits from later jobs. A job that cannot start keeps nothing."""
        counts, sums = self._counts[job.key], self._sums
        for unit in self._units(counts, [pool for pool in job.pools if pool.scavenged or not job.keeps]):
            sums.bound(unit, 0, 0)
        # No surplus either: below its minimum the job would train nothing.
        for units, _, _ in counts.beyond:
            sums.bound(units, 0, 0)
        if not job.keeps:
            return
        # Beyond their own minima, the pools together give no more units than the job's minimum needs beyond those.
        rest = job.missing - sum(pool.missing for pool in job.firm)
        beyond = {pool.name: sums.variable(rest) for pool in job.firm}
        for pool in job.firm:
            sums.row({**self._new(counts, (pool,)), beyond[pool.name]: -1}, most=pool.missing)
        sums.row(added(beyond.values()), most=rest)
        sums.limit(counts.least, 0, job.missing)
        new = self._new(counts, job.firm)
        got = sums.sum_of(new) if sums.solve(new) is SolveStatus.FEASIBLE else 0
        sums.limit(counts.least, got, got)
        if got == job.missing:  # it fits, which was undecided
            self._met[job.key] = got
            self._undecided.discard(job.key)
            return
        kept = self._keep_rest(job, job.missing - got)
        if got or kept:
            self._waiting[job.key] = kept

    def _keep_rest(self, job: FlowJob, units: int) -> dict[str, int]:
        """Keep the rests of classes, each too small for the `units` that the job still lacks. Returns class -> the variable of the rest."""
        # Else small units would take a rest again and again, and there would never be enough for a large one.
        sums, uses = self._sums, list[int]()
        largest: dict[str, Size] = {}
        for pool in job.firm:
            for hub in pool.values if pool.wanted else ():
                largest[hub] = max(largest.get(hub, 0), pool.size_in(hub))
        rooms: dict[str, int] = {}
        for class_ in self._classes:
            size = largest.get(class_.hub, 1)
            if size > min(self._sizes[class_.name], default=size):
                rooms[class_.name] = sums.variable(min(size - 1, class_.room))
                uses.append(sums.variable(1))
                sums.row({rooms[class_.name]: 1, uses[-1]: 1 - size}, most=0)
                sums.include(self._rooms[class_.name], rooms[class_.name])
        if not rooms:
            return {}
        sums.row(added(uses), most=units)
        total = added(rooms.values())
        sums.solve(total)
        if not (kept := sums.sum_of(total)):
            for room in rooms.values():
                sums.bound(room, 0, 0)
            return {}
        self._kept_rests.append(sums.row(total, least=kept))
        return rooms

    # --- what all is worth -------------------------------------------------------------------------------------------------
    def _best(self) -> bool:
        """Find the plan with the most units beyond minima, by priority, and then the highest value. Returns False if time ran out first."""
        sums, status = self._sums, SolveStatus.FEASIBLE
        if self._bonuses:
            status = sums.solve(self._bonuses)
            if status is SolveStatus.FEASIBLE:
                sums.limit(self._bonus_row, sums.sum_of(self._bonuses))
        if status is SolveStatus.FEASIBLE:
            status = sums.solve(self._worths, ENOUGH)
        assert status is not SolveStatus.INFEASIBLE, "each step leaves a solution"
        return status is SolveStatus.FEASIBLE

    def _worth_of(self, jobs: Iterable[str]) -> int:
        """Return the value of these jobs' units, with the bonuses of units beyond minima."""
        values, total = self._sums.values, 0
        for key in jobs:
            counts = self._counts[key]
            total += sum(value * values[unit] for unit, value in counts.value.items())
            total += sum((bonus - cost) * values[units] for units, bonus, cost in counts.beyond)
        return total

    def _places(self) -> _Places:
        """Divide new units between the classes of their lanes, which are the same to them."""
        values = self._sums.values
        left = {lane: {name: values[units] for name, units in classes.items()} for lane, classes in self._lanes.items()}
        places: _Places = {}
        for job in self._jobs:
            counts = self._counts[job.key]
            for pool in job.pools:
                kept = {name: values[units] for name, units in counts.kept[pool.name].items() if values[units]}
                new = [
                    _spread((values[units], left[hub, (pool.size_in(hub), displaces)]) for hub, units in entering[pool.name].items())
                    for entering, displaces in ((counts.new, pool.displaces), (counts.moved, True))
                ]
                places[job.key, pool.name] = PoolPlan(kept, *new)
        return places

    def _kept_units(self, job: FlowJob, places: _Places) -> int:
        return sum(sum(places[job.key, pool.name].kept.values()) for pool in job.firm)

    def _with_new_only(self, gaining: Container[str], places: _Places) -> _Places:
        """Return these places with new units only for the jobs `gaining`. Other units stay if nobody takes their room."""
        room = {class_.name: class_.room for class_ in self._classes}
        room_of_job = {job.key: job.max for job in self._jobs}
        kept: dict[PoolKey, dict[str, int]] = {}
        taken: dict[PoolKey, Mapping[str, int]] = {}
        pools = [((job.key, pool.name), pool) for job in self._jobs for pool in job.pools]
        for key, pool in pools:
            kept[key] = dict(places[key].kept)
            taken[key] = places[key].taken if key[0] in gaining else {}
            for name, units in chain(kept[key].items(), taken[key].items()):
                room[name] -= units * pool.size_in(self._hubs[name])
                room_of_job[key[0]] -= units
        for key, pool in pools:
            for each in pool.held:
                size, units = pool.size_in(self._hubs[each.class_]), kept[key].get(each.class_, 0)
                more = min(each.units - units, room[each.class_] // size, room_of_job[key[0]])
                if more > 0:
                    kept[key][each.class_] = units + more
                    room[each.class_] -= more * size
                    room_of_job[key[0]] -= more
        return {key: PoolPlan(kept[key], taken[key]) for key, _ in pools}

    def _kept_for_minimum(self, key: str, places: _Places) -> dict[str, int]:
        """Return class -> room that the job keeps for its minimum."""
        kept = {name: rest for name, room in self._waiting[key].items() if (rest := self._sums.values[room])}
        for pool in self._by_key[key].firm:
            for name, units in places[key, pool.name].taken.items():
                kept[name] = kept.get(name, 0) + units * pool.size_in(self._hubs[name])
        return kept

    def _lend_kept(self, places: _Places) -> None:
        """Free what jobs keep for minima, so that others may have it for units beyond theirs. All other units stay."""
        sums, values = self._sums, self._sums.values
        freed: dict[tuple[_Entry, str], int] = {}
        for row in self._kept_rests:
            sums.limit(row)
        for key, rooms in self._waiting.items():
            for room in rooms.values():
                sums.bound(room, 0, 0)
            job, counts = self._by_key[key], self._counts[key]
            for unit in self._new(counts, job.pools):
                sums.bound(unit, 0, 0)
            sums.limit(counts.least, 0, 0)
            for pool in job.pools:
                for name, units in places[key, pool.name].taken.items():
                    hub = self._hubs[name]
                    place = (hub, (pool.size_in(hub), pool.displaces)), name
                    freed[place] = freed.get(place, 0) + units
        for job in self._jobs:
            counts = self._counts[job.key]
            if job.key not in self._waiting:
                for unit in counts.value:
                    sums.at_least(unit, values[unit])
        for lane, classes in self._lanes.items():
            for name, units in classes.items():
                sums.at_least(units, values[units] - freed.get((lane, name), 0))

    def _planned(self, places: _Places, objective: int, lent: int, kept_for_minimum: dict[str, dict[str, int]]) -> FlowPlan:
        met, undecided = frozenset(self._met), frozenset(self._undecided)
        return FlowPlan(places, met, self._missing, kept_for_minimum, objective, lent, self._sums.gap, undecided)


def _spread(units: Iterable[tuple[int, dict[str, int]]]) -> dict[str, int]:
    """Return class -> units. Each of `units` is a number of units, and what is left of their lane's classes, from which they are taken."""
    by_class: dict[str, int] = {}
    for count, left in units:
        for name, room in left.items():
            if taken := min(count, room):
                count -= taken
                left[name] -= taken
                by_class[name] = by_class.get(name, 0) + taken
        assert not count, "what enters a lane takes slices of its classes"
    return by_class
