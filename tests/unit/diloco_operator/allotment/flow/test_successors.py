"""Units of a minimum that leave for better slices once their successors train."""

from __future__ import annotations

from dataclasses import replace

from builders.exploration import examples
from builders.flow_problems import a_job, a_pool, a_problem, units
from builders.placement_fleets import a_small_problem
from diloco_operator.allotment.flow import FlowJob, FlowPlan, FlowProblem, solve, units_with_successors
from hypothesis import given, settings
from hypothesis import strategies as st

# What a unit is worth to each job, and 200 that leaving costs: 1300 + 1000 are more than 700 + 200 + 1100.
SLOW, FAST = "slow/a", "fast/a"


def runs(*, max: int = 2, successors: int = 1) -> FlowJob:
    """Its minimum is on the slow kind."""
    return a_job("runs", a_pool({"slow": 700}, held={SLOW: 1}), a_pool({"fast": 1300}, 1), min=1, max=max, successors=successors)


def waits() -> FlowJob:
    return a_job("waits", a_pool({"slow": 1000, "fast": 1100}, 1), min=1, max=1, created=1.0)


def placed(*jobs: FlowJob, slow: int = 1, fast: int = 1) -> dict[str, dict[str, int]]:
    plan = solve(a_problem({SLOW: slow, FAST: fast}, *jobs))
    return {job.key: units(plan, job.key) for job in jobs}


def test_a_unit_of_a_minimum_leaves_for_a_free_slice_that_is_worth_more() -> None:
    assert placed(runs(), waits()) == {"runs": {FAST: 1}, "waits": {SLOW: 1}}
    assert placed(runs(successors=0), waits()) == {"runs": {SLOW: 1}, "waits": {FAST: 1}}


def test_it_stays_if_the_other_job_would_lose_more() -> None:
    job = a_job("waits", a_pool({"slow": 600, "fast": 1100}, 1), min=1, max=1, created=1.0)  # 1300 + 600 are less than 700 + 200 + 1100
    assert placed(runs(), job) == {"runs": {SLOW: 1}, "waits": {FAST: 1}}


def test_it_stays_without_room_for_its_successor_beside_it() -> None:
    assert placed(runs(max=1), waits()) == {"runs": {SLOW: 1}, "waits": {FAST: 1}}


def test_it_stays_if_nobody_wants_its_slice() -> None:
    assert placed(runs()) == {"runs": {SLOW: 1, FAST: 1}}


def test_minima_do_not_wait_for_the_slices_of_each_other() -> None:
    """Each would train 1300 in place of 700; neither could begin."""
    other = a_job("other", a_pool({"fast": 700}, held={FAST: 1}), a_pool({"slow": 1300}, 1), min=1, max=2, successors=1)
    assert placed(runs(), other) == {"runs": {SLOW: 1}, "other": {FAST: 1}}


def test_what_the_minimum_of_a_pool_needs_stays() -> None:
    job = a_job("runs", a_pool({"slow": 700}, min=1, held={SLOW: 1}), a_pool({"fast": 1300}, 1), min=1, max=2, successors=1)
    assert placed(job, waits()) == {"runs": {SLOW: 1}, "waits": {FAST: 1}}


def test_a_minimum_that_can_use_one_kind_alone_gets_it_from_a_minimum_that_can_move() -> None:
    only = a_job("only", a_pool({"slow": 1000}, 1), min=1, max=1, created=1.0)
    assert placed(runs(), only) == {"runs": {FAST: 1}, "only": {SLOW: 1}}


def test_no_unit_of_a_minimum_leaves_for_a_scavenged_one() -> None:
    """It counts towards the minimum no more, and nothing else comes in its place: the pool that it is in wants no more units."""
    firm, scavenged = a_pool({"slow": 700, "fast": 1300}, held={SLOW: 1}), a_pool({"fast": 1300}, 1, scavenged=True)
    job = a_job("runs", firm, scavenged, min=2, max=3, successors=1, created=1.0)
    only = a_job("only", a_pool({"slow": 1000}, 1), min=1, max=1, admitted=True)
    assert placed(job, only) == {"runs": {SLOW: 1, FAST: 1}, "only": {}}


@settings(max_examples=examples(100))
@given(st.integers(0, 100_000))
def test_every_minimum_keeps_its_units_or_gets_as_many_on_slices_that_no_unit_has(seed: int) -> None:
    given_ = a_small_problem(seed)
    problem = replace(given_, jobs=tuple(replace(job, successors=1 + seed % 2) for job in given_.jobs))
    plan = solve(problem)
    assert secured(problem, plan) >= secured(problem, solve(given_))
    unheld = {class_.name: class_.room for class_ in problem.classes}
    certain = dict(unheld)
    for job in problem.jobs:
        for pool in job.pools:
            for each in pool.held:
                unheld[each.class_] -= each.units
                leaving = each.units - plan.pools[job.key, pool.name].staying.get(each.class_, 0)
                certain[each.class_] -= each.units - (leaving if units_with_successors(job, plan) else 0)
            for name, new in plan.pools[job.key, pool.name].taken.items():
                certain[name] -= 0 if pool.displaces else new
    assert min(certain.values(), default=0) >= 0, "a unit leaves without a successor for one whose pods may be refused"
    for job in problem.jobs:
        count = units_with_successors(job, plan)
        assert count <= job.replaceable
        if count:
            taken = [(name, new) for pool in job.firm for name, new in plan.pools[job.key, pool.name].taken.items()]
            assert sum(new for _, new in taken) >= count
            for name, new in taken:
                unheld[name] -= new
                assert unheld[name] >= 0, f"{job.key} waits for a slice that a unit has"


def secured(problem: FlowProblem, plan: FlowPlan) -> list[int]:
    """Units of the minima that have slices, or for which slices are kept: of jobs that run, in their order, then of those that wait."""
    jobs = sorted(problem.jobs, key=lambda job: (not job.runs, job.order))
    return [
        job.protected + job.missing - plan.missing.get(job.key, 0)
        if job.key in plan.admitted
        else sum(plan.kept_for_minimum.get(job.key, {}).values())
        for job in jobs
    ]
