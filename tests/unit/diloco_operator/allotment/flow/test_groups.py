"""Units of several hosts, of one size and of several, on the hosts of one domain."""

from __future__ import annotations

import pytest
from builders.flow_problems import a_job, a_pool, a_problem, units
from builders.placement_fleets import a_large_problem, a_problem_of_groups, a_small_problem
from builders.placement_reference import best, bound, value_of
from diloco_operator.allotment.flow import solve


def test_units_of_one_size_fill_each_domain_as_far_as_it_goes() -> None:
    # Floors of 7 / 3 and 5 / 3.
    plan = solve(a_problem({"h100/a": 7, "h100/b": 5}, a_job("one", a_pool("h100", 9, size=3))))
    assert units(plan, "one") == {"h100/a": 2, "h100/b": 1}


def test_a_group_leaves_no_room_for_what_is_worth_less() -> None:
    groups, single = a_pool({"h100": 4500}, 1, size=4), a_pool({"h100": 1000}, 4)
    plan = solve(a_problem({"h100/a": 4}, a_job("groups", groups), a_job("single", single)))
    assert (units(plan, "groups"), units(plan, "single")) == ({"h100/a": 1}, {})


def test_small_units_take_the_hosts_of_a_group_that_is_worth_less() -> None:
    # Four small ones count 1,000, 875, 750 and 750: together more than 2,500.
    groups, single = a_pool({"h100": 2500}, 1, size=4), a_pool({"h100": 1000}, 4)
    plan = solve(a_problem({"h100/a": 4}, a_job("groups", groups), a_job("single", single)))
    assert (units(plan, "groups"), units(plan, "single")) == ({}, {"h100/a": 4})


def test_the_minimum_of_a_group_gets_its_hosts_from_the_surplus_of_small_units() -> None:
    small = a_job("small", a_pool("h100", held={"h100/a": 4}), min=1)
    plan = solve(a_problem({"h100/a": 4}, small, a_job("group", a_pool("h100", 1, size=3), min=1)))
    assert (units(plan, "small"), units(plan, "group")) == ({"h100/a": 1}, {"h100/a": 1})


def test_a_minimum_is_met_by_small_units_where_groups_leave_no_room() -> None:
    job = a_job("one", a_pool({"h100": 4000}, 2, size=4), a_pool({"h100": 900}, 2), min=2)
    assert units(solve(a_problem({"h100/a": 5}, job)), "one") == {"h100/a": 2}


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_plans_for_units_of_several_sizes_are_the_best_there_are(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        for problem in (a_problem_of_groups(seed), a_small_problem(seed, sizes=(1, 2, 3))):
            plan, exact = solve(problem), best(problem)
            assert (plan.admitted, dict(plan.missing)) == (exact.admitted, dict(exact.missing)), seed
            assert plan.kept_for_minimum.keys() == exact.kept_for_minimum.keys(), seed
            assert (plan.objective, plan.gap) == (exact.objective, 0), seed
            if not plan.kept_for_minimum:
                assert value_of(problem, plan) == plan.objective, seed


@pytest.mark.slow
def test_a_large_problem_says_how_far_its_plan_may_be_from_the_best() -> None:
    problem = a_large_problem(1, 1000, 60, sizes=(1, 2, 4))
    plan = solve(problem)
    # No plan is worth more than the bound of linear programming. The bonus of priority is no part of the share.
    assert plan.objective <= bound(problem, plan)
    assert 0 <= plan.gap <= 0.001


def test_a_job_that_waits_gets_nothing_of_what_another_keeps_for_a_larger_unit() -> None:
    """Of two hosts one is free. It is too little for `big`, and a small unit would take it again and again."""
    big = a_job("big", a_pool({"h100": 2000}, 1, size=2, share=2000), min=1, max=1, created=1.0)
    small = a_job("small", a_pool("h100", 0, {"h100/a": 1}), min=1, max=1)
    late = a_job("late", a_pool("h100", 1), min=1, max=1, created=2.0)
    plan = solve(a_problem({"h100/a": 2}, big, small, late))
    assert (units(plan, "small"), units(plan, "late"), plan.kept_for_minimum) == ({"h100/a": 1}, {}, {"big": {"h100/a": 1}})


def test_what_is_withheld_for_large_units_is_lent_to_small_ones() -> None:
    waiting = a_job("waiting", a_pool("gpu", 2, size=4), min=2)
    small = a_job("small", a_pool("gpu", 99, {"gpu/a": 4}), min=4, created=-1.0)
    plan = solve(a_problem({"gpu/a": 8}, waiting, small))
    assert plan.kept_for_minimum == {"waiting": {"gpu/a": 4}}
    assert units(plan, "small") == {"gpu/a": 8}  # 4 of its minimum, and 4 on what is kept_for_minimum


def test_a_minimum_takes_what_is_free_before_units_of_another_size_leave() -> None:
    large = a_job("large", a_pool("gpu", 9, {"gpu/a": 2}, size=4), min=1)
    plan = solve(a_problem({"gpu/a": 8, "gpu/b": 4}, large, a_job("small", a_pool("gpu", 4), min=4, created=1.0)))
    assert (units(plan, "large"), units(plan, "small")) == ({"gpu/a": 2}, {"gpu/b": 4})


def test_no_unit_leaves_to_make_room_for_others_of_its_own_job() -> None:
    # Two of 375 are worth more than one of 400 and what leaving it costs.
    job = a_job("one", a_pool({"gpu": 400}, 0, {"gpu/a": 1}, size=2), a_pool({"gpu": 700}, 2), most_new=2)
    assert units(solve(a_problem({"gpu/a": 2}, job)), "one") == {"gpu/a": 1}
