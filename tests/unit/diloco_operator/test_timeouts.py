"""The order of the control plane's time-outs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.timeouts import (
    RECONCILE,
    REQUESTS,
    CredentialTimeouts,
    LeaseTimeouts,
    ReconcileTimeouts,
    RequestTimeouts,
    TelemetryTimeouts,
    WatchTimeouts,
    check_order,
    check_together,
)

CHART = Path(__file__).parents[3] / "helm" / "diloco-operator"


def test_the_first_two_in_the_wrong_order_are_named() -> None:
    with pytest.raises(ValueError, match=r"^x: b \(3 s\) must be shorter than c \(2.5 s\)$"):
        check_order("x", ("a", 1), ("b", 3), ("c", 2.5), ("d", 0))


def test_equal_timeouts_are_in_the_wrong_order() -> None:
    with pytest.raises(ValueError, match="must be shorter"):
        check_order("x", ("a", 1), ("b", 1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: RequestTimeouts(connect=0), "zero .* connect"),
        (lambda: RequestTimeouts(connect=25), "connect .* retry_after"),
        (lambda: RequestTimeouts(retry_after=35), "retry_after .* write"),
        (lambda: RequestTimeouts(write=60), "write .* server"),
        (lambda: RequestTimeouts(answer=60), "server .* answer"),
        (lambda: RequestTimeouts(event=35), "event .* write"),
        (lambda: RequestTimeouts(list_page=70), "list_page .* answer"),
        (lambda: RequestTimeouts(idle=90), "idle .* server_idle"),
        (lambda: RequestTimeouts(watch_margin=0), "zero .* watch_margin"),
        (lambda: CredentialTimeouts(retry=60), "retry .* reread"),
        (lambda: LeaseTimeouts(renew_deadline=15), "renew deadline .* lease duration"),
        (lambda: LeaseTimeouts(retry_period=10), "retry period .* renew deadline"),
        (lambda: WatchTimeouts(short=90), "short .* read"),
        (lambda: WatchTimeouts(read=300), "read .* watch"),
        (lambda: TelemetryTimeouts(interval=15), "interval .* read"),
        (lambda: TelemetryTimeouts(certificate=15), "read .* certificate"),
        (lambda: ReconcileTimeouts(postpone_status=35), "postpone_status .* expectation"),
        (lambda: ReconcileTimeouts(crd_retry=300), "crd_retry .* crd_recheck"),
    ],
)
def test_every_class_rejects_a_wrong_order(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_the_defaults_fit_together() -> None:
    check_together(REQUESTS, expectation=RECONCILE.expectation, stop=RECONCILE.stop)


@pytest.mark.parametrize(
    ("expectation", "stop", "message"),
    [
        (20, 10, r"a write \(35 s\) must not be longer than that of an expectation \(20 s\)"),
        (35, 5, r"an Event \(10 s\) must not be longer than the time to stop \(5 s\)"),
    ],
)
def test_timeouts_of_different_classes_that_do_not_fit_are_an_error(expectation: float, stop: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_together(REQUESTS, expectation=expectation, stop=stop)


def test_the_charts_pod_lives_until_writes_have_ended_and_the_lease_is_released() -> None:
    grace = yaml.safe_load((CHART / "values.yaml").read_text())["terminationGracePeriodSeconds"]
    assert RECONCILE.stop + LeaseTimeouts().attempt < grace


def test_a_silent_syncer_is_noticed_before_its_last_report_counts_as_stale() -> None:
    assert TelemetryTimeouts().read < OperatorConfig().report_stale_after
    assert TelemetryTimeouts().interval + TelemetryTimeouts().read < RECONCILE.syncer_answer < OperatorConfig().report_stale_after
