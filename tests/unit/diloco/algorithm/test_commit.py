"""Commit records: what is written of a merge is enough to take it again, in another process and in any order that its fragments allow."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from builders.core import InlineCore, a_push, a_seeded_core, metadata
from builders.sequences import Sequence, Tape
from diloco.algorithm.codec import Coding
from diloco.algorithm.commit import Commit, MergedContribution, Redo, commit_of
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Close, Pull
from diloco.algorithm.events import Marks, Offer, Tick
from diloco.algorithm.shard import Shard
from diloco.algorithm.state import CoreState, StateError

SEEDS = range(12)
HAPPENINGS = 1500


def begun(job: Sequence, tape: Tape) -> CoreState:
    """The state with which the tape begins."""
    if tape.state is not None:
        return tape.state
    core = InlineCore(job.layout, job.training)
    assert core.begin([value.copy() for value in tape.seed]) is None
    return core.state()


def ended(job: Sequence, number: int) -> CoreState:
    """The state with which tape `number` ends."""
    if number + 1 < len(job.tapes):
        after = job.tapes[number + 1].state
        assert after is not None
        return after
    return job.core.state()


def arrays(state: CoreState) -> list[bytes | None]:
    return [x.tobytes() if x is not None else None for x in (*state.values, *state.momentum, *state.residual)]


@pytest.mark.slow
def test_records_of_random_jobs_give_the_same_bytes_again() -> None:
    merges = 0
    for seed in SEEDS:
        job = Sequence(seed).run(HAPPENINGS)
        for number, tape in enumerate(job.tapes):
            redo = Redo(begun(job, tape), job.training)
            for commit, gradient in tape.commits:
                redo.repeat(Commit.from_json(json.loads(json.dumps(commit.to_json()))), gradient)
            again, live = redo.state(), ended(job, number)
            assert arrays(again) == arrays(live)
            assert again.versions == live.versions
            assert {unit: (x.contributions, x.last) for unit, x in again.contributions.items()} == {
                unit: (x.contributions, x.last) for unit, x in live.contributions.items()
            }
            assert redo.t == max([begun(job, tape).t, *live.versions])
            merges += redo.merges
    assert merges > 300


def closes(tape: Tape) -> list[Close]:
    """The merges that took their place, as they were ordered."""
    made = {commit.t for commit, _ in tape.commits}
    return [effect for effects in tape.effects for effect in effects if isinstance(effect, Close) and effect.t in made]


def interleaved(queues: list[list[Close]], choice: random.Random) -> Iterator[Close]:
    """What stands in the queues, in any order that keeps that of each queue."""
    waiting = [queue[::-1] for queue in queues if queue]
    while waiting:
        queue = choice.choice(waiting)
        yield queue.pop()
        if not queue:
            waiting.remove(queue)


@pytest.mark.slow
def test_a_hundred_interleavings_of_one_tape_give_equal_bytes() -> None:
    """Answers come in another order each time, and merges of different fragments are computed and put in place in any order."""
    job = Sequence(7).run(HAPPENINGS)
    tape = job.tapes[0]
    start, by_fragment = begun(job, tape), dict[int, list[Close]]()
    for close in closes(tape):
        by_fragment.setdefault(close.fragment, []).append(close)
    assert sum(len(some) for some in by_fragment.values()) > 30
    outcomes = set[tuple[bytes | None, ...]]()
    orders = set[tuple[int, ...]]()
    for seed in range(100):
        choice = random.Random(seed)
        core = Core(job.layout, job.training, start)
        merged: list[int] = []
        for close in interleaved(list(by_fragment.values()), choice):
            take(core.shard, tape, close, choice)
            merged.append(close.t)
        outcomes.add(tuple(arrays(core.state())))
        orders.add(tuple(merged))
    assert len(outcomes) == 1
    assert len(orders) > 90, "the interleavings differ"
    assert list(outcomes.pop()) == arrays(ended(job, 0))


def take(shard: Shard, tape: Tape, close: Close, choice: random.Random) -> None:
    """The answers of one exchange come in any order, and are merged."""
    for unit in choice.sample(close.units, len(close.units)):
        offer = Offer(close.fragment, close.t, Coding.FLOAT32, close.base, 1, 1)
        shard.hold(unit, offer, tape.decoded[unit, close.t])
        shard.accept(unit, offer)
    shard.hold_update(close, shard.compute(close))
    shard.install(close)


def a_merge(core: InlineCore) -> tuple[Commit, np.ndarray]:
    """Two units contribute 1 and 3 to fragment 0, of which the second has twice the tokens; one misses it."""
    for unit in ("u", "v", "w"):
        core.progress(unit, metadata(core, 1), 1.0)
    pull = next(effect for effect in core.take(Tick(1.0)) if isinstance(effect, Pull))
    for unit, value, tokens in (("u", 1.0, 100), ("v", 3.0, 200)):
        push = a_push(core, pull, value, tokens=tokens, marks=Marks(f"{unit}/1/1", 8, 80, 2, seen=7))
        assert core.push(unit, push, 2.0) is None
    close = None
    for now in range(3, 400):
        found = [effect for effect in core.take(Tick(float(now))) if isinstance(effect, Close)]
        if found:
            (close,) = found
            break
        for unit in ("u", "v"):
            core.progress(unit, metadata(core, now), float(now))
    assert close is not None
    update = core.compute(close)
    assert update is not None
    return commit_of(core.coordinator.ordered(close.t), close, update.cosine), update.gradient


def test_a_record_says_who_gave_what_and_who_missed_it() -> None:
    core = a_seeded_core(units=("u", "v", "w"))
    commit, gradient = a_merge(core)
    assert (commit.base, commit.missed, dict(commit.refused)) == (0, ("w",), {})
    # tokens^2 / steps, and the anchor is 0: the outer gradients are -1 and -3 in all five places.
    assert dict(commit.given) == {
        "u": MergedContribution(10_000.0, 1, 100, math.sqrt(5.0), Marks("u/1/1", 8, 80, 2, 7)),
        "v": MergedContribution(40_000.0, 1, 200, math.sqrt(45.0), Marks("v/1/1", 8, 80, 2, 7)),
    }
    assert commit.cosine == pytest.approx(1.0)
    assert gradient.tolist() == pytest.approx([-(1 * 1 + 4 * 3) / 5] * 5)
    assert Commit.from_json(json.loads(json.dumps(commit.to_json()))) == commit


def test_a_merge_that_does_not_follow_on_the_state_is_refused() -> None:
    core = a_seeded_core(units=("u", "v", "w"))
    before = core.state()
    commit, gradient = a_merge(core)
    redo = Redo(before, core.training)
    redo.repeat(commit, gradient)
    assert redo.covers(commit)
    with pytest.raises(StateError, match=f"is about version 0 of fragment {commit.fragment}; the state has version {commit.t}"):
        redo.repeat(commit, gradient)
    with pytest.raises(StateError, match="which this model has not"):
        Redo(before, core.training).repeat(commit, gradient[:2])
