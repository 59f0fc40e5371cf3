"""Guards refuse what no healthy run can make, and nothing else."""

import math
from typing import Any

import pytest
from diloco.algorithm.guards import (
    ARMED_AFTER,
    FORGET_AFTER,
    LEAST_CYCLE,
    MOST_STEPS,
    MOST_TOKENS_PER_STEP,
    NORM,
    Guard,
    Measured,
    Others,
    lower_median,
)
from hypothesis import given as generated
from hypothesis import strategies as st

NAN = math.nan


def one(unit: str = "a", norm: float = 1.0, tokens: int = 1000, steps: int = 10) -> Measured:
    return Measured(unit, norm, steps, tokens)


def a_guard(parameters: float = 10.0, sizes: tuple[int, ...] = (100,)) -> Guard:
    guard = Guard(sizes)
    guard.begin([parameters] * len(sizes))
    return guard


def after(*contributions: Measured, merges: int = ARMED_AFTER, parameters: float = 10.0) -> Guard:
    """A guard that has seen so many merges of these contributions."""
    guard = a_guard(parameters)
    for _ in range(merges):
        take(guard, *contributions)
    return guard


def take(guard: Guard, *given: Measured) -> set[str]:
    """Let a merge happen as the coordinator does. Returns who is refused."""
    refused = guard.judge(0, given)
    guard.merged(0, [x for x in given if x.unit not in refused])
    return set(refused)


def refused(guard: Guard, *given: Measured) -> set[str]:
    return set(guard.judge(0, given))


# --- poison ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1e30, math.inf, NAN])
@pytest.mark.parametrize("peers", [0, 1, 4])
@pytest.mark.parametrize("merges", [0, 1, 100])
def test_a_gigantic_norm_is_refused_at_any_time_and_among_any_number_of_units(norm: float, peers: int, merges: int) -> None:
    units = [one(f"u{i}") for i in range(peers)]
    guard = after(*units or [one("sick")], merges=merges)
    assert refused(guard, *units, one("sick", norm=norm)) == {"sick"}


def test_all_units_together_may_not_destroy_the_parameters() -> None:
    guard = after(one("a"), one("b"), one("c"))
    assert refused(guard, one("a", norm=1e30), one("b", norm=1e30), one("c", norm=1e30)) == {"a", "b", "c"}


def test_tokens_far_beyond_the_jobs_are_refused() -> None:
    guard = after(one("a"), one("b"))
    assert refused(guard, one("a"), one("b"), one("new", tokens=1000 * 10**9)) == {"new"}
    # 100 tokens per step are the level; a unit with a history gets 64 times, a new one 10^4 times as much.
    assert refused(guard, one("a", tokens=1000 * 65), one("b")) == {"a"}
    assert refused(guard, one("a", tokens=1000 * 64), one("b")) == set()
    assert refused(guard, one("new", tokens=1000 * 10**4), one("a")) == set()


def test_before_there_is_a_history_enough_peers_replace_it() -> None:
    guard = a_guard()
    peers = [one("a"), one("b")]
    assert refused(guard, *peers, one("sick", tokens=1000 * 10**4 + 10)) == {"sick"}
    assert refused(guard, *peers, one("new", tokens=1000 * 10**4)) == set()
    assert refused(guard, one("a"), one("sick", tokens=10**12)) == set(), "of two, either may be wrong"


def test_the_message_says_what_was_seen_and_the_limit() -> None:
    guard = after(one("a"), one("b"))
    assert guard.judge(0, [one("a", norm=1e30), one("b", tokens=10**12), one("c")]) == {
        "a": "the norm of its outer gradient is 1e+30; this job has seen up to 1, and the limit is 100",
        "b": "it has 1e+11 tokens per step; the limit is 6.4e+03",
    }
    assert a_guard().judge(0, [one(norm=1e30)])["a"].endswith("the parameters themselves have 10, and the limit is 1e+04")


def test_a_single_contribution_does_not_raise_the_level() -> None:
    guard = after(one("a"), one("b"), one("c"))
    for _ in range(20):
        assert take(guard, one("a"), one("b"), one("c", norm=9.9)) == set()
    assert refused(guard, one("a"), one("b"), one("c", norm=101.0)) == {"c"}
    assert refused(guard, one("a"), one("b"), one("d", norm=99.0)) == set()


def test_what_is_refused_is_not_learnt() -> None:
    guard = after(one("a"), one("b"))
    for _ in range(20):
        assert take(guard, one("a", norm=101.0), one("b")) == {"a"}
    assert refused(guard, one("a", norm=101.0), one("b")) == {"a"}


def test_a_lone_unit_raises_the_level_by_no_more_than_two_from_merge_to_merge() -> None:
    guard = after(one())
    assert take(guard, one(norm=99.0)) == set()
    assert refused(guard, one(norm=201.0)) == {"a"}
    assert refused(guard, one(norm=199.0)) == set()


def test_a_unit_whose_norms_are_far_above_those_of_its_peers_in_most_of_its_contributions_is_refused() -> None:
    guard = after(one("a"), one("b"), one("c"))
    # The fifth is the one that makes most of eight.
    outcomes = [take(guard, one("a"), one("b"), one("c", norm=20.0)) for _ in range(5)]
    assert outcomes == [set()] * 4 + [{"c"}]
    why = guard.judge(0, [one("a"), one("b"), one("c", norm=20.0)])["c"]
    assert why.startswith("5 of its last 8 outer gradients are more than 10 times as large as those of the other units")


def test_a_unit_with_twenty_times_the_steps_of_its_peers_may_go_twenty_times_as_far() -> None:
    guard = after(one("a"), one("b"))
    for _ in range(4 * LEAST_CYCLE):
        assert take(guard, one("a"), one("b"), one("fast", norm=20.0, steps=200, tokens=20_000)) == set()


def test_some_large_contributions_of_a_cycle_are_no_fault() -> None:
    """Every third one is 50 times as large as those of the peers."""
    guard = after(one("a"), one("b"))
    for n in range(60):
        assert take(guard, one("a"), one("b"), one("c", norm=1.0 if n % 3 else 50.0)) == set()


def test_a_norm_that_is_long_against_those_of_the_peers_counts_as_one_at_the_bound() -> None:
    """Three times the norms of the peers are the bound, and the weight is what makes up for the rest."""
    guard = after(one("a"), one("b"), one("c"))
    assert guard.lighter(0, [one("a"), one("b"), one("c", norm=3.0)]) == {}
    assert guard.lighter(0, [one("a"), one("b"), one("c", norm=90.0)]) == {"c": pytest.approx(3 / 90)}
    # With four times the steps it may have gone four times as far.
    assert guard.lighter(0, [one("a"), one("b"), one("c", norm=12.0, steps=40)]) == {}
    assert guard.lighter(0, [one("a"), one("b"), one("c", norm=24.0, steps=40)]) == {"c": pytest.approx(12 / 24)}


def test_a_norm_counts_in_full_where_the_peers_have_grown_as_well_or_say_nothing_yet() -> None:
    guard = after(one("a"), one("b"), one("c"))
    assert guard.lighter(0, [one("a", norm=50.0), one("b", norm=50.0), one("c", norm=90.0)]) == {}
    # Of two units neither is known to be the one that is right.
    assert guard.lighter(0, [one("a"), one("c", norm=90.0)]) == {}
    assert guard.lighter(0, []) == {}
    # Without a level, a first norm among zeros is the first gradient of a part of the model.
    assert a_guard().lighter(0, [one("a", norm=0.0), one("b", norm=0.0), one("c", norm=90.0)]) == {}


def test_two_units_do_not_judge_the_cycle_of_each_other() -> None:
    guard = after(one("a"), one("b"))
    for _ in range(4 * LEAST_CYCLE):
        assert take(guard, one("a"), one("b", norm=50.0)) == set()


def test_what_a_broken_first_unit_has_taught_is_forgotten_once_others_train() -> None:
    guard = after(one("broken", norm=9000.0))
    others = [one("a"), one("b"), one("c")]
    merges = 0
    while not refused(guard, *others, one("broken", norm=9000.0)):
        assert take(guard, *others) == set()
        merges += 1
    # The level falls from 9000 by a tenth in each merge until 100 times it is below 9000: ln(100) / -ln(0.9) = 43.7.
    assert merges == 44


# --- healthy runs ---------------------------------------------------------------------------------------------------------


def test_a_learning_rate_that_warms_up_from_zero_is_accepted() -> None:
    """H = 24, one local step before the first exchange, 10 000 steps of warm-up: norms as the sums of the rates, from 0."""
    guard, step = a_guard(), 0
    for interval in [1, *[24] * 400]:
        rates = sum(k / 10_000 for k in range(step, step + interval))
        step += interval
        assert take(guard, one(norm=rates)) == set()


def test_a_learning_rate_that_decays_to_zero_and_starts_again_is_accepted() -> None:
    guard = after(one(), merges=50)
    for _ in range(200):
        assert take(guard, one(norm=0.0)) == set()
    assert take(guard, one()) == set()


def test_a_part_of_the_model_whose_gradient_begins_late_moves_as_far_as_the_others() -> None:
    """Two fragments; the second has hardly moved (weight decay), then its gradient begins, in one unit before the others."""
    guard = Guard((100, 400))
    guard.begin([10.0, 1.0])
    units = "abcdefgh"
    for _ in range(50):
        for fragment, norm in ((0, 1.0), (1, 1e-6)):
            given = [one(unit, norm=norm) for unit in units]
            assert not guard.judge(fragment, given)
            guard.merged(fragment, given)
    for unit in units:
        # The same move per value: 1.0 * sqrt(400 / 100).
        assert not guard.judge(1, [one(other, norm=2.0 if other == unit else 1e-6) for other in units])
    # A hundred times that is the limit, also here.
    assert set(guard.judge(1, [one(other, norm=201.0 if other == "a" else 1e-6) for other in units])) == {"a"}


def test_a_unit_that_joins_with_a_hundred_times_the_batch_is_accepted() -> None:
    guard = after(one("a"), one("b"), merges=100)
    assert take(guard, one("a"), one("b"), one("new", tokens=1000 * 100, norm=5.0)) == set()


def test_a_unit_whose_program_changes_its_batch_begins_a_new_history() -> None:
    guard = after(one("a"), one("b"), merges=100)
    larger = one("b", tokens=1000 * 500)
    assert refused(guard, one("a"), larger) == {"b"}
    guard.joined("b")
    assert refused(guard, one("a"), larger) == set()


def test_when_all_units_change_together_none_is_refused() -> None:
    guard = after(one("a"), one("b"), one("c"), merges=100)
    now = [one(unit, norm=900.0, tokens=10**6) for unit in "abc"]
    assert take(guard, *now) == set()


def test_a_step_that_is_small_against_the_parameters_is_never_refused() -> None:
    guard = after(one(norm=1e-6), parameters=10.0)
    assert refused(guard, one(norm=0.9)) == set()
    assert refused(guard, one(norm=1.1)) == {"a"}


def test_a_fragment_that_begins_at_zero_moves_on_the_scale_of_the_model() -> None:
    guard = Guard((100, 100))
    guard.begin([10.0, 0.0])
    # Root mean square of the model: 10 / sqrt(200); of a fragment of 100 values: 7.07; a thousand times that.
    assert set(guard.judge(1, [one(norm=7000.0)])) == set()
    assert set(guard.judge(1, [one(norm=7100.0)])) == {"a"}


def test_a_model_of_zeros_may_begin() -> None:
    guard = a_guard(parameters=0.0)
    assert take(guard, one(norm=5000.0)) == set()
    assert refused(guard, one(norm=1e30)) == {"a"}


def test_parameters_near_zero_do_not_limit_the_first_steps() -> None:
    """100 values of 1e-5, and 30 steps of AdamW at a rate of 1e-2: each value moves by up to 0.3, so the norm is 3 beside 1e-4."""
    guard = a_guard(parameters=1e-4)
    assert [take(guard, one(norm=3.0)) for _ in range(ARMED_AFTER)] == [set()] * ARMED_AFTER
    assert refused(guard, one(norm=301.0)) == {"a"}, "from then on the level counts"
    assert refused(a_guard(parameters=1e-4), one(norm=10_001.0)) == {"a"}, "a thousand per value, as among zeros"


def test_a_job_that_has_changed_is_not_stopped() -> None:
    """A lone unit whose norms are beyond the limit for good: after some merges the level is learnt anew."""
    guard = after(one(), merges=100, parameters=10.0)
    outcomes = [take(guard, one(norm=NORM * 10)) for _ in range(FORGET_AFTER + 1)]
    assert outcomes == [{"a"}] * FORGET_AFTER + [set()]
    assert refused(guard, one(norm=1e30)) == {"a"}


# --- facts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "tokens", "why"),
    [
        (10, 2**64 - 1, "more than 4294967296 tokens in a step cannot be"),
        (MOST_STEPS + 1, 100, "more than 4294967296 cannot be"),
    ],
)
def test_what_cannot_be_a_fact_is_named(steps: int, tokens: int, why: str) -> None:
    assert why in a_guard().impossible(steps, tokens)


def test_the_largest_batches_and_the_longest_absences_are_possible() -> None:
    guard = a_guard()
    assert guard.impossible(1, MOST_TOKENS_PER_STEP) == ""
    assert guard.impossible(10**6, 100) == "", "a lone unit that was cut off for long must get its work in"


# --- state ----------------------------------------------------------------------------------------------------------------


def test_a_restored_guard_judges_as_before() -> None:
    guard, restored = after(one("a"), one("b"), merges=10), a_guard()
    restored.restore(guard.to_json())
    given = [one("a", norm=101.0), one("b", tokens=1000 * 10**9), one("c"), one("d")]
    assert set(restored.judge(0, given)) == set(guard.judge(0, given)) == {"a", "b"}
    assert restored.to_json() == guard.to_json()


def test_a_state_from_before_the_first_merge_begins_without_levels() -> None:
    fresh = a_guard()
    fresh.restore(a_guard().to_json())
    assert fresh.to_json() == a_guard().to_json()
    assert take(fresh, one()) == set()


def test_a_state_without_levels_is_an_error() -> None:
    with pytest.raises(KeyError, match="norms"):
        a_guard().restore({})


@pytest.mark.parametrize(
    "change", [{"norms": []}, {"norms": [[1, NAN, 1.0]]}, {"norms": [[1, 1.0, NAN]]}, {"tokens": [1]}, {"tokens": "x"}, {"norms": None}]
)
def test_a_malformed_state_is_an_error(change: dict[str, Any]) -> None:
    stored = after(one()).to_json() | change
    with pytest.raises((KeyError, TypeError, ValueError)):
        a_guard().restore(stored)


@pytest.mark.slow
@generated(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_the_median_of_the_others_is_that_of_a_list_without_the_one(values: list[int], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(values))
    rest = list(values)
    rest.remove(own)
    assert Others(values).median(own) == (lower_median(rest) if rest else None)
