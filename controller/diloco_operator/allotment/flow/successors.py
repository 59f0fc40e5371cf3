"""Units of a minimum that move to better slices: each leaves once its successor trains, so the job is never below its minimum. Pure.

A successor must take a slice that no unit has. If it waited for a unit that itself waits for its successor, neither would ever come.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from diloco_operator.allotment.flow.exact import best_plan, takes_several_sizes
from diloco_operator.allotment.flow.integers import TimeLimit, same_limit
from diloco_operator.allotment.flow.objective import Bonuses, bonuses
from diloco_operator.allotment.flow.problem import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowProblem, unheld
from diloco_operator.allotment.flow.solution import Solution, merged

TRIES = 3
"""How often a set of jobs is solved again without successors that cannot come. After that no unit of a minimum moves."""


def solve(problem: FlowProblem, time_limit: TimeLimit = same_limit) -> FlowPlan:
    """Return the plan for all jobs. Each set of jobs that compete is solved apart.

    Args:
        time_limit: for each search in whole numbers.
    """
    bonus = bonuses(problem.jobs)
    return merged(_solve(jobs, classes, bonus, time_limit) for jobs, classes in _competing(problem))


def _competing(problem: FlowProblem) -> Iterator[tuple[list[FlowJob], list[FlowClass]]]:
    """Yield sets of jobs that compete, each in the order in which they are served, with the classes that they can use."""
    hubs = {class_.name: class_.hub for class_ in problem.classes}
    # A union-find over jobs and hubs: each name points to another one of its set.
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while (upper := above.setdefault(name, name)) != name:
            above[name] = above.get(upper, upper)
            name = upper
        return name

    for job in problem.jobs:
        for pool in job.pools:
            for hub in (*pool.values, *(hubs[each.class_] for each in pool.held)):
                above[top(f"hub {hub}")] = top(f"job {job.key}")
    jobs: dict[str, list[FlowJob]] = {}
    for job in sorted(problem.jobs, key=lambda job: job.order):
        jobs.setdefault(top(f"job {job.key}"), []).append(job)
    classes: dict[str, list[FlowClass]] = {}
    for class_ in sorted(problem.classes, key=lambda class_: class_.name):
        classes.setdefault(top(f"hub {class_.hub}"), []).append(class_)
    for name, competing in jobs.items():
        yield competing, classes.get(name, [])


def _solve(jobs: list[FlowJob], classes: list[FlowClass], bonus: Bonuses, time_limit: TimeLimit) -> FlowPlan:
    several_sizes = takes_several_sizes(jobs, classes)

    def solved(jobs: Sequence[FlowJob]) -> FlowPlan:
        if several_sizes:
            return _without_own_gain(jobs, classes, bonus, time_limit)
        return Solution.of(jobs, classes, bonus).plan()

    jobs = _with_free_slices(jobs, classes)
    for _ in range(TRIES):
        plan = solved(jobs)
        early = _without_successors(jobs, classes, plan)
        if not early:
            return plan
        jobs = [replace(job, successors=0) if job.key in early else job for job in jobs]
    return solved([replace(job, successors=0) for job in jobs])


def _without_own_gain(jobs: Sequence[FlowJob], classes: Sequence[FlowClass], bonus: Bonuses, time_limit: TimeLimit) -> FlowPlan:
    """Return the plan in which no unit leaves a class for new units of its own job."""
    # The moves of a job are limited (`most_new`), and such a swap in one class would not count as a move.
    plan = best_plan(jobs, classes, bonus, time_limit)
    for _ in range(TRIES):
        places = {place for place in _left(jobs, plan) if _takes(plan, *place)}
        if not places:
            break
        jobs = [_staying(job, places) for job in jobs]
        calmer_plan = best_plan(jobs, classes, bonus, time_limit)
        if (calmer_plan.admitted, calmer_plan.missing) != (plan.admitted, plan.missing):
            break  # a minimum comes first
        plan = calmer_plan
    return plan


def _left(jobs: Iterable[FlowJob], plan: FlowPlan) -> Iterator[tuple[str, str]]:
    """Yield the (job, class) that units leave, of jobs whose moves are limited."""
    for job in jobs:
        for pool in job.pools if job.most_new is not None else ():
            for each in pool.held:
                if plan.pools[job.key, pool.name].staying.get(each.class_, 0) < each.units:
                    yield job.key, each.class_


def _takes(plan: FlowPlan, job: str, class_: str) -> bool:
    return any(key == job and class_ in placed.taken for (key, _), placed in plan.pools.items())


def _staying(job: FlowJob, places: Container[tuple[str, str]]) -> FlowJob:
    """Return the job as if none of its units could be asked to leave these (job, class)."""

    def stays(each: FlowHeld) -> FlowHeld:
        return replace(each, settling=each.units) if (job.key, each.class_) in places else each

    return replace(job, pools=tuple(replace(pool, held=tuple(map(stays, pool.held))) for pool in job.pools))


def _with_free_slices(jobs: list[FlowJob], classes: list[FlowClass]) -> list[FlowJob]:
    """Return the jobs. A job that could use no free slice gets no successors, so one solve is enough on a full fleet."""
    hubs = {class_.name: class_.hub for class_ in classes}
    free = unheld(jobs, classes, successors=False)
    open_ = {hubs[name] for name, room in free.items() if room > 0}
    return [job if any(hub in open_ for pool in job.firm for hub in pool.values) else replace(job, successors=0) for job in jobs]


def units_with_successors(job: FlowJob, plan: FlowPlan) -> int:
    """Return how many units of its minimum leave for successors."""
    return max(0, job.protected - sum(sum(plan.pools[job.key, pool.name].staying.values()) for pool in job.firm))


def _without_successors(jobs: Sequence[FlowJob], classes: Iterable[FlowClass], plan: FlowPlan) -> set[str]:
    """Return the jobs that must not have successors by this plan.

    They are jobs whose new units may not come or must wait for a unit to leave, and jobs on classes where units may have to leave for new
    units whose pods may be refused.
    """
    replaceable = [job for job in jobs if job.replaceable]
    if not replaceable:
        return set()
    moving = [job for job in replaceable if units_with_successors(job, plan)]
    hubs = {class_.name: class_.hub for class_ in classes}
    free = unheld(jobs, classes, successors=False)
    not_displacing = dict.fromkeys(free, 0)
    vacated = dict.fromkeys(free, 0)
    sizes: dict[str, set[int]] = {name: set() for name in free}
    for job in jobs:
        for pool in job.pools:
            placed = plan.pools[job.key, pool.name]
            for each in pool.held:
                size = pool.size_in(hubs[each.class_])
                vacated[each.class_] += (each.units - placed.staying.get(each.class_, 0)) * size if job in moving else 0
                sizes[each.class_].add(size)
            for name, units in placed.taken.items():
                size = pool.size_in(hubs[name])
                sizes[name].add(size)
                if not pool.displaces:
                    not_displacing[name] += units * size
    refusable = {name for name in free if not_displacing[name] > free[name] + vacated[name]}
    waiting: set[str] = set()
    for job in moving:
        taken = [(pool, name, units) for pool in job.firm for name, units in plan.pools[job.key, pool.name].taken.items()]
        for pool, name, units in taken:
            free[name] -= units * pool.size_in(hubs[name])
        waits = any(free[name] < 0 or len(sizes[name]) > 1 or not pool.may_replace for pool, name, _ in taken)
        if waits:
            waiting.add(job.key)
    return waiting | {job.key for job in replaceable if any(each.class_ in refusable for pool in job.firm for each in pool.held)}
