"""What int4 leaves out of a push is in the next one, and never in two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders.exchange import LocalLearner, LocalSyncer, Place, connection_of, job_file, training, weights
from builders.scripted_syncer import ScriptedStream, ScriptedSyncer
from builders.stepped_learner import Learner, joined
from diloco.algorithm.codec import Coding, decode
from diloco.algorithm.fragments import unpack
from diloco.learner.arrays import ArrayStore
from diloco.learner.inbox import Leased, PullWanted, Received
from diloco.learner.push_coding import push_chunks
from diloco.learner.remainders import Remainders
from diloco.learner.store import Float32Array
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk
from hypothesis import given
from hypothesis import strategies as st

# --- over rounds --------------------------------------------------------------------------------------------------------

N = 300
"""Two blocks, of 256 and 44 values."""
ROUNDS = st.lists(st.sampled_from(["merged", "late", "skipped", "unsent"]), min_size=1, max_size=12)


def pushed(store: ArrayStore, base: Float32Array, remainders: Remainders, t: int) -> Float32Array:
    """What the syncer decodes of the push of outer step `t`."""
    header = Chunk(kind=Chunk.PUSH, t=t, coding=Chunk.INT4_DELTA)
    chunks: list[DataChunk] = list(push_chunks(header, store.stage(["w"]), lambda: (0, base), store, ["w"], remainders))
    return decode(Coding.INT4_DELTA, b"".join(chunk.data for chunk in chunks), N)


@given(ROUNDS, st.integers(0, 2**32 - 1))
def test_what_is_decoded_in_all_is_what_was_trained_up_to_one_last_remainder(rounds: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    steady = (rng.standard_normal(N) * 10.0 ** rng.uniform(-4, 0, N)).astype(np.float32)
    theta, base = np.zeros(N, np.float32), np.zeros(N, np.float32)
    store, remainders = ArrayStore({"w": theta}), Remainders()
    trained, decoded = np.zeros(N, np.float64), np.zeros(N, np.float64)
    largest = np.zeros(N, np.float64)
    merged = 0
    for t, outcome in enumerate(rounds, start=1):
        theta += steady * rng.standard_normal(N).astype(np.float32)
        if outcome == "unsent":  # dropped before it was coded; its exchange was skipped
            continue
        delta = theta.astype(np.float64) - base
        values = pushed(store, base, remainders, t)
        if outcome == "skipped":
            continue
        if outcome == "merged":
            trained += delta
            decoded += values
            merged = t
            # The absolute maximum of a block is coded as level 7, exactly but for rounding.
            blocks = [values[:256], values[256:]]
            largest = np.concatenate([np.full(block.size, np.abs(block).max(), np.float64) for block in blocks])
        base = base + np.float32(t)
        theta[...] = base  # the adoption; what was trained for a merge that it missed is lost
        remainders.received(0, t, merged)
    # Half a level of the last merged push is a fourteenth of its block's maximum; float32 rounds a dozen rounds at up to 100.
    assert (np.abs(trained - decoded) <= largest / 14 + 1e-3).all()


# --- which push a remainder is of ---------------------------------------------------------------------------------------


def carried(remainders: Remainders, fragment: int = 0) -> list[float]:
    values = np.zeros(2, np.float32)
    remainders.add_to(fragment, values)
    return values.tolist()


def left_out(value: float) -> Float32Array:
    return np.full(2, value, np.float32)


def test_a_remainder_is_carried_from_the_merge_of_its_push_on_and_of_its_fragment_only() -> None:
    remainders, array = Remainders(), left_out(0.25)
    remainders.coded(0, 6, array)
    array[...] = 99  # the memory of a push is used again
    assert carried(remainders) == [0, 0]
    remainders.received(1, 6, merged=6)
    remainders.received(0, 4, merged=0)  # a version from before the push
    assert carried(remainders) == [0, 0]
    remainders.received(0, 6, merged=6)
    remainders.received(0, 8, merged=6)
    assert (carried(remainders), carried(remainders, 1)) == ([0.25, 0.25], [0, 0])


def test_where_it_is_not_known_what_the_merged_push_left_out_nothing_is_carried() -> None:
    remainders = Remainders()
    remainders.coded(0, 6, left_out(0.25))
    remainders.received(0, 6, merged=6)
    remainders.coded(0, 8, left_out(0.5))
    remainders.coded(0, 10, left_out(1.0))  # takes its place: the syncer asks again after a merge, or where there was none
    remainders.received(0, 8, merged=8)
    assert carried(remainders) == [0, 0]
    remainders.received(0, 10, merged=10)
    assert carried(remainders) == [1.0, 1.0]


@pytest.mark.parametrize("received", [6, 8])
def test_what_a_missed_merge_left_open_is_let_go(received: int) -> None:
    """Also where a newer version took the place of that merge's on the way."""
    remainders = Remainders()
    remainders.coded(0, 6, left_out(0.25))
    remainders.received(0, received, merged=0)
    remainders.received(0, 10, merged=6)  # which no syncer says
    assert carried(remainders) == [0, 0]


# --- over a real connection ---------------------------------------------------------------------------------------------
#
# The first value of fragment 0 moves by 7, all others by 0.375: a level of its one block is 1, so that the others are coded as 0, and a
# second push with their remainder holds 0.75 of them, which is coded as 1. Pulls are three outer steps apart: how long an exchange lives is
# seen only of those that end with the next pull, and so no push is left out because a busy machine was slow with the one before.

ONE = 7.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, job_file(training(1000, compression="Int4")))


def train(learner: Learner, syncer: ScriptedSyncer) -> None:
    learner.batch()
    for array in learner.arrays.values():
        array += 0.375
    learner.arrays[syncer.fragments[0].tensors[0].name].flat[0] += ONE - 0.375
    learner.session.step(tokens=16)


def answer(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream, t: int) -> Float32Array:
    """What the syncer decodes of the answer to the pull of fragment 0 at outer step `t`, after a step."""
    stream.pull(0, t)
    learner.wait_for(PullWanted)
    train(learner, syncer)
    push = stream.hear_transfer()
    assert (push.header.t, push.header.coding) == (t, Chunk.INT4_DELTA)
    return decode(Coding.INT4_DELTA, push.payload, syncer.fragments[0].size)


def others(values: Float32Array) -> set[float]:
    """All but the first."""
    return set(values[1:].tolist())


def adopt(learner: Learner, stream: ScriptedStream, t: int, merged: int) -> None:
    stream.broadcast(0, t, weights(5.0), merged)
    learner.wait_for(Received)


def test_what_a_merged_push_left_out_is_in_the_next(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    assert others(answer(learner, syncer, stream, 6)) == {0.0}
    adopt(learner, stream, 6, merged=6)
    train(learner, syncer)
    assert others(answer(learner, syncer, stream, 9)) == {1.0}
    adopt(learner, stream, 9, merged=9)
    train(learner, syncer)
    # 0.75 less 1, and 0.375: an eighth.
    assert others(answer(learner, syncer, stream, 12)) == {0.0}


def test_what_a_push_left_out_that_came_too_late_is_not(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    assert others(answer(learner, syncer, stream, 6)) == {0.0}
    adopt(learner, stream, 6, merged=0)
    train(learner, syncer)
    assert others(answer(learner, syncer, stream, 9)) == {0.0}


def test_a_push_that_came_too_late_leaves_what_it_carried_to_the_next(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    answer(learner, syncer, stream, 6)
    adopt(learner, stream, 6, merged=6)
    train(learner, syncer)
    for t in (9, 12):
        assert others(answer(learner, syncer, stream, t)) == {1.0}
        adopt(learner, stream, t, merged=6)
        train(learner, syncer)


def test_what_is_still_in_the_model_is_not_added_again(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    assert others(answer(learner, syncer, stream, 6)) == {0.0}
    # Its exchange was skipped: the next push holds both steps, 14 and 0.75, of which a level is 2.
    values = answer(learner, syncer, stream, 9)
    assert (values[0], others(values)) == (2 * ONE, {0.0})
    # With a remainder of either push it would be 1.125, which is coded as 2.


def test_a_broken_stream_loses_no_remainder(learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream) -> None:
    answer(learner, syncer, stream, 6)
    stream.end()
    again = syncer.accept().welcome(resumed=True, t=6)
    adopt(learner, again, 6, merged=6)
    train(learner, syncer)
    assert others(answer(learner, syncer, again, 9)) == {1.0}


@pytest.mark.slow
def test_a_learner_that_takes_all_parameters_anew_begins_without_remainders(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    answer(learner, syncer, stream, 6)
    adopt(learner, stream, 6, merged=6)
    train(learner, syncer)
    stream.end()
    # A syncer that starts again from an older snapshot counts the same outer steps again.
    again = syncer.accept().welcome(t=4, incarnation=b"second").broadcast_all(4, weights(5.0)).lease(200, 300)
    learner.wait_for(Received, 2)
    train(learner, syncer)
    assert others(answer(learner, syncer, again, 6)) == {0.0}


def test_a_learner_that_seeds_the_job_anew_begins_without_remainders(
    learner: Learner, syncer: ScriptedSyncer, stream: ScriptedStream
) -> None:
    answer(learner, syncer, stream, 6)
    adopt(learner, stream, 6, merged=6)
    train(learner, syncer)
    stream.end()
    # Nothing is sent to it: it holds version 0, which is what it adopted last.
    again = syncer.accept().welcome(t=0, seed_wanted=True, incarnation=b"second").lease(200, 300)
    learner.wait_for(Leased)
    train(learner, syncer)
    assert {again.hear_transfer().header.kind for _ in syncer.fragments} == {Chunk.SEED}
    # Two steps: 14 and 0.75, of which a level is 2. With the remainder it would be 1.125, which is coded as 2.
    assert others(answer(learner, syncer, again, 3)) == {0.0}


def test_only_int4_needs_memory_for_remainders(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(1000)))
    with ScriptedSyncer(place, weights()) as syncer:
        learner = Learner(place, syncer)
        stream = joined(learner, syncer)
        stream.pull(0, 6)
        learner.wait_for(PullWanted)
        learner.train()
        assert stream.hear_transfer().header.coding == Chunk.BFLOAT16_DELTA
        assert not connection_of(learner.session)._remainders._open
        learner.end()


@pytest.mark.slow
def test_small_steady_changes_beside_large_ones_reach_the_job(tmp_path: Path) -> None:
    # One value of each tensor grows by 7 a step, all others by 1/16: less than the fourteenth of it that is half a level, in every push.
    outer = {"learning_rate": 1.0, "momentum": 0.0}
    place = Place(tmp_path, job_file(training(200, compression="Int4", outer_optimizer=outer, merge={"method": "Average"})))

    def train(step: int, arrays: dict[str, Float32Array]) -> None:
        for array in arrays.values():
            array += np.float32(1 / 16)
            array.flat[0] += ONE - 1 / 16

    with LocalSyncer(place) as syncer:
        learner = LocalLearner(place, syncer.address, "u", goal=None, spoil=train).start()
        syncer.wait()
        learner.wait()
        core = syncer.syncer.engine.exchanges.core
        assert core is not None
        for fragment in core.fragments:
            arrays = unpack(fragment, core.value(fragment.index))
            assert all((array.flat[1:] > 1.0).all() for array in arrays.values()), "200 steps are worth up to 12"
