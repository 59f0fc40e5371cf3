"""Plans for units of several sizes if a search in whole numbers runs out of time before it finds anything."""

from __future__ import annotations

from builders.flow_problems import a_job, a_pool, a_problem, no_time, no_time_for, units
from diloco_operator.allotment.flow import solve


def test_what_is_there_stays_if_no_search_has_time() -> None:
    small = a_job("small", a_pool("gpu", 2, {"gpu/a": 3}), min=1)
    large = a_job("large", a_pool("gpu", 2, {"gpu/a": 1}, size=4), min=2, created=1.0)
    waiting = a_job("waiting", a_pool("gpu", 2, size=2), min=2, created=2.0)
    plan = solve(a_problem({"gpu/a": 12}, small, large, waiting), no_time)
    assert (units(plan, "small"), units(plan, "large"), units(plan, "waiting")) == ({"gpu/a": 3}, {"gpu/a": 1}, {})
    assert (sorted(plan.admitted), sorted(plan.undecided), plan.gap) == (["large", "small"], ["large", "waiting"], 1)


def test_a_minimum_that_was_not_found_in_time_is_undecided_and_one_that_cannot_be_met_is_not() -> None:
    held = a_job("held", a_pool("gpu", 0, {"gpu/a": 1}), min=1)
    waiting = a_job("waiting", a_pool("gpu", 2, size=2), min=2)
    fitting, too_large = a_problem({"gpu/a": 5}, held, waiting), a_problem({"gpu/a": 4}, held, waiting)
    plan = solve(fitting)
    assert (sorted(plan.admitted), sorted(plan.undecided), plan.gap) == (["held", "waiting"], [], 0)
    plan = solve(fitting, no_time_for(1, 2))
    assert (sorted(plan.admitted), sorted(plan.undecided), plan.gap) == (["held"], ["waiting"], 1)
    plan = solve(too_large)
    assert (sorted(plan.admitted), sorted(plan.undecided), plan.gap) == (["held"], [], 0)


def test_minima_are_met_and_nothing_else_moves_if_there_is_no_time_for_the_rest() -> None:
    low = a_job("low", a_pool("gpu", 0, {"gpu/a": 4}), min=1)
    group = a_job("group", a_pool("gpu", 2, size=2), min=1, created=1.0)
    high = a_job("high", a_pool("gpu", 9, {"gpu/b": 1}), min=1, priority=1, created=2.0)
    problem = a_problem({"gpu/a": 4, "gpu/b": 1}, low, group, high)
    assert sum(units(solve(problem), "low").values()) == 1  # the surplus of `high` comes first
    plan = solve(problem, no_time_for(2))
    assert (units(plan, "low"), units(plan, "group"), units(plan, "high")) == ({"gpu/a": 2}, {"gpu/a": 1}, {"gpu/b": 1})
    assert (sorted(plan.undecided), plan.gap) == ([], 1)


def test_a_minimum_for_which_enough_is_found_later_is_met() -> None:
    waiting = a_job("waiting", a_pool("gpu", 2, size=2), min=2, created=1.0)
    runs = a_job("runs", a_pool("gpu", 1, {"gpu/a": 1}), min=2)
    plan = solve(a_problem({"gpu/a": 6}, runs, waiting), no_time_for(1, 3))
    assert (units(plan, "runs"), units(plan, "waiting")) == ({"gpu/a": 2}, {"gpu/a": 2})
    assert (sorted(plan.admitted), dict(plan.missing), sorted(plan.undecided)) == (["runs", "waiting"], {}, [])
