"""A slice is lost: the repaired flow is as good as a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.flow_problems import a_job, a_pool, a_problem, units
from builders.placement_fleets import a_large_problem, a_small_problem
from diloco_operator.allotment.flow import FlowPlan, FlowProblem
from diloco_operator.allotment.flow.components import components
from diloco_operator.allotment.flow.objective import bonuses
from diloco_operator.allotment.flow.repair import lose_free, lose_held, without_unit
from diloco_operator.allotment.flow.solution import Solution, merged
from hypothesis import given, settings
from hypothesis import strategies as st


def smaller(problem: FlowProblem, class_: str) -> FlowProblem:
    return replace(problem, classes=tuple(replace(each, room=each.room - (each.name == class_)) for each in problem.classes))


def after_loss(problem: FlowProblem, job: str, pool: str, class_: str) -> FlowProblem:
    jobs = tuple(without_unit(each, pool, class_) if each.key == job else each for each in problem.jobs)
    return smaller(replace(problem, jobs=jobs), class_)


def solutions(problem: FlowProblem, like: FlowProblem) -> list[Solution]:
    """One for each set of jobs that compete; the bonuses of priorities as in the other problem."""
    return [Solution.of(jobs, classes, bonuses(like.jobs)) for jobs, classes in components(problem)]


def all_of(found: list[Solution]) -> FlowPlan:
    return merged(solution.plan() for solution in found)


def check_as_new(repaired: FlowPlan, anew: FlowPlan) -> None:
    assert (repaired.admitted, repaired.missing) == (anew.admitted, anew.missing)
    assert {job: sum(found.values()) for job, found in repaired.withheld.items()} == {j: sum(f.values()) for j, f in anew.withheld.items()}
    assert repaired.objective == anew.objective


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_the_loss_of_a_slice_that_no_unit_had(seed: int) -> None:
    problem = a_small_problem(seed)
    used = {class_.name: 0 for class_ in problem.classes}
    for job in problem.jobs:
        for pool in job.pools:
            for each in pool.held:
                used[each.class_] += each.units * pool.size
    for class_ in problem.classes:
        if class_.room == used[class_.name]:
            continue
        found = solutions(problem, problem)
        if all(lose_free(solution, class_.name) for solution in found if any(class_.name == each.name for each in solution.model.classes)):
            check_as_new(all_of(found), all_of(solutions(smaller(problem, class_.name), problem)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_the_loss_of_a_slice_that_a_unit_had(seed: int) -> None:
    problem = a_small_problem(seed)
    held = [(job.key, pool.name, each.class_) for job in problem.jobs for pool in job.pools for each in pool.held]
    for job, pool, class_ in held[:6]:
        found = solutions(problem, problem)
        if all(lose_held(solution, job, pool, class_) for solution in found if job in solution.model.jobs):
            check_as_new(all_of(found), all_of(solutions(after_loss(problem, job, pool, class_), problem)))


def test_a_unit_that_lost_its_slice_takes_the_next_best() -> None:
    job = a_job("one", a_pool({"v5p": 900, "v6e": 1100}, 0, {"v6e/a": 2}), max=2)
    problem = a_problem({"v6e/a": 2, "v5p/a": 1}, job)
    (solution,) = solutions(problem, problem)
    assert lose_held(solution, "one", "pool-0", "v6e/a")
    assert units(solution.plan(), "one") == {"v6e/a": 1, "v5p/a": 1}


def test_a_minimum_that_is_broken_is_met_again_from_the_surplus_of_others() -> None:
    broken = a_job("broken", a_pool("v5p", held={"v5p/a": 2}), min=2, max=2)
    rich = a_job("rich", a_pool("v5p", held={"v5p/b": 3}), min=1, priority=5)
    problem = a_problem({"v5p/a": 2, "v5p/b": 3}, broken, rich)
    (solution,) = solutions(problem, problem)
    assert lose_held(solution, "broken", "pool-0", "v5p/a")
    plan = solution.plan()
    assert (units(plan, "broken"), units(plan, "rich"), plan.missing) == ({"v5p/a": 1, "v5p/b": 1}, {"v5p/b": 2}, {})


def test_a_minimum_that_cannot_be_met_any_more_needs_a_new_solve() -> None:
    problem = a_problem({"v5p/a": 2}, a_job("one", a_pool("v5p", held={"v5p/a": 2}), min=2))
    (solution,) = solutions(problem, problem)
    assert not lose_held(solution, "one", "pool-0", "v5p/a")


@pytest.mark.slow
def test_losses_one_after_the_other_on_a_large_fleet() -> None:
    problem = now = a_large_problem(3, 600, 40)
    (found,) = solutions(problem, problem)
    repaired = 0
    for job in [job for job in problem.jobs if any(pool.held for pool in job.pools)][:12]:
        pool = next(pool for pool in job.pools if pool.held)
        if not lose_held(found, job.key, pool.name, pool.held[0].class_):
            break
        now = after_loss(now, job.key, pool.name, pool.held[0].class_)
        repaired += 1
        check_as_new(found.plan(), all_of(solutions(now, problem)))
    assert repaired > 3
