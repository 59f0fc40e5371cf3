from __future__ import annotations

import pytest
from diloco.protocol.backoff import ExponentialBackoff, exponential
from hypothesis import given
from hypothesis import strategies as st

draws = st.floats(0, 1, exclude_max=True)


def test_delays_double_up_to_the_ceiling() -> None:
    backoff = ExponentialBackoff(initial=1, ceiling=10, jitter=0)
    assert [backoff.delay(n, draw=0.7) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_jitter_shortens_by_at_most_its_share() -> None:
    backoff = ExponentialBackoff(initial=8, ceiling=8, jitter=0.5)
    assert backoff.delay(1, draw=0) == 8
    assert backoff.delay(1, draw=0.5) == 6


@given(failures=st.integers(1, 10**9), draw=draws)
def test_no_delay_exceeds_the_ceiling_or_falls_below_the_jittered_start(failures: int, draw: float) -> None:
    backoff = ExponentialBackoff(initial=0.5, ceiling=30, jitter=0.5)
    assert 0.25 <= backoff.delay(failures, draw) <= 30


def test_a_delay_before_the_first_failure_is_a_defect() -> None:
    with pytest.raises(ValueError, match="failures=0"):
        ExponentialBackoff(initial=1, ceiling=2).delay(0, draw=0)


@pytest.mark.parametrize(("initial", "ceiling", "jitter"), [(0, 1, 0), (2, 1, 0), (1, 2, -0.1), (1, 2, 1)])
def test_settings_that_make_no_sense_are_refused(initial: float, ceiling: float, jitter: float) -> None:
    with pytest.raises(ValueError, match="back-off needs"):
        ExponentialBackoff(initial=initial, ceiling=ceiling, jitter=jitter)


def test_no_initial_delay_means_none_at_all() -> None:
    assert exponential(0, 10, 5) == 0


def test_thousands_of_failures_do_not_overflow() -> None:
    assert exponential(0.5, 300, 10**9) == 300
