"""Coordinator and shard where decoding and merging take time and finish in any order, and what a list of close orders is good for."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_push, a_seeded_core, metadata
from builders.exploration import examples
from diloco.algorithm.effects import Close, Merged, Pull, Reason, Refusal
from diloco.algorithm.events import Marks, Offer, Tick
from diloco.algorithm.shard import CheckedPush, Shard, Update
from diloco.contract import Training
from hypothesis import given, settings
from hypothesis import strategies as st


class SlowSimulation(Simulation[SimulatedLearner]):
    """As a real syncer: answers are decoded and merges computed in the background, each for its own time."""

    def __init__(self, core: InlineCore, learners: Sequence[SimulatedLearner], durations: Sequence[float]) -> None:
        """`durations`: seconds of one decode or merge after the other, again and again."""
        super().__init__(core, learners)
        self.tape: list[Close] = []
        self.accepted: list[tuple[str, Offer, CheckedPush]] = []
        self._durations = durations
        self._taken = 0

    def _duration(self) -> float:
        self._taken += 1
        return self._durations[self._taken % len(self._durations)]

    def _advance(self) -> None:
        while effects := self.core.take(Tick(self.now)):
            for effect in effects:
                self.actions.append((self.now, effect))
                if isinstance(effect, Close):
                    self.tape.append(effect)
                    update = self.core.compute(effect)
                    self.at(self.now + self._duration(), functools.partial(self._computed, effect, update))
                if isinstance(effect, Pull):
                    assert [e.fragment for e in self.core.coordinator._open.values()].count(effect.fragment) == 1
                    for unit in effect.units:
                        self._pulled(self.learners[unit], effect)

    def _answer(self, learner: SimulatedLearner, pull: Pull, steps: int | None = None) -> None:
        taken = learner.steps[pull.fragment]
        push = a_push(self.core, pull, float(learner.local_step), steps=taken, tokens=taken * learner.tokens)
        refusal = self.core.admit(learner.unit, push.offer, self.now)
        if refusal is not None:
            self.refused.append((learner.unit, refusal))
            return
        decoded = self.core.shard.decode(push.offer, push.payload)
        self.at(self.now + self._duration(), functools.partial(self._decoded, learner.unit, push.offer, decoded))

    def _decoded(self, unit: str, offer: Offer, decoded: CheckedPush) -> None:
        # `accept` raises if the fragment has changed since it was decoded
        if self.core.contribute(unit, offer, decoded, self.now) is None:
            self.accepted.append((unit, offer, decoded))

    def _computed(self, close: Close, update: Update | None) -> None:
        outcome, *_ = self.core.computed(close, update, self.now)
        self.actions.append((self.now, outcome))
        for learner in self.learners.values():
            learner.adopt(close.fragment)


JOB = {"merge": {"method": "RDA"}, "outer_optimizer": {"learning_rate": 0.7, "momentum": 0.9}, "compression": "Int4"}


def a_run(training: Training, durations: Sequence[float], seconds: float = 60) -> SlowSimulation:
    learners = [SimulatedLearner(f"u{i}", 1.0 + 0.3 * i, 0.1 * i, 0.2) for i in range(3)]
    return SlowSimulation(a_seeded_core(training, a_layout(4, 300)), learners, durations).run(until=seconds)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(st.floats(0, 4), min_size=1, max_size=12), st.integers(0, 3))
def test_anchor_stays_until_its_contributions_are_merged_however_long_the_arithmetic_takes(durations: list[float], overlap: int) -> None:
    sim = a_run(a_job(overlap_steps=overlap, **JOB), durations)
    assert sim.all(Merged)
    # each version of a fragment was made from the one before it
    versions = defaultdict(list)
    for order in sim.tape:
        versions[order.fragment].append((order.base, order.t))
    for made in versions.values():
        assert [base for base, _ in made] == [0, *(t for _, t in made[:-1])]
    assert not [refusal for _, refusal in sim.refused if refusal.reason is not Reason.STALE]


@pytest.mark.parametrize("durations", [[0.0], [0.3, 2.5, 0.01]])
def test_same_contributions_and_close_orders_give_the_same_bytes(durations: list[float]) -> None:
    """The list of orders is a tape: a shard that is fed with it needs no quorum, no clock and no members."""
    training = a_job(overlap_steps=2, **JOB)
    sim = a_run(training, durations)
    replay = Shard(sim.core.fragments, training)
    assert replay.seed([np.zeros(f.size, np.float32) for f in sim.core.fragments]) is None
    applied = {outcome.t for outcome in sim.all(Merged)}
    for order in sorted((order for order in sim.tape if order.t in applied), key=lambda order: order.t):
        for unit, offer, decoded in sim.accepted:
            if offer.t == order.t:
                replay.hold(unit, offer, decoded)
                replay.accept(unit, offer)
        replay.hold_update(order, replay.compute(order))
        replay.install(order)
    assert len(applied) > 20
    for mine, other in ((replay.values, sim.core.shard.values), (replay.momentum, sim.core.shard.momentum)):
        assert [x.tobytes() for x in mine] == [x.tobytes() for x in other]


def test_clock_goes_on_beside_a_merge_for_tau_steps() -> None:
    sim = a_run(a_job(overlap_steps=3), [0.01], seconds=20)
    slow = a_run(a_job(overlap_steps=3), [1.5], seconds=20)
    assert slow.core.t >= sim.core.t - 1


def an_answer_on_its_way(core: InlineCore) -> tuple[Pull, Offer, CheckedPush]:
    """a and b are asked; a's answer is admitted and decoded, and not yet contributed."""
    for unit in core.units:
        core.progress(unit, metadata(core, 1), 1.0)
    (pull,) = core.advance(1.0)
    assert isinstance(pull, Pull)
    push = a_push(core, pull, 2.0)
    assert core.admit("a", push.offer, 1.1) is None
    return pull, push.offer, core.shard.decode(push.offer, push.payload)


def reason_of(refusal: Refusal | None) -> Reason:
    assert refusal is not None
    return refusal.reason


def test_exchange_stays_open_while_an_answer_that_came_in_time_is_decoded() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull, offer, decoded = an_answer_on_its_way(core)
    assert core.push("b", a_push(core, pull, 4.0), 1.2) is None
    for unit in core.units:
        core.progress(unit, metadata(core, 2), 2.0)
    for late in (2.0, 10.0, 100.0):
        assert core.advance(late) == []
        assert core.wake_at(late) is None
    assert core.contribute("a", offer, decoded, 100.0) is None
    merged = core.advance(100.0)[0]
    assert isinstance(merged, Merged)
    assert merged.units == ("a", "b")


def test_second_answer_is_refused_while_the_first_is_decoded() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    _, offer, decoded = an_answer_on_its_way(core)
    assert reason_of(core.admit("a", offer, 1.2)) is Reason.DUPLICATE
    assert core.contribute("a", offer, decoded, 1.3) is None
    assert reason_of(core.contribute("a", offer, decoded, 1.4)) is Reason.NOT_ASKED


def test_answer_of_a_unit_that_left_while_it_was_decoded_is_not_merged() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull, offer, decoded = an_answer_on_its_way(core)
    core.join("a", 1.2)  # another process of the unit
    assert reason_of(core.contribute("a", offer, decoded, 1.3)) is Reason.NOT_ASKED
    assert core.push("b", a_push(core, pull, 4.0), 1.4) is None
    merged = core.advance(1.4)[0]
    assert isinstance(merged, Merged)
    assert merged.units == ("b",)


def test_what_is_rejected_after_decoding_leaves_no_trace_and_holds_up_nothing() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull, offer, _ = an_answer_on_its_way(core)
    core.reject("a", offer, 1.2)
    core.reject("a", offer, 1.2)
    assert core.push("b", a_push(core, pull, 4.0), 1.3) is None
    merged = core.advance(1.3)[0]
    assert isinstance(merged, Merged)
    assert merged.units == ("b",)
    assert core.value(pull.fragment).tolist() == [4.0] * 5


def test_marks_of_the_session_come_back_with_the_merge() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a"])
    core.progress("a", metadata(core, 1), 1.0)
    (pull,) = core.advance(1.0)
    assert isinstance(pull, Pull)
    marks = Marks("a/1/1", 12, 96, 3)
    assert core.push("a", a_push(core, pull, 2.0, marks=marks), 1.1) is None
    core.leave("a", 1.2)
    core.join("a", 1.2)
    merged = core.advance(1.3)[0]
    assert isinstance(merged, Merged)
    assert merged.marks == {"a": marks}


def test_contribution_decoded_against_another_version_is_an_error() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    _, offer, decoded = an_answer_on_its_way(core)
    with pytest.raises(ValueError, match="was decoded against version 3; the fragment is at version 0 now"):
        core.use("a", offer, replace(decoded, anchor=3), 1.2)


def test_order_about_another_version_is_an_error() -> None:
    core = a_seeded_core()
    with pytest.raises(ValueError, match="is about version 3 of fragment 1, not 0"):
        core.shard.compute(Close(5, 1, 3, ("a",), (1.0,)))
