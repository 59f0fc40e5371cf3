"""Jobs and classes for the flow, as a test says them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from diloco_operator.allotment.flow import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowPool, FlowProblem, solve

STAY = 200
"""What leaving a slice costs: a fifth of the mean value."""


def a_pool(values: Mapping[str, int] | str, wanted: int = 0, held: Mapping[str, int] | None = None, **fields: object) -> FlowPool:
    """`values`: hub -> value, or one hub of mean value. `held`: class -> units; the hub of a class stands before its slash."""
    worth = {values: 1000} if isinstance(values, str) else dict(values)
    units = tuple(FlowHeld(class_, count, worth[class_.partition("/")[0]] + STAY) for class_, count in sorted((held or {}).items()))
    return replace(FlowPool("pool", worth, wanted, held=units), **fields)  # type: ignore[arg-type]


def a_job(key: str, *pools: FlowPool, min: int = 0, max: int = 100, **fields: object) -> FlowJob:
    """Its pools are named by their places."""
    named = tuple(replace(pool, name=f"pool-{index}") for index, pool in enumerate(pools))
    return FlowJob(key, min, max, named, **fields)  # type: ignore[arg-type]


def a_problem(rooms: Mapping[str, int], *jobs: FlowJob) -> FlowProblem:
    """`rooms`: class -> slices. The hub of a class stands before its slash."""
    return FlowProblem(tuple(FlowClass(name, name.partition("/")[0], room) for name, room in rooms.items()), jobs)


def units(plan: FlowPlan, job: str) -> dict[str, int]:
    """Class -> units that the job keeps or gets there."""
    found: dict[str, int] = {}
    for (key, _), placed in plan.pools.items():
        if key == job:
            for counts in (placed.staying, placed.taken):
                for class_, count in counts.items():
                    found[class_] = found.get(class_, 0) + count
    return found


def carried_out(problem: FlowProblem, plan: FlowPlan) -> FlowProblem:
    """The problem once all has happened that the plan says. Units that left their slices want others."""
    jobs = []
    for job in problem.jobs:
        pools = []
        for pool in job.pools:
            placed = plan.pools[job.key, pool.name]
            values = {each.class_: each.value for each in pool.held}
            hubs = {class_.name: class_.hub for class_ in problem.classes}
            now = {name: placed.staying.get(name, 0) + placed.taken.get(name, 0) for name in {**placed.staying, **placed.taken}}
            held = tuple(FlowHeld(name, count, values.get(name) or pool.values[hubs[name]] + STAY) for name, count in sorted(now.items()))
            left = pool.has - sum(placed.staying.values())
            pools.append(replace(pool, held=held, wanted=pool.wanted - sum(placed.taken.values()) + left, moving=0))
        jobs.append(replace(job, pools=tuple(pools), admitted=job.key in plan.admitted))
    return replace(problem, jobs=tuple(jobs))


def settled(problem: FlowProblem, rounds: int) -> tuple[FlowProblem, FlowPlan]:
    """After so many rounds at most nothing changes any more."""
    for _ in range(rounds):
        plan = solve(problem)
        after = carried_out(problem, plan)
        if _held(problem) == _held(after):
            return problem, plan
        problem = after
    raise AssertionError(f"something still moves after {rounds} rounds")


def _held(problem: FlowProblem) -> list[dict[tuple[str, str], int]]:
    return [{(pool.name, each.class_): each.units for pool in job.pools for each in pool.held} for job in problem.jobs]


def no_time() -> float:
    """A limit by which no search finds anything."""
    return 0.0


def no_time_for(*numbers: int) -> Callable[[], float]:
    """A limit by which these searches, counted from 0, find nothing. No other one ends early."""
    searches = itertools.count()
    return lambda: 0.0 if next(searches) in numbers else 1000.0
