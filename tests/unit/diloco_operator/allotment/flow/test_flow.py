"""Who keeps, leaves and gets which kind of slice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders.flow_problems import a_job, a_pool, a_problem, carried_out, settled, units
from diloco_operator.allotment.flow import FlowClass, FlowJob, FlowProblem, answer, checks, solve


# --- value ----------------------------------------------------------------------------------------------------------------
def test_a_job_gets_the_kind_that_trains_it_faster() -> None:
    problem = a_problem({"v5p/a": 1, "v6e/a": 1}, a_job("one", a_pool({"v5p": 700, "v6e": 1300}, 1)))
    assert units(solve(problem), "one") == {"v6e/a": 1}


def test_each_of_two_jobs_gets_the_kind_that_gains_most_over_both() -> None:
    # 1,500 + 1,000 against 500 + 1,100.
    problem = a_problem(
        {"v5p/a": 1, "v6e/a": 1},
        a_job("far", a_pool({"v5p": 500, "v6e": 1500}, 1), created=1.0),
        a_job("near", a_pool({"v5p": 1000, "v6e": 1100}, 1)),
    )
    plan = solve(problem)
    assert (units(plan, "far"), units(plan, "near"), plan.objective) == ({"v6e/a": 1}, {"v5p/a": 1}, 2500)


def test_a_unit_moves_to_a_faster_kind_when_that_gains_more_than_leaving_costs() -> None:
    # It has 1,000 and 200 for staying.
    def after(value: int) -> dict[str, int]:
        job = a_job("one", a_pool({"v5p": 1000, "v6e": value}, 1, {"v5p/a": 1}), max=1)
        return units(solve(a_problem({"v5p/a": 1, "v6e/a": 1}, job)), "one")

    assert after(1199) == {"v5p/a": 1}
    assert after(1201) == {"v6e/a": 1}


def test_values_that_are_no_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="pool pool-0: counts and values must be integers"):
        a_problem({"v5p/a": 1}, a_job("one", a_pool({"v5p": 1.5}, 1)))  # type: ignore[dict-item]


def test_new_units_stay_within_what_the_maximum_leaves_until_others_have_gone() -> None:
    pool = a_pool({"v5p": 1000, "v6e": 2000}, 1, {"v5p/a": 1})
    problem = a_problem({"v5p/a": 1, "v6e/a": 1}, a_job("one", pool, max=1, most_new=0))
    assert units(solve(problem), "one") == {"v5p/a": 1}
    problem = a_problem({"v5p/a": 1, "v6e/a": 1}, a_job("one", pool, max=1, most_new=1))
    assert units(solve(problem), "one") == {"v6e/a": 1}


# --- shares ---------------------------------------------------------------------------------------------------------------
def test_jobs_of_equal_priority_share_what_is_beyond_their_minima() -> None:
    problem = a_problem({"v5p/a": 14}, a_job("a", a_pool("v5p", 20), min=2), a_job("b", a_pool("v5p", 20)))
    plan = solve(problem)
    # 12 are beyond minima. The segments of a share are 1, 1, 2, 4, 8 units wide: each job has its first four, 8 units, before the fifth.
    assert (sum(units(plan, "a").values()), sum(units(plan, "b").values())) in [(2 + shared, 12 - shared) for shared in range(4, 9)]


def test_a_unit_that_is_a_part_of_a_slice_counts_as_that_part_of_a_share() -> None:
    # Of 4 slices each job gets 2: 2 units of one, and 8 of a quarter. Values are in proportion.
    small = a_pool({"gpu": 250}, 99, share=250)
    large = a_pool({"gpu": 1000}, 99, size=4)
    plan = solve(a_problem({"gpu/a": 16}, a_job("small", small), a_job("large", large)))
    assert (units(plan, "small"), units(plan, "large")) == ({"gpu/a": 8}, {"gpu/a": 2})


def test_a_unit_of_a_whole_slice_takes_it_from_many_parts_of_lower_priority() -> None:
    small = a_pool({"gpu": 125}, 0, {"gpu/a": 8}, share=125)
    plan = solve(a_problem({"gpu/a": 8}, a_job("small", small), a_job("large", a_pool({"gpu": 1000}, 1, size=8), priority=1)))
    assert (units(plan, "small"), units(plan, "large")) == ({}, {"gpu/a": 1})


def test_all_surplus_goes_to_the_higher_priority() -> None:
    problem = a_problem({"v5p/a": 9}, a_job("low", a_pool({"v5p": 5000}, 20)), a_job("high", a_pool({"v5p": 2}, 20), priority=1, max=8))
    plan = solve(problem)
    assert (units(plan, "high"), units(plan, "low")) == ({"v5p/a": 8}, {"v5p/a": 1})


def test_scavenged_pools_get_what_no_other_pool_wants() -> None:
    problem = a_problem(
        {"v5p/a": 4}, a_job("scavenger", a_pool("v5p", 9, scavenged=True), priority=9), a_job("other", a_pool("v5p", 3), priority=0)
    )
    plan = solve(problem)
    assert (units(plan, "scavenger"), units(plan, "other")) == ({"v5p/a": 1}, {"v5p/a": 3})


def test_a_share_that_is_large_leaves_no_slice_idle() -> None:
    problem = a_problem({"v5p/a": 500}, a_job("one", a_pool({"v5p": 300, "v6e": 1700}, 500), max=500))
    assert units(solve(problem), "one") == {"v5p/a": 500}


# --- minima ---------------------------------------------------------------------------------------------------------------
def test_a_minimum_takes_the_surplus_of_others_whatever_their_priority() -> None:
    old = a_job("old", a_pool("v5p", held={"v5p/a": 4}), priority=5, min=1)
    plan = solve(a_problem({"v5p/a": 4}, old, a_job("young", a_pool("v5p", 3), min=3)))
    assert (units(plan, "old"), units(plan, "young")) == ({"v5p/a": 1}, {"v5p/a": 3})


def test_no_unit_of_a_running_minimum_leaves_even_for_a_faster_kind() -> None:
    job = a_job("one", a_pool({"v5p": 100, "v6e": 5000}, 2, {"v5p/a": 2}), min=2, max=2)
    assert units(solve(a_problem({"v5p/a": 2, "v6e/a": 2}, job)), "one") == {"v5p/a": 2}


def test_a_job_chooses_which_of_its_units_are_the_minimum_so_that_another_one_fits() -> None:
    old = a_job("old", a_pool({"v5p": 1000, "v6e": 1000}, 0, {"v5p/a": 1, "v6e/a": 1}), min=1)
    plan = solve(a_problem({"v5p/a": 1, "v6e/a": 1}, old, a_job("young", a_pool("v6e", 1), min=1)))
    assert (units(plan, "old"), units(plan, "young")) == ({"v5p/a": 1}, {"v6e/a": 1})


def test_a_waiting_minimum_is_met_as_a_whole_or_not_at_all() -> None:
    plan = solve(a_problem({"v5p/a": 3}, a_job("one", a_pool("v5p", 9), min=4)))
    assert (units(plan, "one"), plan.admitted) == ({}, frozenset())


def test_a_job_that_runs_gets_what_its_minimum_lacks_unit_by_unit_and_first() -> None:
    broken = a_job("broken", a_pool("v5p", 3, {"v5p/a": 1}), min=4, created=9.0)
    plan = solve(a_problem({"v5p/a": 3}, broken, a_job("waits", a_pool("v5p", 2), min=2, priority=1)))
    assert (units(plan, "broken"), dict(plan.missing), set(plan.admitted)) == ({"v5p/a": 3}, {"broken": 1}, {"broken"})


def test_the_minimum_of_a_pool_comes_before_other_units_of_the_minimum() -> None:
    job = a_job("one", a_pool({"v5p": 1500}, 4), a_pool("v6e", 4, min=2), min=3, max=3)
    assert units(solve(a_problem({"v5p/a": 4, "v6e/a": 4}, job)), "one") == {"v5p/a": 1, "v6e/a": 2}


def test_minima_move_aside_for_each_other_before_they_start() -> None:
    flexible = a_job("flexible", a_pool({"v5p": 2000, "v6e": 100}, 1), min=1)
    plan = solve(a_problem({"v5p/a": 1, "v6e/a": 1}, flexible, a_job("fixed", a_pool("v5p", 1), min=1, created=1.0)))
    assert (units(plan, "flexible"), units(plan, "fixed")) == ({"v6e/a": 1}, {"v5p/a": 1})


# --- what is kept for minima ---------------------------------------------------------------------------------------------
def test_the_first_minimum_that_does_not_fit_keeps_what_is_free_from_later_ones() -> None:
    large = a_job("large", a_pool("v5p", 4), min=4)
    old = a_job("old", a_pool("v5p", held={"v5p/a": 2}), min=2)
    plan = solve(a_problem({"v5p/a": 4}, large, old, a_job("small", a_pool("v5p", 1), min=1, created=1.0)))
    assert (set(plan.admitted), dict(plan.kept_for_minimum)) == ({"old"}, {"large": {"v5p/a": 2}})


def test_what_is_withheld_is_lent_to_units_beyond_minima() -> None:
    large = a_job("large", a_pool("v5p", 4), min=4)
    old = a_job("old", a_pool("v5p", 1, held={"v5p/a": 2}), min=2)
    problem = a_problem({"v5p/a": 4}, large, old)
    plan = solve(problem)
    assert (units(plan, "old"), plan.lent) == ({"v5p/a": 3}, 1000)
    assert units(solve(carried_out(problem, plan)), "old") == {"v5p/a": 3}


def test_a_minimum_that_is_more_than_there_is_keeps_nothing() -> None:
    huge = a_job("huge", a_pool("v5p", 9), min=9, fits=False)
    plan = solve(a_problem({"v5p/a": 4}, huge, a_job("small", a_pool("v5p", 1), min=1, created=1.0)))
    assert (set(plan.admitted), dict(plan.kept_for_minimum)) == ({"small"}, {})


def test_a_minimum_of_which_some_units_cannot_start_now_keeps_nothing() -> None:
    plan = solve(a_problem({"v5p/a": 4}, a_job("paused", a_pool("v5p", 2), min=3), a_job("small", a_pool("v5p", 1), min=1, created=1.0)))
    assert (set(plan.admitted), dict(plan.kept_for_minimum)) == ({"small"}, {})


def test_each_of_two_groups_of_jobs_that_do_not_compete_has_a_first_that_waits() -> None:
    problem = a_problem(
        {"v5p/a": 1, "h100/a": 1},
        *(a_job(f"old-{hub}", a_pool(hub, held={f"{hub}/a": 1}), min=1) for hub in ("v5p", "h100")),
        *(a_job(f"large-{hub}", a_pool(hub, 2), min=2) for hub in ("v5p", "h100")),
    )
    larger = FlowProblem((*(FlowClass(each.name, each.hub, 2) for each in problem.classes),), problem.jobs)
    assert solve(larger).kept_for_minimum == {"large-v5p": {"v5p/a": 1}, "large-h100": {"h100/a": 1}}


def test_a_large_job_starts_although_small_ones_come_all_the_time() -> None:
    # Ten slices; small jobs of two take turns, each for two rounds, and a new one waits in every round. The large job wants eight.
    large = a_job("large", a_pool("v5p", 8), min=8, max=8, created=0.5)
    running: list[tuple[FlowJob, int]] = [
        (a_job(f"small-{index}", a_pool("v5p", held={"v5p/a": 2}), min=2, max=2), index % 2) for index in range(5)
    ]
    for round_ in range(20):
        waiting = [a_job(f"new-{round_}-{index}", a_pool("v5p", 2), min=2, max=2, created=1.0 + round_) for index in range(3)]
        jobs = [job for job, _ in running]
        plan = solve(a_problem({"v5p/a": 10}, large, *jobs, *waiting))
        if "large" in plan.admitted:
            break
        started = [a_job(job.key, a_pool("v5p", held=units(plan, job.key)), min=2, max=2) for job in waiting if job.key in plan.admitted]
        running = [(job, left - 1) for job, left in running if left > 0] + [(job, 1) for job in started]
    # Rounds 0 and 1 end the five small jobs, of which none is followed by another.
    assert round_ == 2


# --- units that may not be asked to leave ---------------------------------------------------------------------------------------
def test_no_unit_leaves_for_one_whose_pods_may_be_refused() -> None:
    old = a_job("old", a_pool("v5p", held={"v5p/a": 2}), min=1)
    asks = a_job("asks", a_pool("v5p", 2, displaces=False), min=1, priority=9)
    plan = solve(a_problem({"v5p/a": 2}, old, asks))
    assert (units(plan, "old"), units(plan, "asks")) == ({"v5p/a": 2}, {})
    assert units(solve(a_problem({"v5p/a": 3}, old, asks)), "asks") == {"v5p/a": 1}


def test_a_pool_asks_about_its_pods_only_if_units_would_leave_for_it() -> None:
    asks = a_job("asks", a_pool("v5p", 2, displaces=False), min=1, max=1, priority=9)

    def found(least: int, slices: int) -> frozenset[tuple[str, str]]:
        problem = a_problem({"v5p/a": slices}, a_job("old", a_pool("v5p", held={"v5p/a": 2}), min=least), asks)
        return checks(problem, solve(problem))

    assert found(1, 2) == {("asks", "pool-0")}
    assert found(2, 2) == frozenset()
    assert found(1, 3) == frozenset()


def test_a_job_asks_about_its_pods_only_if_it_wins_beside_those_that_get_ready() -> None:
    old = a_job("old", a_pool("v5p", held={"v5p/a": 2}), min=1)
    first = a_job("first", a_pool("v5p", 1, displaces=False, prepares=True), min=1, max=1, priority=9)
    second = a_job("second", a_pool("v5p", 1, displaces=False), min=1, max=1)
    _, asks, prepares = answer(a_problem({"v5p/a": 2}, old, first, second))
    assert (set(asks), set(prepares)) == (set(), {"first"})
    _, asks, prepares = answer(a_problem({"v5p/a": 2}, replace(old, min=0), first, second))
    assert (set(asks), set(prepares)) == ({("second", "pool-0")}, {"first"})


def test_a_job_for_whose_minimum_slices_are_kept_gets_ready() -> None:
    """It lacks one of two slices, and the free one would go to a job that needs no more."""
    old = a_job("old", a_pool("v5p", held={"v5p/a": 1}), min=1)
    asks = a_job("asks", a_pool("v5p", 2, displaces=False, prepares=True), min=2, priority=9)
    plan, _, prepares = answer(a_problem({"v5p/a": 2}, old, asks, a_job("small", a_pool("v5p", 1), min=1)))
    assert (set(plan.admitted), plan.kept_for_minimum, set(prepares)) == ({"old"}, {"asks": {"v5p/a": 1}}, {"asks"})


def test_a_job_withholds_while_its_pods_may_be_refused_and_asks_and_once_they_are_refused_it_withholds_nothing() -> None:
    old = a_job("old", a_pool("v5p", held={"v5p/a": 1}), min=1)
    for refused in (False, True):
        asks = a_job("asks", a_pool("v5p", 2, displaces=False, keeps_for_minimum=not refused), min=2, priority=9)
        plan, asked, _ = answer(a_problem({"v5p/a": 2}, old, asks, a_job("small", a_pool("v5p", 1), min=1)))
        assert asked == {("asks", "pool-0")}, "it asks again: once its pods are admitted, slices stay free for it"
        assert plan.kept_for_minimum == ({} if refused else {"asks": {"v5p/a": 1}})
        assert plan.admitted == ({"old", "small"} if refused else {"old"})


def test_several_jobs_that_wait_withhold_and_the_first_takes_what_later_ones_would() -> None:
    old = a_job("old", a_pool("v5p", held={"v5p/a": 1}), a_pool("h100", held={"h100/a": 1}), min=2)
    second = a_job("second", a_pool("v5p", 2), a_pool("h100", 2), min=4, created=1.0)
    small = [a_job(f"small-{hub}", a_pool(hub, 1), min=1, created=2.0) for hub in ("v5p", "h100")]
    plan = solve(a_problem({"v5p/a": 2, "h100/a": 2}, old, a_job("first", a_pool("v5p", 2), min=2), second, *small))
    assert plan.kept_for_minimum == {"first": {"v5p/a": 1}, "second": {"h100/a": 1}}
    assert plan.admitted == {"old"}


def test_a_unit_that_is_settling_stays_even_if_it_is_surplus_or_scavenged() -> None:
    def old(*, scavenged: bool = False) -> FlowJob:
        pool = a_pool("v5p", held={"v5p/a": 2}, scavenged=scavenged)
        return a_job("old", replace(pool, held=(replace(pool.held[0], settling=1),)))

    for job in (old(), old(scavenged=True)):
        plan = solve(a_problem({"v5p/a": 2}, job, a_job("young", a_pool("v5p", 2), min=2, priority=9)))
        assert (units(plan, "old"), units(plan, "young")) == ({"v5p/a": 2}, {})
        plan = solve(a_problem({"v5p/a": 2}, job, a_job("young", a_pool("v5p", 1), min=1, priority=9)))
        assert (units(plan, "old"), units(plan, "young")) == ({"v5p/a": 1}, {"v5p/a": 1})


def test_units_that_are_settling_count_in_the_share_of_their_job() -> None:
    # Each job has 4 units beyond its minimum; were those of one no surplus as long as they settle, the other would give it some.
    new = a_pool("v5p", 9, {"v5p/a": 4})
    settling = replace(new, held=(replace(new.held[0], settling=4),))
    old = a_pool("v5p", 9, {"v5p/a": 4})
    plan = solve(a_problem({"v5p/a": 8}, a_job("old", old), a_job("new", settling)))
    assert (units(plan, "old"), units(plan, "new")) == ({"v5p/a": 4}, {"v5p/a": 4})


# --- slices for units that would leave theirs -----------------------------------------------------------------------------------
def test_a_unit_that_would_leave_its_slice_gets_one_that_is_left_over() -> None:
    job = a_job("one", a_pool("v5p", held={"v5p/a": 1}, moving=1), min=1, max=1)
    assert solve(a_problem({"v5p/a": 1, "v5p/b": 1}, job)).pools["one", "pool-0"].moved_to == {"v5p/b": 1}
    other = a_job("two", a_pool({"v5p": 2}, 1))
    assert solve(a_problem({"v5p/a": 1, "v5p/b": 1}, job, other)).pools["one", "pool-0"].moved_to == {}


# --- an end to all moves ------------------------------------------------------------------------------------------------------------
def test_two_jobs_with_units_of_two_sizes_come_to_rest() -> None:
    # Three hosts. Equal priority; a: units of 1 and of 2 hosts, at least 2; b: units of 2 hosts and of 1, at least 1.
    sizes: dict[str, tuple[int, int]] = {"a": (1, 2), "b": (2, 1)}
    jobs = [
        a_job(key, *(a_pool({"h100": 1000 * size}, 3, size=size) for size in found), min=2 if key == "a" else 1)
        for key, found in sizes.items()
    ]
    _, plan = settled(a_problem({"h100/a": 3}, *jobs), 4)
    assert plan.admitted == {"a", "b"}  # two units and one, of one host each
