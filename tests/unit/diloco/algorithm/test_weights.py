"""Weights of contributions."""

import pytest
from diloco.algorithm.weights import MergeShares, Shares, shares, weight


def test_twice_the_steps_at_the_same_batch_weigh_twice() -> None:
    assert weight(tokens=2 * 24 * 512, steps=2 * 24) == 2 * weight(tokens=24 * 512, steps=24)


def test_half_the_batch_at_equal_steps_weighs_a_quarter() -> None:
    assert weight(tokens=24 * 256, steps=24) == weight(tokens=24 * 512, steps=24) / 4


def test_by_hand() -> None:
    assert weight(tokens=600, steps=3) == 120_000  # 600 tokens x 200 tokens a step


def test_no_work_weighs_nothing() -> None:
    assert weight(0, 0) == 0
    assert weight(0, 5) == 0


def test_negative_counters_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        weight(-1, 1)


def test_shares_of_units_in_different_merges_sum_to_one() -> None:
    found = Shares({})
    merges = [{"a": 3.0, "b": 1.0}, {"a": 1.0}, {"c": 2.0}, {"b": 1.0, "c": 1.0}]
    for each in merges:
        found.merged(each)
    # The mean over four merges: a (3/4 + 1)/4, b (1/4 + 1/2)/4, c (1 + 1/2)/4.
    assert [found.of(unit) for unit in "abc"] == pytest.approx([1.75 / 4, 0.75 / 4, 1.5 / 4])
    for _ in range(20):
        found.merged({"a": 1.0, "b": 1.0})
    assert sum(found.of(unit) for unit in "abc") == pytest.approx(1.0)
    # Six more merges are part of the mean, so it is 1.5/10; each of the other fourteen takes a tenth of it.
    assert found.of("c") == pytest.approx(0.15 * 0.9**14)


def test_merge_without_any_weight_changes_no_share() -> None:
    found = Shares({"a": 0.75, "b": 0.25})
    found.merged({"a": 0.0})
    assert [found.of(unit) for unit in ("a", "b", "never seen")] == [0.75, 0.25, 0.0]


def test_shares_go_on_after_a_restart() -> None:
    found = Shares({"a": 0.75, "b": 0.25})
    found.merged({"b": 1.0})
    assert [found.of(unit) for unit in "ab"] == pytest.approx([0.675, 0.325])  # a tenth is new


def test_a_unit_that_misses_every_fourth_merge_is_in_three_of_four_from_its_first_one_on() -> None:
    found = MergeShares()
    for number in range(100):
        found.merged(["near"])
        if number == 9:
            assert found.of("far") == 0.0, "it has not contributed yet"
    for number in range(1, 21):
        found.merged(["near"] if number % 4 == 0 else ["near", "far"])
    assert [found.of(unit) for unit in ("near", "far")] == pytest.approx([1.0, 15 / 20])
    found.merged(["near"])
    assert found.of("far") == pytest.approx(0.75 * 0.95)  # a twentieth is new


def test_a_merge_counts_for_its_units_whatever_they_weigh() -> None:
    found = MergeShares()
    found.merged({"a": 0.0})
    assert found.of("a") == 1.0


def test_shares_sum_to_one() -> None:
    assert shares({"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0.0}) == {"a": 0.0}
