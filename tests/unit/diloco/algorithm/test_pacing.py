"""The pace of the syncer's clock."""

from collections import Counter

from diloco.algorithm.pacing import LENIENCE, MOST_BEHIND, MOST_LOCAL_STEPS, OuterStepBudget
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 400), st.integers(1, 7))
def test_never_more_outer_steps_than_mean_learner_steps(reports: int, live: int) -> None:
    budget, taken = OuterStepBudget(24), 0
    for n in range(1, reports + 1):
        budget.add(str(n % live), 1, live)
        while budget.ready:
            budget.spend()
            taken += 1
        # nothing is lost either: what is not spent is less than one step
        assert n / live - 1 < taken + 1e-6
        assert taken <= n / live + 1e-6


def test_seven_sevenths_are_one_step() -> None:
    budget = OuterStepBudget(24)
    for n in range(7):
        assert not budget.ready
        budget.add(str(n), 1, 7)
    assert budget.ready


def test_after_a_pause_the_clock_catches_up_at_most_a_quarter_of_the_interval() -> None:
    budget, burst = OuterStepBudget(24), 0
    budget.add("a", 1000, 1)
    while budget.ready:
        budget.spend()
        burst += 1
    assert burst == MOST_BEHIND * 24 + 2


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=400))
def test_no_learner_gets_further_ahead_than_its_allowance(reporters: list[str]) -> None:
    budget, taken, steps = OuterStepBudget(24), 0, Counter[str]()
    for unit in reporters:
        budget.add(unit, 1, 7)
        steps[unit] += 1
        while budget.ready:
            budget.spend()
            taken += 1
        # what is left after the last outer step is less than one more allowance
        assert all(n < MOST_LOCAL_STEPS * (taken + 1) + LENIENCE * 24 for n in steps.values())


@given(st.lists(st.permutations("abcdefg"), min_size=1, max_size=60))
def test_learners_of_one_speed_take_one_outer_step_a_round_in_whatever_order_they_report(rounds: list[list[str]]) -> None:
    budget, taken = OuterStepBudget(24), 0
    for n, order in enumerate(rounds, start=1):
        for unit in order:
            budget.add(unit, 1, 7)
            while budget.ready:
                budget.spend()
                taken += 1
        assert taken == n


def test_unit_that_has_left_does_not_drive_the_clock() -> None:
    budget = OuterStepBudget(24)
    budget.add("a", 15, 100)
    assert budget.ready
    budget.forget("a")
    assert not budget.ready


def test_clock_waits_for_no_answer_beyond_the_usual_once_a_learner_is_far_ahead() -> None:
    budget = OuterStepBudget(24)
    budget.add("a", 20, 100)  # 20 - 12 steps of lenience; overdue from a quarter of 1.5 * 24 = 9
    assert not budget.overdue
    budget.add("a", 1, 100)
    assert budget.overdue


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(0, 3), st.booleans()), min_size=1, max_size=200))
def test_the_unit_furthest_ahead_is_known_whoever_reports_leaves_or_comes(events: list[tuple[str, int, bool]]) -> None:
    """The budget keeps the maximum up to date; here it is taken anew over all units after each event."""
    budget, ahead = OuterStepBudget(8), dict[str, float]()
    for unit, steps, leaves in events:
        if leaves:
            budget.forget(unit)
            ahead.pop(unit, None)
        else:
            budget.add(unit, steps, 10**9)
            ahead[unit] = min(1.5 * 0.25 * 8 + 2 * 1.5, ahead.get(unit, -4.0) + steps)
        assert budget.ready == (max(ahead.values(), default=-4.0) >= 1.5)
        assert budget.overdue == (max(ahead.values(), default=-4.0) >= 1.5 * 0.25 * 8)
        if budget.ready:
            budget.spend()
            ahead = {other: max(-4.0, x - 1.5) for other, x in ahead.items()}


def after_a_step_of(outer_steps: int) -> OuterStepBudget:
    """A unit has taken one step while the clock, which others drive, took so many."""
    budget = OuterStepBudget(24)
    budget.add("a", 1, 10**6)
    for _ in range(outer_steps):
        budget.spend()
    budget.add("a", 1, 10**6)
    return budget


def outer_steps_until_it_drives(budget: OuterStepBudget) -> int:
    """The unit takes two local steps in each."""
    taken = 0
    while not budget.ready:
        budget.spend()
        budget.add("a", 2, 10**6)
        taken += 1
    return taken


def test_a_unit_may_be_ahead_by_what_its_longest_recent_step_has_cost_it() -> None:
    # Of two steps in an outer step half a one is too many. From two steps beyond -12 to one allowance of 1.5: 11.5.
    assert outer_steps_until_it_drives(after_a_step_of(0)) == 2 * 11.5
    # 150 outer steps allow for 225: from one step beyond -11 - 225 to 1.5.
    assert outer_steps_until_it_drives(after_a_step_of(150)) == 2 * 236.5


def test_a_long_step_is_forgotten_after_four_times_its_length() -> None:
    budget = after_a_step_of(100)
    for _ in range(401):
        budget.spend()
        budget.add("a", 1, 10**6)
    assert outer_steps_until_it_drives(budget) <= 2 * 13.5


def test_what_a_long_step_has_cost_lets_no_unit_train_on_longer_while_the_quorum_is_missing() -> None:
    def until_it_rests(budget: OuterStepBudget) -> int:
        steps = 0
        while not budget.exhausted("a"):
            budget.add("a", 1, 10**6)
            steps += 1
        return steps

    assert until_it_rests(after_a_step_of(150)) == until_it_rests(after_a_step_of(20))
