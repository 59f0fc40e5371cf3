"""A learner whose stream breaks: what it says when it comes back, what it keeps, and what it forgets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import grpc
import numpy as np
import pytest
from builders.exchange import JOB_UID, WAIT_TIMEOUT, Place, connection_of, job_file, training, until, weights
from builders.scripted_syncer import INCARNATION, ScriptedStream, ScriptedSyncer
from diloco.contract import Exit
from diloco.learner import connection
from diloco.learner.arrays import ArrayStore
from diloco.learner.inbox import Finished, Leased, PullWanted, Received, RefusedForGood, Welcomed
from diloco.learner.leave import Leave
from diloco.learner.session import Session
from diloco.learner.step_timer import StepTimer
from diloco.learner.work import AHEAD_BATCHES
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Progress, Refused, ToLearner

BATCH = 2
TOKENS = 16
"""Of every step."""
AHEAD = AHEAD_BATCHES * BATCH


class Learner:
    """A session and its training loop, step by step in the test's thread."""

    def __init__(self, place: Place, syncer: ScriptedSyncer) -> None:
        self.arrays = weights(-1.0)
        store = ArrayStore(self.arrays, embeddings=["w0"])
        environment = place.of_learner(syncer.address, "u")
        self.entered: list[Session] = []
        """The session, from before it has the job's parameters."""
        entered = self.entered

        class Recorded(Session):
            def _wait_for_parameters(self) -> None:
                entered.append(self)
                super()._wait_for_parameters()

        def join() -> None:
            try:
                self._joined.set_result(Recorded.join(store, framework="numpy", environment=environment, keepalive=Keepalive()))
            except Leave as leave:
                self._joined.set_exception(leave)

        self._joined: Future[Session] = Future()
        threading.Thread(target=join, daemon=True).start()
        self._session: Session | None = None
        self._batches: Iterator[list[int]] | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self._joined.result(WAIT_TIMEOUT)
            # Steps of some seconds each: the amount of work to ask for does not depend on the machine.
            ticks = itertools.count()
            self._session._timer = StepTimer(1.0, lambda: float(next(ticks)))
            self._batches = self._session.batches(lambda numbers: numbers.tolist(), BATCH)
        return self._session

    def batch(self) -> list[int]:
        """The sequence numbers of the next batch."""
        assert self.session
        assert self._batches is not None
        return next(self._batches)

    def step(self) -> None:
        """One optimizer step: every parameter grows by 1."""
        for array in self.arrays.values():
            array += 1
        self.session.step(tokens=TOKENS)

    def train(self, steps: int = 1) -> list[int]:
        """Batch and step, `steps` times; the sequence numbers of the batches."""
        numbers = []
        for _ in range(steps):
            numbers += self.batch()
            self.step()
        return numbers

    def wait_for(self, kind: type[object], count: int = 1) -> None:
        """Wait until `count` events of this kind wait for the next step."""
        inbox = self.session._inbox
        until(lambda: sum(isinstance(event, kind) for event in list(inbox._events)) >= count, f"{count} {kind.__name__}")

    def is_over(self) -> None:
        """Wait for the end of the connection's thread, which so opens no stream any more."""
        thread = connection_of(self.session)._thread
        thread.join(WAIT_TIMEOUT)
        assert not thread.is_alive()

    def end(self) -> None:
        """Let the session go, whatever became of the test."""
        for session in self.entered:
            session._draining = True
            session._connection.close(None)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, job_file(training(1000)))


@pytest.fixture
def syncer(place: Place) -> Iterator[ScriptedSyncer]:
    with ScriptedSyncer(place, weights()) as running:
        yield running


@pytest.fixture
def learner(place: Place, syncer: ScriptedSyncer) -> Iterator[Learner]:
    started = Learner(place, syncer)
    yield started
    started.end()


@pytest.fixture
def stream(syncer: ScriptedSyncer, learner: Learner) -> ScriptedStream:
    """The first stream of a learner that has joined at outer step 4, where all parameters were 5, with 100 samples leased."""
    first = syncer.accept()
    first.welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 100)
    assert learner.session.t == 4
    return first


def values(learner: Learner) -> set[float]:
    """The different values that the model's parameters have."""
    return {float(value) for array in learner.arrays.values() for value in np.unique(array)}


def of_fragment(learner: Learner, syncer: ScriptedSyncer, index: int) -> set[float]:
    return {float(value) for tensor in syncer.fragments[index].tensors for value in np.unique(learner.arrays[tensor.name])}


def progress(stream: ScriptedStream) -> Progress:
    return stream.hear("progress").progress


def newest_progress(stream: ScriptedStream, local_step: int) -> Progress:
    """The progress of this local step; the ones before may have been replaced by it."""
    while (found := progress(stream)).local_step < local_step:
        pass
    assert found.local_step == local_step
    return found


def kinds(messages: list[FromLearner]) -> list[str | None]:
    return [message.WhichOneof("message") for message in messages]


# --- joining ------------------------------------------------------------------------------------------------------------


def test_the_first_hello_says_that_nothing_is_held(syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    hello = stream.hello
    assert (hello.job_uid, hello.unit, hello.attempt, len(hello.session)) == (JOB_UID, "u", 1, 16)
    assert (hello.incarnation, list(hello.versions), hello.samples_leased) == (b"", [], 0)


def test_join_returns_with_the_jobs_parameters_and_not_before_all_have_come(learner: Learner, syncer: ScriptedSyncer) -> None:
    stream = syncer.accept().welcome(t=9).broadcast(0, 9, weights(3.0))
    until(lambda: of_fragment(learner, syncer, 0) == {3.0}, "the first fragment to be adopted")
    assert not learner._joined.done()
    stream.broadcast(1, 7, weights(4.0))
    assert learner.session.t == 9, "the clock, and not the version of the fragment that came last"
    assert of_fragment(learner, syncer, 0) | of_fragment(learner, syncer, 1) == {3.0, 4.0}


def test_a_stream_that_breaks_half_way_through_the_parameters_is_followed_by_one_that_says_which_came(
    learner: Learner, syncer: ScriptedSyncer
) -> None:
    stream = syncer.accept().welcome(t=9).broadcast(1, 8, weights(3.0))
    until(lambda: of_fragment(learner, syncer, 1) == {3.0}, "the second fragment to be adopted")
    stream.end()
    again = syncer.accept()
    assert list(again.hello.versions) == [-1, 8]
    again.welcome(resumed=True, t=9).broadcast(0, 9, weights(4.0))
    assert learner.session.t == 9
    assert (of_fragment(learner, syncer, 0), of_fragment(learner, syncer, 1)) == ({4.0}, {3.0})


def test_a_learner_that_is_asked_to_seed_sends_its_own_parameters_and_joins(learner: Learner, syncer: ScriptedSyncer) -> None:
    stream = syncer.accept().welcome(seed_wanted=True)
    seeds = [stream.hear_transfer() for _ in syncer.fragments]
    assert [(seed.header.kind, seed.header.fragment, seed.header.coding) for seed in seeds] == [
        (Chunk.SEED, 0, Chunk.FLOAT32),
        (Chunk.SEED, 1, Chunk.FLOAT32),
    ]
    assert {float(x) for seed in seeds for x in np.frombuffer(seed.payload, np.float32)} == {-1.0}
    assert learner.session.t == 0


def test_drained_while_it_waits_for_parameters_it_leaves_with_that_status(
    learner: Learner, syncer: ScriptedSyncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = syncer.accept()
    # As SIGTERM does; its handler is the main thread's, and this session joins on another one.
    monkeypatch.setattr(ArrayStore, "apply", lambda store, ready: learner.entered[0]._drain(15, None))
    stream.welcome().broadcast(0, 0, weights(3.0))
    with pytest.raises(Leave) as left:
        learner._joined.result(WAIT_TIMEOUT)
    assert left.value.status is Exit.DRAINED
    assert stream.hear("bye").bye.drained


# --- between two steps --------------------------------------------------------------------------------------------------


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
    assert (learner.session._work.asked, learner.session._work.remaining) == (AHEAD - 8, 8)
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
    learner.session._boundary()
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
    assert learner.session._state.waiting, "the fragment was adopted at this very boundary"
    stream.end()
    again = syncer.accept().welcome(t=4).broadcast_all(4, weights(5.0)).lease(0, 100)
    learner.wait_for(Leased)
    learner.session._boundary()
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


def test_a_syncer_that_cuts_the_model_otherwise_is_not_joined(learner: Learner, syncer: ScriptedSyncer) -> None:
    odd = syncer.accept()
    odd.fragments = odd.fragments[:1]
    odd.welcome()
    again = syncer.accept()
    assert again.hello.incarnation == b""
    again.welcome(t=4).broadcast_all(4, weights(5.0))
    assert learner.session.t == 4


# --- the end ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
def test_any_other_end_of_a_stream_is_followed_by_the_next_stream(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, code: grpc.StatusCode | None
) -> None:
    stream.end(code)
    assert syncer.accept().hello.session == stream.hello.session


def test_the_delay_grows_with_each_failed_attempt_and_starts_anew_after_a_welcome(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def noted(count: int, jitter: float) -> float:
        failures.append(count)
        return 0.01

    monkeypatch.setattr(connection, "reconnect_delay", noted)
    stream.end()
    syncer.accept().end()
    syncer.accept().end()
    syncer.accept().welcome(resumed=True, t=4).end()
    syncer.accept()
    assert failures == [1, 2, 3, 1]


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
