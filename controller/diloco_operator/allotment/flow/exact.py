"""The best plan for jobs that compete if units of several sizes take from one class: found in whole numbers, not as a flow. Pure.

It applies the rules of the flow one after the other: minima in their order, then units beyond them by priority, then the value of all, and
at last what slices that are kept for minima are lent for. The result of each step bounds the next ones.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain

from diloco_operator.allotment.flow.integer_program import HubLane, IntegerProgram, sizes_by_class
from diloco_operator.allotment.flow.integers import ENOUGH, SolveStatus, TimeLimit, added, same_limit
from diloco_operator.allotment.flow.model import Size
from diloco_operator.allotment.flow.objective import Bonuses
from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowPlan, FlowPool, PoolKey, PoolPlan

type _Places = dict[PoolKey, PoolPlan]


def takes_several_sizes(jobs: Iterable[FlowJob], classes: Iterable[FlowClass]) -> bool:
    """Whether units of several sizes use one class. If not, a flow is exact."""
    return any(len(sizes) > 1 for sizes in sizes_by_class(jobs, classes).values())


def best_plan(jobs: Sequence[FlowJob], classes: Sequence[FlowClass], bonus: Bonuses, time_limit: TimeLimit = same_limit) -> FlowPlan:
    """Return the best plan. `jobs` are in the order in which they are served."""
    return _Steps(IntegerProgram(jobs, classes, bonus, time_limit)).plan()


class _Steps:
    """The steps for one problem: make an object for each, and call `plan` once."""

    def __init__(self, program: IntegerProgram) -> None:
        self._program = program
        self._solver = program.solver
        self._jobs = program.jobs
        self._classes = program.classes
        self._hubs = program.hubs
        self._met: dict[str, int] = {}
        """Admitted job -> units of its minimum that have slices."""
        self._missing: dict[str, int] = {}
        """Admitted job -> units of its minimum that have none."""
        self._undecided: set[str] = set()
        """Jobs of whose minimum it was not found in time how much fits."""
        self._waiting: dict[str, dict[str, int]] = {}
        """Job that keeps slices for its minimum -> class -> variable of the rest that it keeps too: room that is too small for its
        units."""
        self._kept_rests: list[int] = []
        """The rows that keep these rests."""

    # --- the steps ---------------------------------------------------------------------------------------------------------
    def plan(self) -> FlowPlan:
        running = [job for job in self._jobs if job.runs]
        for job in running:
            self._met[job.key] = job.protected
            self._hold(job, job.protected, 0)
        status = self._solver.solve()
        assert status is not SolveStatus.INFEASIBLE, "what is there can stay"
        self._in_turn([job for job in running if job.missing], self._fill)
        self._in_turn([job for job in self._jobs if not job.runs], self._wait)
        is_best = self._best()
        objective, places = self._worth_of(self._program.variables), self._places()
        kept_for_minimum = {key: self._kept_for_minimum(key, places) for key in self._waiting}
        if not is_best:
            # The last solution is that of the minima. It was found without a goal, so its other units are not worth that others leave.
            gaining = {job.key for job in self._jobs if self._minimum_takes_new(job, places)}
            return self._planned(self._with_new_only(gaining, places), objective, 0, kept_for_minimum)
        if not self._waiting:
            return self._planned(places, objective, 0, {})
        kept = objective - self._worth_of(self._waiting)
        self._lend_kept(places)
        if not self._best():
            return self._planned(self._with_new_only(self._met, places), objective, 0, kept_for_minimum)
        return self._planned(self._places(), objective, self._worth_of(self._program.variables) - kept, kept_for_minimum)

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
            status = self._solver.solve()
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
            self._hold_pool(job, pool, pool.missing if all_of_it else 0)

    def _hold(self, job: FlowJob, units: int, new: int) -> None:
        """Require exactly this many units for the job's minimum, and at least this many new ones."""
        counts = self._program.variables[job.key]
        self._solver.limit(counts.least, units, units)
        self._solver.limit(counts.newcomers, new)

    def _hold_pool(self, job: FlowJob, pool: FlowPool, units: int) -> None:
        """Require at least this many new units for the pool's own minimum."""
        if pool.missing:
            self._solver.limit(self._program.variables[job.key].pool_minimum[pool.name], units)

    # --- a minimum that does not fit ---------------------------------------------------------------------------------------
    def _fill(self, job: FlowJob) -> None:
        """Fill the minimum of a job that runs as far as there are slices, first the minima of its pools."""
        got = 0
        for pool in job.firm:
            if pool.missing:
                units = self._most(job, (pool,), pool.missing)
                self._hold_pool(job, pool, units)
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
        new = self._program.new(self._program.variables[job.key], pools)
        goal = self._solver.variable(enough)
        self._solver.row({**new, goal: -1}, least=0)
        if self._solver.solve({goal: 1}) is SolveStatus.UNDECIDED:
            self._undecided.add(job.key)
            return min(enough, self._solver.sum_of(new))  # what the last solution gives them
        return self._solver.values[goal]

    def _wait(self, job: FlowJob) -> None:
        """Keep what there is for the minimum of a job that waits from later jobs. A job that cannot start keeps nothing."""
        if not job.missing:  # a minimum of nothing fits, so it was undecided
            self._met[job.key] = 0
            self._undecided.discard(job.key)
            return
        counts, solver = self._program.variables[job.key], self._solver
        for unit in self._program.units(counts, [pool for pool in job.pools if pool.scavenged or not job.keeps]):
            solver.bound(unit, 0, 0)
        # No surplus either: below its minimum the job would train nothing.
        for units, _, _ in counts.beyond:
            solver.bound(units, 0, 0)
        if not job.keeps:
            return
        # Beyond their own minima, the pools together give no more units than the job's minimum needs beyond those.
        rest = job.missing - sum(pool.missing for pool in job.firm)
        beyond = {pool.name: solver.variable(rest) for pool in job.firm}
        for pool in job.firm:
            solver.row({**self._program.new(counts, (pool,)), beyond[pool.name]: -1}, most=pool.missing)
        solver.row(added(beyond.values()), most=rest)
        solver.limit(counts.least, 0, job.missing)
        new = self._program.new(counts, job.firm)
        got = solver.sum_of(new) if solver.solve(new) is SolveStatus.FEASIBLE else 0
        solver.limit(counts.least, got, got)
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
        solver, uses = self._solver, list[int]()
        largest: dict[str, Size] = {}
        for pool in job.firm:
            for hub in pool.values if pool.wanted else ():
                largest[hub] = max(largest.get(hub, 0), pool.size_in(hub))
        rooms: dict[str, int] = {}
        for class_ in self._classes:
            size = largest.get(class_.hub, 1)
            if size > min(self._program.sizes[class_.name], default=size):
                rooms[class_.name] = solver.variable(min(size - 1, class_.room))
                uses.append(solver.variable(1))
                solver.row({rooms[class_.name]: 1, uses[-1]: 1 - size}, most=0)
                solver.include(self._program.rooms[class_.name], rooms[class_.name])
        if not rooms:
            return {}
        solver.row(added(uses), most=units)
        total = added(rooms.values())
        solver.solve(total)
        if not (kept := solver.sum_of(total)):
            for room in rooms.values():
                solver.bound(room, 0, 0)
            return {}
        self._kept_rests.append(solver.row(total, least=kept))
        return rooms

    # --- what all is worth -------------------------------------------------------------------------------------------------
    def _best(self) -> bool:
        """Find the plan with the most units beyond minima, by priority, and then the highest value. Returns False if time ran out first."""
        solver, status = self._solver, SolveStatus.FEASIBLE
        if self._program.bonuses:
            status = solver.solve(self._program.bonuses)
            if status is SolveStatus.FEASIBLE:
                solver.limit(self._program.bonus_row, solver.sum_of(self._program.bonuses))
        if status is SolveStatus.FEASIBLE:
            status = solver.solve(self._program.worths, ENOUGH)
        assert status is not SolveStatus.INFEASIBLE, "each step leaves a solution"
        return status is SolveStatus.FEASIBLE

    def _worth_of(self, jobs: Iterable[str]) -> int:
        """Return the value of these jobs' units, with the bonuses of units beyond minima."""
        values, total = self._solver.values, 0
        for key in jobs:
            counts = self._program.variables[key]
            total += sum(value * values[unit] for unit, value in counts.value.items())
            total += sum((bonus - cost) * values[units] for units, bonus, cost in counts.beyond)
        return total

    def _places(self) -> _Places:
        """Divide new units between the classes of their lanes, which are the same to them."""
        values = self._solver.values
        left = {lane: {name: values[units] for name, units in classes.items()} for lane, classes in self._program.lanes.items()}
        places: _Places = {}
        for job in self._jobs:
            counts = self._program.variables[job.key]
            for pool in job.pools:
                staying = {name: values[units] for name, units in counts.staying[pool.name].items() if values[units]}
                new = [
                    _spread((values[units], left[hub, (pool.size_in(hub), displaces)]) for hub, units in entering[pool.name].items())
                    for entering, displaces in ((counts.new, pool.displaces), (counts.moved_to, True))
                ]
                places[job.key, pool.name] = PoolPlan(staying, *new)
        return places

    def _minimum_takes_new(self, job: FlowJob, places: _Places) -> bool:
        """Whether the job's minimum has new units: for those that it lacked, or as successors."""
        staying = sum(sum(places[job.key, pool.name].staying.values()) for pool in job.firm)
        return self._met.get(job.key, 0) > min(staying, job.protected)

    def _with_new_only(self, gaining: Container[str], places: _Places) -> _Places:
        """Return these places with new units only for the jobs `gaining`. Other units stay if their room is not taken."""
        room = {class_.name: class_.room for class_ in self._classes}
        room_of_job = {job.key: job.max for job in self._jobs}
        staying: dict[PoolKey, dict[str, int]] = {}
        taken: dict[PoolKey, Mapping[str, int]] = {}
        pools = [((job.key, pool.name), pool) for job in self._jobs for pool in job.pools]
        for key, pool in pools:
            staying[key] = dict(places[key].staying)
            taken[key] = places[key].taken if key[0] in gaining else {}
            for name, units in chain(staying[key].items(), taken[key].items()):
                room[name] -= units * pool.size_in(self._hubs[name])
                room_of_job[key[0]] -= units
        for key, pool in pools:
            for each in pool.held:
                size, units = pool.size_in(self._hubs[each.class_]), staying[key].get(each.class_, 0)
                more = min(each.units - units, room[each.class_] // size, room_of_job[key[0]])
                if more > 0:
                    staying[key][each.class_] = units + more
                    room[each.class_] -= more * size
                    room_of_job[key[0]] -= more
        return {key: PoolPlan(staying[key], taken[key]) for key, _ in pools}

    def _kept_for_minimum(self, key: str, places: _Places) -> dict[str, int]:
        """Return class -> room that the job keeps for its minimum."""
        kept = {name: rest for name, room in self._waiting[key].items() if (rest := self._solver.values[room])}
        for pool in self._program.by_key[key].firm:
            for name, units in places[key, pool.name].taken.items():
                kept[name] = kept.get(name, 0) + units * pool.size_in(self._hubs[name])
        return kept

    def _lend_kept(self, places: _Places) -> None:
        """Free what jobs keep for minima, so that others may have it for units beyond theirs. All other units stay."""
        solver, values = self._solver, self._solver.values
        freed: dict[tuple[HubLane, str], int] = {}
        for row in self._kept_rests:
            solver.limit(row)
        for key, rooms in self._waiting.items():
            for room in rooms.values():
                solver.bound(room, 0, 0)
            job, counts = self._program.by_key[key], self._program.variables[key]
            for unit in self._program.new(counts, job.pools):
                solver.bound(unit, 0, 0)
            solver.limit(counts.least, 0, 0)
            for pool in job.pools:
                for name, units in places[key, pool.name].taken.items():
                    hub = self._hubs[name]
                    place = (hub, (pool.size_in(hub), pool.displaces)), name
                    freed[place] = freed.get(place, 0) + units
        for job in self._jobs:
            counts = self._program.variables[job.key]
            if job.key not in self._waiting:
                for unit in counts.value:
                    solver.at_least(unit, values[unit])
        for lane, classes in self._program.lanes.items():
            for name, units in classes.items():
                solver.at_least(units, values[units] - freed.get((lane, name), 0))

    def _planned(self, places: _Places, objective: int, lent: int, kept_for_minimum: dict[str, dict[str, int]]) -> FlowPlan:
        met, undecided = frozenset(self._met), frozenset(self._undecided)
        return FlowPlan(places, met, self._missing, kept_for_minimum, objective, lent, self._solver.gap, undecided)


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
