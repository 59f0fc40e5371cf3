"""A learner whose stream breaks: what it says when it comes back, what it keeps, and what it forgets."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import numpy as np
import pytest
from builders.exchange import solo, weights
from builders.scripted_syncer import INCARNATION, ScriptedStream, ScriptedSyncer
from builders.stepped_learner import AHEAD, Learner, kinds, newest_progress, of_fragment, progress, values
from builders.training_loop import BATCH, TOKENS
from diloco.contract import Exit
from diloco.learner.arrays import ArrayStore
from diloco.learner.inbox import Leased, PullWanted, Received, RefusedForGood, Welcomed
from diloco.learner.leave import Leave
from diloco.learner.reconnect import MOST_EXCEPTIONS
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.backoff import ExponentialBackoff
from diloco.protocol.diloco_pb2 import Taken, ToLearner

# --- streams that end ---------------------------------------------------------------------------------------------------


def noted_failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many attempts in a row had failed at each delay. The delays are short."""
    failures: list[int] = []

    def noted(self: ExponentialBackoff, count: int, draw: float) -> float:
        failures.append(count)
        return 0.01

    monkeypatch.setattr(ExponentialBackoff, "delay", noted)
    return failures


@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
def test_any_other_end_of_a_stream_is_followed_by_the_next_stream(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, code: grpc.StatusCode | None
) -> None:
    stream.end(code)
    assert syncer.accept().hello.session == stream.hello.session


@pytest.mark.slow
def test_the_delay_grows_with_each_failed_attempt_and_starts_anew_after_a_welcome(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = noted_failures(monkeypatch)
    stream.end()
    syncer.accept().end()
    syncer.accept().end()
    syncer.accept().welcome(resumed=True, t=4).end()
    syncer.accept()
    assert failures == [1, 2, 3, 1]


def prepared_badly(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The next values cannot be laid out for the model, as if a step filled the device, `times` times."""
    prepare, left = ArrayStore.prepare, iter(range(times))

    def full(self: ArrayStore, names: Sequence[str], values: Float32Array) -> Ready:
        if next(left, None) is not None:
            raise RuntimeError("the device is full")
        return prepare(self, names, values)

    monkeypatch.setattr(ArrayStore, "prepare", full)


def test_an_exception_of_the_store_ends_the_stream_and_the_fragment_comes_again(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learner.train()
    prepared_badly(monkeypatch, 1)
    stream.update(1, 6, base=4, delta=2.0)
    again = syncer.accept()
    assert (again.hello.session, list(again.hello.versions)) == (stream.hello.session, [4, 4])
    assert "RuntimeError: the device is full" in caplog.text
    again.welcome(resumed=True, t=6).update(1, 6, base=4, delta=2.0)
    learner.wait_for(Received)
    learner.train()
    assert of_fragment(learner, syncer, 1) == {7.0}


def test_the_delay_grows_with_each_exception_of_the_store_in_a_row(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = noted_failures(monkeypatch)
    prepared_badly(monkeypatch, 3)
    stream.update(1, 6, base=4, delta=2.0)
    for _ in range(2):
        syncer.accept().welcome(resumed=True, t=6).update(1, 6, base=4, delta=2.0)
    syncer.accept().welcome(resumed=True, t=6).end()
    syncer.accept()
    assert failures == [1, 2, 3, 1]


def test_a_push_that_cannot_be_coded_again_and_again_ends_the_process_with_the_reason(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unit would train on alone."""
    noted_failures(monkeypatch)

    def fails(self: ArrayStore, names: Sequence[str], values: Float32Array) -> Float32Array:
        raise RuntimeError("the device is full")

    monkeypatch.setattr(ArrayStore, "rounded", fails)
    streams = [stream]
    for _ in range(MOST_EXCEPTIONS):
        learner.train()
        streams[-1].pull(1, 6)
        learner.wait_for(PullWanted)
        learner.train()
        if len(streams) < MOST_EXCEPTIONS:
            streams.append(syncer.accept().welcome(resumed=True, t=6))
            learner.wait_for(Welcomed)
    learner.wait_for(RefusedForGood)
    with pytest.raises(Leave) as left:
        learner.train()
    assert left.value.status is Exit.CRASHED
    assert left.value.message.endswith("10 times in a row, at last with RuntimeError: the device is full")
    learner.is_over()


# --- back within the window ---------------------------------------------------------------------------------------------


def test_back_in_time_it_says_what_it_holds_and_goes_on_where_it_stopped(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    assert learner.train(3) == [0, 1, 2, 3, 4, 5]
    stream.update(1, 6, base=4, delta=2.0)
    learner.wait_for(Received)
    stream.end()
    again = syncer.accept()
    assert again.hello.session == stream.hello.session
    assert (again.hello.incarnation, list(again.hello.versions), again.hello.samples_leased) == (INCARNATION, [4, 6], 100)
    again.welcome(resumed=True, t=6)
    learner.wait_for(Welcomed)
    assert learner.train(2) == [6, 7, 8, 9]
    learner.train()
    found = newest_progress(again, 6)
    assert (found.samples_done, found.tokens_done, found.t) == (6 * BATCH, 6 * TOKENS, 6)
    assert list(found.steps) == [6, 2], "nothing but the fragment that came was adopted"
    # A delta against what was received on the stream before.
    again.update(0, 7, base=4, delta=1.0).pull(1, 8)
    learner.wait_for(PullWanted)
    learner.train()
    assert of_fragment(learner, syncer, 0) == {6.0}
    header = again.hear_transfer().header
    assert (header.base, header.samples_done, header.steps_done) == (6, 7 * BATCH, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resumed", "sent", "steps"),
    [(True, 5.0, 4), (True, 9.0, 1), (False, 5.0, 1)],
    ids=["the same", "another, as its seed was not taken", "the same to a new session"],
)
def test_a_version_that_it_holds_already_does_not_overwrite_its_steps(
    learner: Learner, syncer: ScriptedSyncer, *, resumed: bool, sent: float, steps: int
) -> None:
    stream = syncer.accept().welcome().broadcast_all(0, weights(5.0)).lease(0, 100)
    learner.train(2)
    stream.end()
    again = syncer.accept().welcome(resumed=resumed).broadcast_all(0, weights(sent)).lease(100, 200)
    learner.wait_for(Leased)
    learner.train(2)
    assert values(learner) == {sent + steps}
    assert list(newest_progress(again, 4).steps) == [steps, steps]


def test_back_in_time_leases_that_come_are_added_to_those_that_it_has(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(49)
    stream.end()
    again = syncer.accept().welcome(resumed=True, t=4).lease(200, 210)
    learner.wait_for(Leased)
    assert learner.train(3) == [98, 99, 200, 201, 202, 203]
    again.end()
    assert syncer.accept().hello.samples_leased == 110


def test_back_in_time_it_asks_again_for_work_that_it_had_asked_for(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(40)
    stream.end()
    again = syncer.accept().welcome(resumed=True, t=4)
    learner.wait_for(Welcomed)
    learner.train()
    # 20 of 100 samples were left before this batch. What was asked for on the stream before may be lost.
    assert again.hear("work_wanted").work_wanted.samples == AHEAD - 18


def test_it_trains_on_while_there_is_no_stream(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    stream.end()
    again = syncer.accept()
    # No Welcome yet: progress and requests are dropped, and the steps continue with the leased samples.
    assert learner.train(50) == list(range(100))
    again.welcome(resumed=True, t=4)
    learner.wait_for(Welcomed)
    again.lease(100, 104)
    learner.wait_for(Leased)
    assert learner.train() == [100, 101]
    assert again.hear("work_wanted").work_wanted.samples > 0
    assert newest_progress(again, 51).samples_done == 51 * BATCH


# --- back too late, or to another incarnation ---------------------------------------------------------------------------


@pytest.mark.parametrize("incarnation", [INCARNATION, b"second"], ids=["too late", "another incarnation"])
def test_a_session_that_does_not_resume_forgets_leases_counters_and_what_it_trained_since(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, incarnation: bytes
) -> None:
    learner.train(3)
    stream.end()
    again = syncer.accept()
    assert (again.hello.incarnation, list(again.hello.versions), again.hello.samples_leased) == (INCARNATION, [4, 4], 100)
    again.welcome(t=2, incarnation=incarnation).broadcast_all(2, weights(1.0)).lease(50, 60)
    learner.wait_for(Leased)
    # The batch in hand is of the session that is over: it is trained, and counts for nothing.
    assert learner.train() == [6, 7]
    assert (values(learner), learner.session.t) == ({1.0}, 2)
    assert learner.train(2) == [50, 51, 52, 53]
    found = newest_progress(again, 6)
    assert (found.samples_done, found.tokens_done) == (2 * BATCH, 2 * TOKENS)
    assert (list(found.steps), list(found.tokens)) == ([2, 2], [2 * TOKENS, 2 * TOKENS])
    again.pull(0, 3)
    learner.wait_for(PullWanted)
    learner.train()
    header = again.hear_transfer().header
    assert (header.base, header.samples_done, header.tokens_done, header.steps_done) == (2, 3 * BATCH, 3 * TOKENS, 3)
    again.end()
    hello = syncer.accept().hello
    assert (hello.incarnation, list(hello.versions), hello.samples_leased) == (incarnation, [2, 2], 10)


def test_a_session_that_does_not_resume_asks_for_work_at_once_and_once(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.end()
    again = syncer.accept().welcome(t=4)
    # Before the next step, whose end may be far away.
    assert again.hear("work_wanted").work_wanted.samples == AHEAD
    again.broadcast_all(4, weights(5.0)).lease(0, 8)
    learner.wait_for(Leased)
    learner.train()
    assert (solo(learner.session)._work.asked, solo(learner.session)._work.remaining) == (AHEAD - 8, 8)
    learner.session._drain(15, None)
    with pytest.raises(Leave):
        learner.session.close()
    assert "work_wanted" not in kinds(again.rest()), "what was asked for is on its way"


def test_a_request_for_work_of_the_session_that_is_over_is_not_sent_to_the_new_one(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(50)
    stream.end()
    resumed = syncer.accept().welcome(resumed=True, t=4)
    learner.wait_for(Welcomed)
    solo(learner.session).boundary()
    resumed.end()
    again = syncer.accept().welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 8)
    learner.wait_for(Leased)
    # No work is left, so it asks before it learns of the new session, which has asked by itself.
    assert learner.batch() == [0, 1]
    learner.session._drain(15, None)
    with pytest.raises(Leave):
        learner.session.close()
    assert kinds(again.rest()).count("work_wanted") == 1


def test_progress_of_the_session_that_is_over_is_not_reported_to_the_new_one(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train(5)
    stream.end()
    again = syncer.accept().welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 100)
    learner.wait_for(Leased)
    learner.train(3)
    assert (first := progress(again)).samples_done <= 2 * BATCH
    assert first.local_step > 6


def test_a_pull_of_the_session_that_is_over_is_not_answered_to_the_new_one(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.pull(0, 5)
    learner.wait_for(PullWanted)
    stream.end()
    again = syncer.accept().welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 100)
    learner.wait_for(Leased)
    again.pull(1, 6)
    learner.wait_for(PullWanted)
    learner.train(3)
    header = again.hear_transfer().header
    assert (header.fragment, header.t) == (1, 6)


def test_a_pull_that_waited_for_a_step_is_dropped_with_its_session(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    learner.train()
    stream.update(0, 5, base=4, delta=1.0).pull(0, 5)
    learner.wait_for(PullWanted)
    learner.train()
    assert solo(learner.session).state.waiting, "the fragment was adopted at this very boundary"
    stream.end()
    again = syncer.accept().welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 100)
    learner.wait_for(Leased)
    solo(learner.session).boundary()
    learner.train(2)
    again.pull(1, 6)
    learner.wait_for(PullWanted)
    learner.train()
    header = again.hear_transfer().header
    assert (header.fragment, header.t) == (1, 6)


def test_asked_to_seed_again_it_gives_the_jobs_last_values_and_not_its_own(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    """A syncer that lost its volume: the job goes on from what it broadcast last."""
    learner.train(3)
    stream.end()
    again = syncer.accept().welcome(incarnation=b"second", seed_wanted=True).lease(0, 100)
    learner.wait_for(Leased)
    learner.train()
    seeds = [again.hear_transfer() for _ in syncer.fragments]
    assert {float(x) for seed in seeds for x in np.frombuffer(seed.payload, np.float32)} == {5.0}
    learner.train(2)
    assert list(newest_progress(again, 6).steps) == [2, 2]
    again.end()
    assert list(syncer.accept().hello.versions) == [0, 0]


def test_a_syncer_that_acknowledges_what_was_not_sent_is_left_and_tried_again(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    stream.send(ToLearner(taken=Taken(bytes=1 << 40)))
    assert syncer.accept().hello.session == stream.hello.session
