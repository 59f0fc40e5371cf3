"""How a learner ends: with the job, drained, refused, or by an error of the program."""

from __future__ import annotations

import grpc
import pytest
from builders.exchange import connection_of, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner, kinds, of_fragment, values
from builders.training_loop import BATCH, TOKENS
from diloco.contract import Exit
from diloco.learner.inbox import Finished, PullWanted, Received, RefusedForGood
from diloco.learner.leave import Leave
from diloco.protocol import rpc
from diloco.protocol.diloco_pb2 import Refused


def test_done_puts_the_last_broadcasts_in_place_without_what_was_trained_since(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.update(1, 9, base=4, delta=2.0)
    learner.wait_for(Received)
    learner.train(2)
    stream.done(10)
    learner.wait_for(Finished)
    learner.train()
    assert (of_fragment(learner, syncer, 0), of_fragment(learner, syncer, 1)) == ({5.0}, {7.0})
    assert (learner.session.done, learner.session.t) == (True, 10)
    with pytest.raises(StopIteration):
        learner.batch()
    learner.session.evaluate(0.25, 40)
    learner.session.close()
    assert [kind for kind in kinds(stream.rest()) if kind in ("evaluation", "bye")] == ["evaluation", "bye"]


def test_the_end_that_it_missed_comes_after_a_reconnect(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    learner.train()
    stream.end()
    again = syncer.accept().welcome(t=10).broadcast_all(10, weights(9.0)).done(10)
    learner.wait_for(Finished)
    learner.train()
    assert (learner.session.done, values(learner)) == (True, {9.0})
    # SIGTERM after the end changes nothing: the unit is complete, not drained.
    learner.session._drain(15, None)
    learner.session.close()
    assert not again.hear("bye").bye.drained


@pytest.mark.parametrize(
    ("code", "status"),
    [(Refused.FENCED, Exit.REFUSED_FENCED), (Refused.NONFINITE, Exit.REFUSED_NONFINITE), (Refused.PROTOCOL, Exit.CRASHED)],
)
def test_refused_it_leaves_with_the_status_of_the_reason_and_does_not_come_back(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, code: Refused.Code, status: Exit
) -> None:
    learner.train()
    stream.refuse(code, "says the test")
    learner.wait_for(RefusedForGood)
    assert not syncer.hears_of_a_stream_within(0.3)
    with pytest.raises(Leave, match=str(int(status))) as left:
        learner.train()
    assert (left.value.status, "says the test" in left.value.message) == (status, True)
    learner.is_over()


def test_a_certificate_that_the_syncer_refuses_ends_the_process(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    learner.train()
    stream.end(grpc.StatusCode.UNAUTHENTICATED)
    learner.wait_for(RefusedForGood)
    assert not syncer.hears_of_a_stream_within(0.3)
    with pytest.raises(Leave) as left:
        learner.train()
    assert left.value.status is Exit.REFUSED_UNAUTHENTICATED
    assert "as the test says" in left.value.message


def test_bye_says_how_much_was_done_and_comes_after_everything_that_waited(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(2)
    stream.pull(0, 5)
    learner.wait_for(PullWanted)
    learner.train()
    learner.session._drain(15, None)
    with pytest.raises(Leave) as left:
        learner.session.close()
    assert left.value.status is Exit.DRAINED
    said = stream.rest()
    assert [kind for kind in kinds(said) if kind in ("chunk", "bye")][-2:] == ["chunk", "bye"]
    bye = said[-1].bye
    assert (bye.drained, bye.samples_done, bye.tokens_done) == (True, 3 * BATCH, 3 * TOKENS)


def test_a_program_that_raises_leaves_without_bye_and_its_error_goes_on(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    with pytest.raises(ZeroDivisionError), learner.session:
        raise ZeroDivisionError
    assert "bye" not in kinds(stream.rest())
    learner.is_over()


def test_closing_while_a_stream_is_being_opened_ends_that_stream(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = rpc.exchange

    def exchange(channel: grpc.Channel) -> rpc.Call:
        connection_of(learner.session)._closing.set()
        return opened(channel)

    monkeypatch.setattr(rpc, "exchange", exchange)
    stream.end()
    learner.is_over()


def test_closing_without_a_stream_does_not_wait(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.end()
    syncer.accept()
    learner.session._drain(15, None)
    with pytest.raises(Leave):
        learner.session.close()
    learner.is_over()
    assert not [record for record in caplog.records if "within" in record.message], "there is no stream to wait for"
