from __future__ import annotations

from functools import partial

import pytest
from builders.trace_scenes import a_scene, a_trace_job, present
from diloco_operator.allotment.flow import solve
from diloco_operator.allotment.flow.problem import MEAN

from benchmarks.trace.by_flow import by_flow, equal, known, measured, orders_of, problem_of, without_the_rear
from benchmarks.trace.rules import at_random, by_speed, first_fit, gangs
from benchmarks.trace.scene import Orders

FAST, SLOW = "fast", "slow"
best_fit, random_fit = partial(first_fit, order=by_speed), partial(first_fit, order=at_random)


# --- first fit --------------------------------------------------------------------------------------------------------------------
def test_first_fit_takes_the_first_kind_of_the_order_that_has_a_free_slice() -> None:
    job = present(a_trace_job(size=2))  # at least 1 unit, at most 4
    scene = a_scene({FAST: 1, SLOW: 2}, job)
    assert random_fit(scene).take == {("job", SLOW): 2, ("job", FAST): 1}
    one = a_scene({FAST: 1, SLOW: 1}, present(a_trace_job()), present(a_trace_job("later", created=1.0)))
    assert best_fit(one).take == {("job", FAST): 1, ("later", SLOW): 1}
    assert random_fit(one).take == {("job", SLOW): 1, ("later", FAST): 1}


def test_first_fit_gives_a_minimum_the_slice_of_a_unit_beyond_another_minimum() -> None:
    rich = present(a_trace_job("rich"), {FAST: 2})
    poor = present(a_trace_job("poor", created=1.0))
    assert best_fit(a_scene({}, rich, poor)) == Orders(leave={("rich", FAST): 1}, take={("poor", FAST): 1})


def test_first_fit_has_no_unit_leave_that_starts_or_that_a_minimum_needs() -> None:
    poor = present(a_trace_job("poor", created=1.0))
    assert best_fit(a_scene({}, present(a_trace_job("rich"), {FAST: 2}, settling={FAST: 2}), poor)) == Orders()
    assert best_fit(a_scene({}, present(a_trace_job("just"), {FAST: 1}), poor)) == Orders()


def test_first_fit_takes_from_the_job_that_has_the_most_beyond_its_minimum() -> None:
    some, most = present(a_trace_job("some", size=2), {FAST: 2}), present(a_trace_job("most", size=2, created=1.0), {FAST: 3})
    poor = present(a_trace_job("poor", created=2.0))
    assert best_fit(a_scene({}, some, most, poor)).leave == {("most", FAST): 1}


def test_first_fit_starts_a_job_with_its_whole_minimum_or_not_at_all_and_a_later_one_may_pass() -> None:
    large, small = present(a_trace_job("large", size=8)), present(a_trace_job("small", created=1.0))  # minima 4 and 1
    assert best_fit(a_scene({FAST: 3}, large, small)).take == {("small", FAST): 2}
    assert best_fit(a_scene({FAST: 4}, large, small)).take == {("large", FAST): 4}


def test_first_fit_restores_the_minimum_of_a_job_that_runs_before_another_starts() -> None:
    new = present(a_trace_job("new"))
    hurt = present(a_trace_job("hurt", size=4, created=1.0), {SLOW: 1})  # minimum 2
    assert best_fit(a_scene({FAST: 1}, new, hurt)).take == {("hurt", FAST): 1}


def test_first_fit_gives_what_is_left_in_turns_up_to_the_maximum() -> None:
    has = present(a_trace_job("has", size=2), {SLOW: 3})  # two beyond its minimum, at most 4 units
    new = present(a_trace_job("new", size=2, created=1.0))  # at most 4
    assert best_fit(a_scene({FAST: 4}, has, new)).take == {("has", FAST): 1, ("new", FAST): 3}
    assert best_fit(a_scene({FAST: 9}, new)).take == {("new", FAST): 4}


# --- gangs ------------------------------------------------------------------------------------------------------------------------
def test_a_gang_runs_whole_on_the_best_kind_that_has_room_for_all_of_it() -> None:
    job = present(a_trace_job(size=2))
    assert gangs(a_scene({FAST: 1, SLOW: 2}, job)).take == {("job", SLOW): 2}
    assert gangs(a_scene({FAST: 3, SLOW: 2}, job)).take == {("job", FAST): 2}
    assert gangs(a_scene({FAST: 1, SLOW: 1}, job)) == Orders()


def test_a_gang_that_lost_a_unit_leaves_as_a_whole_and_one_that_is_whole_stays() -> None:
    hurt, whole = present(a_trace_job("hurt", size=2), {FAST: 1}), present(a_trace_job("whole", size=2), {SLOW: 2})
    assert gangs(a_scene({FAST: 5}, hurt, whole)) == Orders(leave={("hurt", FAST): 1})


def test_a_later_gang_may_start_where_an_earlier_one_does_not_fit() -> None:
    large, small = present(a_trace_job("large", size=4)), present(a_trace_job("small", created=1.0))
    assert gangs(a_scene({FAST: 2}, large, small)).take == {("small", FAST): 1}


# --- the flow ---------------------------------------------------------------------------------------------------------------------
def test_the_flow_gives_each_job_the_kind_that_is_worth_most_to_it() -> None:
    """First fit, in either order, gives one of them a kind that is wrong for it."""
    picky = present(a_trace_job("picky", speeds={"fast": 4000.0, "slow": 1000.0}, created=1.0))
    easy = present(a_trace_job("easy", speeds={"fast": 1100.0, "slow": 1000.0}))
    scene = a_scene({FAST: 1, SLOW: 1}, picky, easy)
    assert by_flow(scene, known).take == {("picky", FAST): 1, ("easy", SLOW): 1}
    assert best_fit(scene).take == {("easy", FAST): 1, ("picky", SLOW): 1}


def test_the_flow_takes_a_better_slice_before_a_unit_leaves_the_worse_one() -> None:
    job = present(a_trace_job(), {SLOW: 1})  # at most 2 units
    other = present(a_trace_job("other", created=1.0))
    assert by_flow(a_scene({FAST: 1}, job), known) == Orders(take={("job", FAST): 1})
    both = present(a_trace_job(), {SLOW: 1, FAST: 1})
    assert by_flow(a_scene({}, both, other), known) == Orders(leave={("job", SLOW): 1}, take={("other", SLOW): 1})


def test_under_the_flow_a_unit_of_a_minimum_leaves_once_its_successor_trains() -> None:
    picky = a_trace_job("picky", speeds={"fast": 4000.0, "slow": 1000.0})  # at least 1 unit, at most 2
    other = present(a_trace_job("other", speeds={"fast": 1100.0, "slow": 1000.0}, created=1.0))
    assert by_flow(a_scene({FAST: 1}, present(picky, {SLOW: 1}), other), known) == Orders(take={("picky", FAST): 1})
    starts = present(picky, {SLOW: 1, FAST: 1}, settling={FAST: 1})
    assert by_flow(a_scene({}, starts, other), known) == Orders()
    trains = present(picky, {SLOW: 1, FAST: 1})
    assert by_flow(a_scene({}, trains, other), known) == Orders(leave={("picky", SLOW): 1}, take={("other", SLOW): 1})


@pytest.mark.parametrize("free", [0, 1, 3])
def test_jobs_that_are_too_far_back_to_start_change_nothing(free: int) -> None:
    running = [present(a_trace_job("rich", size=2), {FAST: 3}), present(a_trace_job("just", size=4, created=1.0), {SLOW: 2})]
    waiting = [present(a_trace_job(f"waits-{index}", size=(2, 1, 8, 1)[index % 4], created=2.0 + index)) for index in range(12)]
    scene = a_scene({SLOW: free}, *running, *waiting)
    assert len(without_the_rear(scene).jobs) == 2 + 2 + free + 1  # two units of rich are beyond its minimum
    problem = problem_of(scene, known)
    assert by_flow(scene, known) == orders_of(scene, problem, solve(problem))


def test_the_blind_flow_holds_all_kinds_to_be_alike() -> None:
    assert set(equal(present(a_trace_job())).values()) == {MEAN}
    assert by_flow(a_scene({FAST: 1}, present(a_trace_job(), {SLOW: 2})), equal) == Orders()


def test_the_flow_knows_what_was_measured_and_a_prior_from_the_peaks() -> None:
    # peaks: 1 for the reference, 1 / 1.2 for near kinds, 1 / 4.1 for far ones
    job = a_trace_job(speeds={"reference": 1000.0, "near-1": 1000.0, "far-1": 122.0})
    # nothing is measured: 1, 0.8333 and 0.2439, by their mean 0.6924
    assert measured(present(job)) == {"reference": 1444, "near-1": 1204, "far-1": 352}
    # near-1 does 1.2 times its peak, so 1.5 times that is hoped for of the others: 1800, 1000 and 439, by their mean 1080
    assert measured(present(job, measured="near-1")) == {"reference": 1667, "near-1": 926, "far-1": 407}
    # and far-1 half of it, so 1.5 times 0.85 of it is hoped for of the reference: 1275, 1000 and 122, by their mean 799
    assert measured(present(job, measured="near-1 far-1")) == {"reference": 1596, "near-1": 1251, "far-1": 153}
    # 1000, 1000 and 122, by their mean 707.3
    assert known(present(job)) == {"reference": 1414, "near-1": 1414, "far-1": 172}
