"""How a learner joins a job."""

from __future__ import annotations

import numpy as np
import pytest
from builders.exchange import JOB_UID, WAIT_TIMEOUT, until, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner, of_fragment
from diloco.contract import Exit
from diloco.learner.arrays import ArrayStore
from diloco.learner.leave import Leave
from diloco.protocol.diloco_pb2 import Chunk


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
