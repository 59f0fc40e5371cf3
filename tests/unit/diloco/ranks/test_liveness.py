"""Who is lost, and for whose sake a unit ends."""

from __future__ import annotations

from diloco.ranks.channel import TELL_TIMEOUT, TICK
from diloco.ranks.liveness import HEARTBEAT, LOOKS, SILENCE, Cause, Silence, Verdict


def test_a_unit_ends_within_five_seconds_of_the_silence_of_a_rank() -> None:
    """Silent for SILENCE, seen a tick later at most, told, and each process ends: 4 + 0.25 + 0.3 s."""
    assert SILENCE + TICK + TELL_TIMEOUT < 5
    assert SILENCE > 4 * HEARTBEAT, "a few signs of life may come late"


def test_a_peer_is_lost_after_the_limit_of_silence() -> None:
    silence = Silence(100.0, tick=1.0, limit=3.0)
    silence.heard(1)
    silence.heard(2)
    assert [silence.lost(101.0), silence.lost(102.0)] == [[], []]
    silence.heard(2)
    assert silence.lost(103.0) == [1]


def test_who_left_may_be_silent() -> None:
    silence = Silence(0.0, tick=1.0, limit=2.0)
    silence.heard(1)
    silence.forget(1)
    assert [silence.lost(float(now)) for now in range(1, 5)] == [[], [], [], []]


def test_a_pause_of_this_process_is_no_silence_of_the_others() -> None:
    silence = Silence(0.0, tick=1.0, limit=4.0)
    silence.heard(1)
    assert silence.lost(1000.0) == [], "it counts as two ticks"
    assert silence.lost(1001.0) == []
    assert silence.lost(1002.0) == [1]


def test_a_rank_that_is_gone_is_the_cause_although_others_raised_first() -> None:
    verdict = Verdict()
    verdict.raised(1, "ended: RuntimeError: connection closed by peer")
    assert verdict.look() is None
    verdict.lost(2, "is lost")
    assert verdict.look() == Cause(2, "is lost")


def test_a_program_that_raised_is_the_cause_once_nobody_is_found_gone() -> None:
    verdict = Verdict()
    assert verdict.look() is None
    verdict.raised(1, "ended: ValueError")
    verdict.raised(0, "ended: RuntimeError")
    assert [verdict.look() for _ in range(LOOKS)] == [None] * LOOKS
    assert verdict.look() == Cause(1, "ended: ValueError")


def test_a_rank_that_left_its_loop_early_is_the_cause_once_another_raises_or_is_gone() -> None:
    for news in (Verdict.raised, Verdict.lost):
        verdict = Verdict()
        verdict.left_early(2, "left its loop")
        assert [verdict.look() for _ in range(2 * LOOKS)] == [None] * 2 * LOOKS, "all may leave, one after the other"
        news(verdict, 1, "ended: RuntimeError: connection closed by peer")
        assert [verdict.look() for _ in range(LOOKS + 1)][-1] == Cause(2, "left its loop")


def test_the_end_of_a_process_whose_program_raised_is_no_loss() -> None:
    verdict = Verdict()
    verdict.raised(1, "ended: ValueError")
    verdict.lost(1, "is lost: the connection was closed")
    assert [verdict.look() for _ in range(LOOKS + 1)][-1] == Cause(1, "ended: ValueError")


def test_the_first_that_is_gone_is_the_cause() -> None:
    verdict = Verdict()
    verdict.lost(2, "first")
    verdict.lost(1, "second")
    assert verdict.look() == Cause(2, "first")
