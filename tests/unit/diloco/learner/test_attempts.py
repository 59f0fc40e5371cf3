"""What the failed attempts of a learner to reach its syncer lead to."""

import pytest
from diloco.learner.reconnect import MOST_EXCEPTIONS, TLS_FAILURE_TIMEOUT, Attempts
from diloco.protocol.tls import TlsError


def logged(attempts: Attempts, count: int) -> list[int]:
    """Which of so many failures in a row are logged."""
    return [number for number in range(1, count + 1) if attempts.failed(0.0, welcomed=False, refusal="")]


def test_the_first_the_tenth_and_each_hundredth_failure_in_a_row_are_logged() -> None:
    assert logged(Attempts(first_logged=1), 250) == [1, 10, 100, 200]


def test_a_rank_that_comes_back_after_its_leader_logs_no_first_failure() -> None:
    assert logged(Attempts(first_logged=10), 99) == [10]


def test_a_stream_that_the_syncer_had_taken_begins_the_count_anew() -> None:
    attempts = Attempts(first_logged=1)
    logged(attempts, 7)
    assert attempts.failed(0.0, welcomed=True, refusal="")
    assert attempts.failures == 1


def test_tls_that_fails_for_too_long_ends_the_attempts_and_says_why() -> None:
    attempts = Attempts(first_logged=1)
    assert attempts.failed(10.0, welcomed=False, refusal="the certificate has expired"), "a new reason is logged"
    assert not attempts.failed(10.0 + TLS_FAILURE_TIMEOUT, welcomed=False, refusal="the certificate has expired")
    with pytest.raises(TlsError, match=r"the certificate has expired \(300 s long\)"):
        attempts.failed(10.1 + TLS_FAILURE_TIMEOUT, welcomed=False, refusal="the certificate has expired")


def test_tls_that_worked_meanwhile_may_fail_for_the_whole_time_again() -> None:
    attempts = Attempts(first_logged=1)
    attempts.failed(0.0, welcomed=False, refusal="the certificate has expired")
    attempts.failed(TLS_FAILURE_TIMEOUT, welcomed=False, refusal="")
    attempts.failed(TLS_FAILURE_TIMEOUT + 1, welcomed=False, refusal="the certificate has expired")
    assert attempts.failures == 3


def test_exceptions_in_a_row_end_the_attempts_but_for_a_stream_between_them_that_went_well() -> None:
    attempts = Attempts(first_logged=1)
    gave_up = [attempts.raised() for _ in range(MOST_EXCEPTIONS - 1)]
    attempts.failed(0.0, welcomed=False, refusal="")
    assert attempts.raised()
    attempts.failed(0.0, welcomed=True, refusal="")
    assert not any([*gave_up, attempts.raised()])
