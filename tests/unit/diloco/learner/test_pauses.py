"""What a program says of the time between two steps, and what the syncer hears while the training thread is busy."""

from __future__ import annotations

import math

import pytest
from builders.exchange import weights
from builders.scripted_connection import ScriptedSession
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner
from diloco.contract import MOST_PAUSE
from diloco.learner.heartbeat_state import HeartbeatState
from diloco.learner.inbox import Welcomed
from diloco.protocol.diloco_pb2 import Alive


def test_a_pause_is_told_with_what_is_left_of_it_and_does_not_end_by_itself() -> None:
    now = 100.0
    state = HeartbeatState(now=lambda: now)
    state.stepped(7)
    state.paused("evaluation", 60.0)
    now = 130.0
    assert state.message() == Alive(local_step=7, pause="evaluation", pause_left=30.0)
    now = 500.0
    assert state.message() == Alive(local_step=7, pause="evaluation", pause_left=0.0)
    state.paused("", 0.0)
    assert state.message() == Alive(local_step=7)


def test_a_session_tells_its_pauses_and_the_outer_one_again_after_an_inner_one() -> None:
    learner = ScriptedSession().join()
    with learner.session.paused("evaluation", at_most=600):
        with learner.session.paused("a checkpoint", at_most=60):
            pass
        told = learner.connection.pauses
        assert [reason for reason, _ in told] == ["evaluation", "a checkpoint", "evaluation"]
        assert [seconds for _, seconds in told] == pytest.approx([600, 60, 600], abs=10)
    assert learner.connection.pauses[-1] == ("", 0.0)


def test_a_pause_ends_also_when_the_program_raises() -> None:
    learner = ScriptedSession().join()
    with pytest.raises(OSError, match="disk"), learner.session.paused("a checkpoint", at_most=60):
        raise OSError("disk")
    assert learner.connection.pauses[-1] == ("", 0.0)


def test_a_pause_is_no_part_of_a_steps_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the syncer would take the unit for a slow one, and wait for it."""
    learner = ScriptedSession().join()
    learner.batch()
    idle: list[float] = []
    monkeypatch.setattr(learner.session._timer, "idle", idle.append)
    with learner.session.paused("evaluation", at_most=600), learner.session.paused("a checkpoint", at_most=60):
        pass
    assert len(idle) == 1


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 201])
def test_a_pause_without_a_reason_for_people_is_refused(reason: str) -> None:
    learner = ScriptedSession().join()
    with pytest.raises(ValueError, match="a pause needs a reason"), learner.session.paused(reason, at_most=60):
        pass
    assert not learner.connection.pauses


@pytest.mark.parametrize("at_most", [0, -1, MOST_PAUSE + 1, math.inf, math.nan])
def test_a_pause_without_a_usable_end_is_refused(at_most: float) -> None:
    learner = ScriptedSession().join()
    with pytest.raises(ValueError, match="at_most must be a number of seconds above 0"), learner.session.paused("x", at_most=at_most):
        pass


# --- over a connection --------------------------------------------------------------------------------------------------


def test_the_syncer_hears_of_a_process_whose_training_thread_is_busy(
    learner: Learner, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.learner.outbox.HEARTBEAT", 0.05)
    learner.train(2)
    # From here on the training thread does nothing.
    while stream.hear("alive").alive.local_step < 2:
        pass
    assert stream.hear("alive").alive == Alive(local_step=2, holds_parameters=True)


def test_the_syncer_hears_that_the_model_has_the_parameters_while_the_program_compiles(
    learner: Learner, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.learner.outbox.HEARTBEAT", 0.05)
    while not (said := stream.hear("alive").alive).holds_parameters:
        pass
    assert said.local_step == 0  # the training thread does nothing from here on


def told(stream: ScriptedStream, pause: str) -> Alive:
    """The first word of this pause; those before say what was before."""
    while (said := stream.hear("alive").alive).pause != pause:
        pass
    return said


def test_a_pause_is_said_at_once_and_again_on_the_next_stream(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(stream, "")
    monkeypatch.setattr("diloco.learner.outbox.HEARTBEAT", 3600.0)  # nothing is said because time has passed
    with learner.session.paused("evaluation", at_most=600):
        assert told(stream, "evaluation").pause_left == pytest.approx(600, abs=60)
        stream.end()
        again = syncer.accept().welcome(t=10).broadcast_all(10, weights(9.0))
        told(again, "evaluation")
        learner.wait_for(Welcomed)  # before that a change waits for the next heartbeat
    told(again, "")
