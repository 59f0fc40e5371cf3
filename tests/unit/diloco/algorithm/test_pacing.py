"""The pace of the syncer's clock."""

from diloco.algorithm.pacing import BURST, OuterStepBudget
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(0, 6), min_size=1, max_size=400), st.integers(1, 7))
def test_never_more_outer_steps_than_mean_learner_steps(reporters: list[int], live: int) -> None:
    budget, taken = OuterStepBudget(), 0
    for n, _ in enumerate(reporters, start=1):
        budget.add(1, live)
        while budget.ready:
            budget.spend()
            taken += 1
        # nothing is lost either: what is not spent is less than one step
        assert n / live - 1 < taken + 1e-6
        assert taken <= n / live + 1e-6


def test_seven_sevenths_are_one_step() -> None:
    budget = OuterStepBudget()
    for _ in range(7):
        assert not budget.ready
        budget.add(1, 7)
    assert budget.ready


def test_after_a_pause_the_clock_does_not_race() -> None:
    budget, burst = OuterStepBudget(), 0
    budget.add(1000, 1)
    while budget.ready:
        budget.spend()
        burst += 1
    assert burst == BURST
