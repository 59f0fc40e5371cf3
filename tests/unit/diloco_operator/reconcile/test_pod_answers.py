"""What an answer on the pods of a pool means, and when the API server is asked again."""

from __future__ import annotations

import pytest
from diloco_operator.reconcile import OperatorConfig
from diloco_operator.reconcile.observe.pod_answers import PodAnswer, admits, ask_at
from diloco_operator.reconcile.observe.rejected_writes import RejectedWrite

AT = 1000.0


def refused(count: int, in_vain: int = 0) -> PodAnswer:
    return PodAnswer(AT, 1, RejectedWrite(403, "exceeded quota", AT, 1, count=count), in_vain)


def test_an_admitted_pod_says_for_five_minutes_that_its_pool_is_admitted() -> None:
    answer = PodAnswer(AT, 1)
    assert admits(answer, 1, AT + 299)
    assert not admits(answer, 1, AT + 300)
    assert ask_at(answer, 1, OperatorConfig()) == AT + 300


def test_nothing_is_known_of_a_changed_spec() -> None:
    assert not admits(PodAnswer(AT, 1), 2, AT)
    assert ask_at(refused(9, in_vain=9), 2, OperatorConfig()) == 0
    assert ask_at(None, 2, OperatorConfig()) == 0
    assert not admits(None, 2, AT)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (refused(1), 5),
        (refused(4), 40),  # 5 * 2**3
        (refused(20), 300),
        (refused(1, in_vain=1), 60),
        (refused(3, in_vain=3), 240),  # 60 * 2**2
        (refused(12, in_vain=12), 1800),
    ],
)
def test_the_pause_after_a_refusal_grows_and_after_one_of_what_was_admitted_it_is_longer(answer: PodAnswer, pause: float) -> None:
    assert not admits(answer, 1, AT)
    assert ask_at(answer, 1, OperatorConfig()) == AT + pause
