"""Weights of contributions."""

import pytest
from diloco.algorithm.weights import shares, weight


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


def test_shares_sum_to_one() -> None:
    assert shares({"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0.0}) == {"a": 0.0}
