from diloco.learner.reconnect import FIRST_DELAY, LONGEST_DELAY, reconnect_delay
from hypothesis import given
from hypothesis import strategies as st


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_reconnect_delay_is_short_jittered_and_bounded(failures: int, jitter: float) -> None:
    assert FIRST_DELAY / 2 <= reconnect_delay(failures, jitter) <= LONGEST_DELAY


def test_reconnect_delay_doubles() -> None:
    assert [reconnect_delay(n, 0.0) for n in (1, 2, 3)] == [0.025, 0.05, 0.1]
