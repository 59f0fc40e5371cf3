"""What a learner sends and takes between two steps, over a real connection."""

from __future__ import annotations

import numpy as np
import pytest
from builders.exchange import connection_of, solo, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner, joined, newest_progress, of_fragment, values
from builders.training_loop import BATCH, TOKENS
from diloco.learner.inbox import Leased, PullWanted, Received, Welcomed
from diloco.learner.leave import Leave
from diloco.protocol.diloco_pb2 import Chunk, ToLearner
from diloco.protocol.framing import Transfer


@pytest.fixture
def stream(learner: Learner, syncer: ScriptedSyncer) -> ScriptedStream:
    """Join a job of 15 outer steps. A push of the last ones is always sent; another is left out where this machine is so busy that it would
    come too late, and a test that waits for it would wait in vain."""
    return joined(learner, syncer, steps=15)


# --- between two steps --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_broadcast_is_adopted_after_a_step_and_resets_the_counters_of_its_fragment_only(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.update(1, 6, base=4, delta=2.0)
    learner.wait_for(Received)
    assert values(learner) == {6.0}, "nothing changes during a step"
    learner.train()
    # Fragment 0 has grown by 1 twice; fragment 1 is version 6: 5 + 2, without what was trained meanwhile.
    assert (of_fragment(learner, syncer, 0), of_fragment(learner, syncer, 1)) == ({7.0}, {7.0})
    learner.train()
    found = newest_progress(stream, 3)
    assert (list(found.steps), list(found.tokens)) == ([3, 1], [3 * TOKENS, TOKENS])
    assert (found.t, found.samples_done, found.tokens_done) == (6, 3 * BATCH, 3 * TOKENS)


def test_an_answer_holds_the_values_after_the_step_and_the_counters_that_belong_to_them(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(2)
    stream.pull(0, 7)
    learner.wait_for(PullWanted)
    learner.train()
    push = stream.hear_transfer()
    header = push.header
    assert (header.kind, header.fragment, header.t, header.base) == (Chunk.PUSH, 0, 7, 4)
    assert (header.steps, header.tokens) == (3, 3 * TOKENS)
    assert (header.samples_done, header.tokens_done, header.steps_done) == (3 * BATCH, 3 * TOKENS, 3)
    # 8 against the base of 5, in bfloat16: the upper half of a float32
    assert set((np.frombuffer(push.payload, np.uint16).astype(np.uint32) << 16).view(np.float32).tolist()) == {3.0}


def test_a_fragment_that_was_just_adopted_is_not_sent_before_it_was_trained(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.update(0, 6, base=4, delta=2.0).pull(0, 7)
    learner.wait_for(PullWanted)
    learner.train(2)
    header = stream.hear_transfer().header
    assert (header.t, header.base, header.steps) == (7, 6, 1)


# --- pulls during a long step ---------------------------------------------------------------------------------------------


@pytest.fixture
def slow(learner: Learner, stream: ScriptedStream) -> Learner:
    """It has heard of four outer steps in each of its two steps, and has staged fragment 1 for outer step 13."""
    for t in (8, 12):
        learner.batch()
        stream.pull(0, t)  # during the step: waiting for work would not count
        learner.wait_for(PullWanted)
        learner.step()
        assert stream.hear_transfer().header.t == t
    return learner


def deltas(transfer: Transfer) -> set[float]:
    """In bfloat16: the upper half of a float32."""
    return set((np.frombuffer(transfer.payload, np.uint16).astype(np.uint32) << 16).view(np.float32).tolist())


def test_a_pull_during_a_long_step_is_answered_at_once_with_the_values_of_the_boundary_before(
    slow: Learner, stream: ScriptedStream
) -> None:
    for array in slow.arrays.values():
        array += 100  # the step under way
    push = stream.pull(1, 13).hear_transfer()
    header = push.header
    assert (header.fragment, header.t, header.base, header.steps, header.tokens) == (1, 13, 4, 2, 2 * TOKENS)
    assert (header.samples_done, header.tokens_done, header.steps_done) == (2 * BATCH, 2 * TOKENS, 2)
    assert deltas(push) == {2.0}
    slow.wait_for(PullWanted)
    slow.train()
    # Each answer is for one pull: of outer step 13 nothing comes again. The next pull finds what was staged since.
    push = stream.pull(0, 14).hear_transfer()
    assert (push.header.t, push.header.steps, deltas(push)) == (14, 3, {103.0})


def test_a_pull_of_another_outer_step_waits_for_the_boundary(slow: Learner, stream: ScriptedStream) -> None:
    stream.pull(1, 15)
    slow.wait_for(PullWanted)
    slow.train()
    push = stream.hear_transfer()
    assert (push.header.t, push.header.steps, deltas(push)) == (15, 3, {3.0})


def test_what_was_staged_before_a_broadcast_of_its_fragment_is_not_sent_after_it(slow: Learner, stream: ScriptedStream) -> None:
    stream.update(1, 11, base=4, delta=2.0)
    slow.wait_for(Received)
    assert len(connection_of(slow.session)._ahead) == 0, "its memory is free at once"
    stream.pull(1, 13)
    slow.wait_for(PullWanted)
    slow.train(2)
    push = stream.hear_transfer()
    # Version 11 is 7 everywhere, adopted after the third step; the fourth is the only one since.
    assert (push.header.t, push.header.base, push.header.steps, deltas(push)) == (13, 11, 1, {1.0})


def test_what_was_staged_in_an_ended_session_is_not_sent_in_the_next(slow: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    stream.end()
    again = syncer.accept().welcome(t=12, incarnation=b"second").pull(1, 13).lease(200, 300)
    slow.wait_for(Leased)
    slow.train(2)
    header = again.hear_transfer().header
    assert (header.t, header.steps, header.samples_done, header.steps_done) == (13, 1, BATCH, 1)


def test_what_was_staged_outlives_a_broken_stream(slow: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    stream.end()
    push = syncer.accept().welcome(resumed=True, t=12).pull(1, 13).hear_transfer()
    assert (push.header.t, push.header.steps, deltas(push)) == (13, 2, {2.0})


def test_nothing_is_kept_for_pulls_that_come_after_bye(slow: Learner, stream: ScriptedStream) -> None:
    kept = connection_of(slow.session)._ahead
    assert len(kept) == 1
    solo(slow.session).drain()
    with pytest.raises(Leave):
        slow.session.close()
    assert len(kept) == 0


# --- broadcasts that do not fit -----------------------------------------------------------------------------------------


def test_a_delta_against_a_version_that_it_does_not_hold_is_not_adopted_and_the_stream_begins_anew(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    learner.train()
    stream.update(0, 6, base=3, delta=100.0)
    again = syncer.accept()
    assert list(again.hello.versions) == [4, 4]
    assert any("came as a delta against version 3; this learner holds 4" in str(record.exc_info) for record in caplog.records)
    again.welcome(resumed=True, t=6).broadcast(0, 6, weights(7.0))
    learner.wait_for(Received)
    learner.train()
    assert (of_fragment(learner, syncer, 0), of_fragment(learner, syncer, 1)) == ({7.0}, {7.0})


@pytest.mark.parametrize(
    "header",
    [
        Chunk(kind=Chunk.PUSH, fragment=0, t=5, coding=Chunk.FLOAT32),
        Chunk(kind=Chunk.BROADCAST, fragment=2, t=5, coding=Chunk.FLOAT32),
        Chunk(kind=Chunk.BROADCAST, fragment=0, t=5, coding=Chunk.FLOAT32, total=4),
    ],
    ids=["not a broadcast", "no such fragment", "another size"],
)
def test_a_chunk_that_does_not_fit_the_model_ends_the_stream_only(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, header: Chunk
) -> None:
    learner.train()
    stream.send(ToLearner(chunk=header))
    syncer.accept().welcome(resumed=True, t=4)
    learner.wait_for(Welcomed)
    assert learner.train() == [2, 3]
    assert values(learner) == {7.0}


def test_a_pull_of_a_fragment_that_the_model_does_not_have_ends_the_stream_only(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, caplog: pytest.LogCaptureFixture
) -> None:
    learner.train()
    stream.pull(2, 5)
    syncer.accept().welcome(resumed=True, t=4)
    learner.wait_for(Welcomed)
    assert learner.train() == [2, 3]
    assert any("the syncer pulls fragment 2 of 2" in str(record.exc_info) for record in caplog.records)


@pytest.mark.slow
def test_a_syncer_that_cuts_the_model_otherwise_is_not_joined(learner: Learner, syncer: ScriptedSyncer) -> None:
    odd = syncer.accept()
    odd.fragments = odd.fragments[:1]
    odd.welcome()
    again = syncer.accept()
    assert again.hello.incarnation == b""
    again.welcome(t=4).broadcast_all(4, weights(5.0))
    assert learner.session.t == 4
