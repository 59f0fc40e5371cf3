"""Adaptive grace and moving averages."""

import math

import pytest
from diloco.algorithm.quorum import MovingAverage, grace_seconds


def test_grace_is_a_share_of_the_slack() -> None:
    # tau 2 x 1.0 s - (0.6 + 0.9) = 0.5 s slack, of which 0.8 may be used
    assert grace_seconds(1.0, 0.6, 0.9, overlap_steps=2, safety_factor=0.8, max_steps=1) == pytest.approx(0.4)


def test_grace_is_at_most_max_steps() -> None:
    # slack 4 x 1.0 - 0.2 = 3.8, 0.8 of it is 3.04, but one step is 1.0
    assert grace_seconds(1.0, 0.1, 0.1, overlap_steps=4, safety_factor=0.8, max_steps=1) == 1.0
    assert grace_seconds(1.0, 0.1, 0.1, overlap_steps=4, safety_factor=0.8, max_steps=0) == 0.0


def test_no_slack_no_grace() -> None:
    assert grace_seconds(1.0, 0.9, 1.2, overlap_steps=2, safety_factor=0.8, max_steps=1) == 0.0
    assert grace_seconds(1.0, 0.0, 0.0, overlap_steps=0, safety_factor=0.8, max_steps=1) == 0.0


def test_moving_average_takes_the_first_value_whole() -> None:
    average = MovingAverage(0.1)
    average.add(10.0)
    assert average.value == 10.0
    average.add(20.0)
    assert average.value == pytest.approx(11.0)  # 10 + 0.1 * (20 - 10)


def test_moving_average_refuses_what_would_stay_in_it_for_ever() -> None:
    with pytest.raises(ValueError, match="nan"):
        MovingAverage(0.1).add(math.nan)


def test_moving_average_may_be_raised_to_a_value_at_once_but_not_lowered() -> None:
    average = MovingAverage(0.1)
    average.add_or_raise(10.0)
    average.add_or_raise(20.0)
    assert average.value == 20.0
    average.add_or_raise(10.0)
    assert average.value == pytest.approx(19.0)  # 20 + 0.1 * (10 - 20)
    with pytest.raises(ValueError, match="cannot be averaged"):
        average.add_or_raise(math.inf)
    assert average.value == pytest.approx(19.0)
