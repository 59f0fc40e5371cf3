"""The core refuses poisoned contributions at the merge: the parameters are as if the unit had been absent."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from builders.core import InlineCore, Push, a_job, a_push, a_seeded_core, metadata
from diloco.algorithm.effects import ContributionRejected, Effect, Merged, Pull, Reason, Skipped
from diloco.algorithm.events import Marks
from diloco.algorithm.guards import ARMED_AFTER
from diloco.algorithm.quarantine import REFUSALS

UNITS = ("a", "b", "sick")
ROUNDS = 4 * (ARMED_AFTER + 2)
"""Outer steps: with four fragments, as many rounds as arm the guards, and two more."""

type Answer = Callable[[InlineCore, Pull], Push]


def well(core: InlineCore, pull: Pull) -> Push:
    return a_push(core, pull, float(core.value(pull.fragment)[0]) + 0.1)


def of[T: Effect](kind: type[T], actions: Iterable[Effect]) -> list[T]:
    return [action for action in actions if isinstance(action, kind)]


def a_core(units: Iterable[str] = UNITS) -> InlineCore:
    return a_seeded_core(a_job(overlap_steps=0), units=units, value=1.0)


def outer_step(core: InlineCore, now: float, answers: Mapping[str, Answer]) -> list[Effect]:
    """Every member takes a step and answers; the actions of that outer step."""
    for unit in core.units:
        core.progress(unit, metadata(core, int(now)), now)
    actions = core.advance(now)
    for pull in of(Pull, actions):
        for unit in pull.units:
            assert core.push(unit, answers.get(unit, well)(core, pull), now) is None
    return actions + core.advance(now)


def run(core: InlineCore, answers: Mapping[str, Answer], sick_from: int, rejoin: bool = True) -> list[Effect]:
    """ROUNDS outer steps; a rejected unit joins again at once."""
    actions: list[Effect] = []
    for step in range(1, ROUNDS + 1):
        sick = step > sick_from
        done = outer_step(core, float(step), answers if sick else {})
        for rejected in of(ContributionRejected, done):
            if rejoin and not rejected.quarantined:
                core.join(rejected.unit, float(step))
        actions += done
    return actions


def huge(core: InlineCore, pull: Pull) -> Push:
    return a_push(core, pull, 1e30)


def greedy(core: InlineCore, pull: Pull) -> Push:
    return a_push(core, pull, float(core.value(pull.fragment)[0]) + 0.1, tokens=100 * 10**9 // 30)


@pytest.mark.parametrize("answer", [huge, greedy])
def test_the_parameters_are_as_if_the_sick_unit_were_absent(answer: Answer) -> None:
    """From the start of a round on: until then it contributes."""
    sick_from = 4 * ARMED_AFTER
    core, reference = a_core(), a_core()
    actions = run(core, {"sick": answer}, sick_from)
    for step in range(1, ROUNDS + 1):
        if step == sick_from + 1:
            reference.leave("sick", float(step))
        outer_step(reference, float(step), {})
    assert of(ContributionRejected, actions)
    for p in range(4):
        assert core.value(p).tobytes() == reference.value(p).tobytes()
        assert core.version(p) == reference.version(p)
    assert core.shard.momentum[0].tobytes() == reference.shard.momentum[0].tobytes()


def test_a_distrusted_unit_is_no_member_until_it_joins_again() -> None:
    core = a_core()
    (rejected,) = of(ContributionRejected, run(core, {"sick": huge}, 0, rejoin=False))
    assert core.units == ("a", "b")
    assert rejected.unit == "sick"
    assert rejected.refusal.reason is Reason.OUTLIER
    assert "unit sick is refused: the norm of its outer gradient is" in rejected.refusal.message
    assert "sick" not in core.coordinator.contributions


def test_a_unit_that_is_refused_again_and_again_is_quarantined() -> None:
    core = a_core()
    rejected = of(ContributionRejected, run(core, {"sick": huge}, 0))
    assert [x.quarantined for x in rejected] == [False] * (REFUSALS - 1) + [True]
    assert core.units == ("a", "b")


def test_a_unit_that_recovers_contributes_again() -> None:
    core = a_core()
    for step in range(1, 30):
        actions = outer_step(core, float(step), {"sick": huge} if step in (9, 10) else {})
        for rejected in of(ContributionRejected, actions):
            assert not rejected.quarantined
            core.join(rejected.unit, float(step))
    assert of(Merged, actions)[0].units == ("a", "b", "sick")


def test_a_lone_sick_unit_leaves_the_fragment_as_it_is() -> None:
    core = a_core(["sick"])
    before = core.value(0).tobytes()
    rejected, skipped = [x for x in outer_step(core, 1.0, {"sick": huge}) if isinstance(x, (ContributionRejected, Skipped))]
    assert isinstance(rejected, ContributionRejected)
    assert isinstance(skipped, Skipped)
    assert skipped.message == "the guards refuse its one answer"
    assert core.value(0).tobytes() == before
    assert not core.shard._accepted, "the shard forgets what is not merged"


def test_one_fault_in_several_open_exchanges_is_one_refusal() -> None:
    core = a_seeded_core(a_job(overlap_steps=2), units=["a", "sick"], value=1.0)
    pulls = []
    for step in (1.0, 2.0, 3.0):
        for unit in ("a", "sick"):
            core.progress(unit, metadata(core, int(step)), step)
        pulls += of(Pull, core.advance(step))
    for pull in pulls:
        assert core.push("sick", huge(core, pull), 3.0) is None
    for pull in pulls:
        assert core.push("a", well(core, pull), 3.0) is None
    actions = core.advance(3.0)
    (rejected,) = of(ContributionRejected, actions)
    assert rejected.withdrawn == (2, 3)
    assert [merged.units for merged in of(Merged, actions)] == [("a",)] * 3
    assert not core.shard._accepted


@pytest.mark.parametrize(
    ("answers_at", "merged_at", "units"),
    [(20.0, 20.0, ("b", "late")), (None, 32.0, ("b",))],  # the first answer of a unit is waited for until 30 s after the pull at 2.0
)
def test_an_exchange_that_loses_its_quorum_with_a_refused_unit_waits_again(
    answers_at: float | None, merged_at: float, units: tuple[str, ...]
) -> None:
    core = a_seeded_core(a_job(overlap_steps=2, quorum=2), units=["b", "sick"], value=1.0)
    pulls = []
    for step in (1, 2):
        for unit in core.units:
            core.progress(unit, metadata(core, step), float(step))
        pulls += of(Pull, core.advance(float(step)))
        if step == 1:
            core.join("late", 1.0)  # so it is asked for the second exchange only
    first, second = pulls
    assert second.units == ("b", "late", "sick")
    for pull in (second, first):
        for unit, answer in (("sick", huge), ("b", well)):
            assert core.push(unit, answer(core, pull), 2.0) is None
    assert [x.withdrawn for x in of(ContributionRejected, core.advance(2.0))] == [(second.t,)]
    merges: list[tuple[float, Merged]] = []
    for now in (float(second) for second in range(3, 34)):
        for unit in core.units:  # steps without end, so neither the clock nor a silence ends the wait
            core.progress(unit, metadata(core, int(now)), now)
        if now == answers_at:
            assert core.push("late", well(core, second), now) is None
        merges += [(now, merge) for merge in of(Merged, core.advance(now)) if merge.t == second.t]
    assert [(now, merge.units) for now, merge in merges] == [(merged_at, units)]


def test_exchanges_that_are_over_together_are_judged_one_after_the_other() -> None:
    """At the end of a job all open exchanges are due. The second one loses its quorum when the first one is closed."""
    core = a_seeded_core(a_job(steps=2, overlap_steps=1, quorum=2), units=["b", "late", "sick"], value=1.0)
    pulls = []
    for now in (1.0, 2.0):
        for unit in core.units:
            core.progress(unit, metadata(core, int(now)), now)
        pulls += of(Pull, core.advance(now))
    for pull in pulls:
        for unit, answer in (("sick", huge), ("b", well)):
            assert core.push(unit, answer(core, pull), 2.0) is None
    # The overlap ends at 2.0 and 3.0, both quorums came at 2.0, and the others get one step more: until 3.0 and 4.0.
    merged = of(Merged, core.advance(4.0))
    assert [(merge.t, merge.units) for merge in merged] == [(1, ("b",))]
    assert core.push("late", well(core, pulls[1]), 4.5) is None
    assert [(merge.t, merge.units) for merge in of(Merged, core.advance(4.5))] == [(2, ("b", "late"))]


def test_the_next_process_of_a_unit_does_not_suffer_for_the_one_before() -> None:
    core = a_core(["a", "sick"])
    for unit in core.units:
        core.progress(unit, metadata(core, 1), 1.0)
    (pull,) = of(Pull, core.advance(1.0))
    push = huge(core, pull)
    assert core.push("sick", replace(push, offer=replace(push.offer, marks=Marks("sick/1/1"))), 1.0) is None
    core.join("sick", 1.0)
    assert core.push("a", well(core, pull), 1.0) is None
    (rejected,) = of(ContributionRejected, core.advance(1.0))
    assert rejected.session == "sick/1/1"
    assert core.units == ("a", "sick")


def test_counters_that_cannot_be_true_are_refused_before_anything_is_decoded() -> None:
    core = a_core(["sick"])
    core.progress("sick", metadata(core, 1), 1.0)
    (pull,) = of(Pull, core.advance(1.0))
    refusal = core.push("sick", a_push(core, pull, tokens=2**64 - 1, payload=b""), 1.0)
    assert refusal is not None
    assert refusal.reason is Reason.IMPOSSIBLE
    assert "18446744073709551615 tokens in 1 step;" in refusal.message


def test_a_restored_core_judges_as_before() -> None:
    core = a_core()
    run(core, {}, ROUNDS)
    restored = InlineCore(core.layout, core.training, core.state())
    for unit in UNITS:
        restored.join(unit, 0.0)
    # 100 times the level of 0.1 * sqrt(5) and not 1000 times the parameters, as in a new job
    far = np.float32(1 + 100)
    actions = outer_step(restored, 1.0, {"sick": lambda core, pull: a_push(core, pull, float(far))})
    assert [x.unit for x in of(ContributionRejected, actions)] == ["sick"]


def test_what_is_long_and_not_refused_counts_less_in_the_merge() -> None:
    """20 times as far as the others, of three that have done the same work: 3/20 of its weight count."""
    core = a_core()
    run(core, {}, sick_from=ROUNDS)

    def far(core: InlineCore, pull: Pull) -> Push:
        return a_push(core, pull, float(core.value(pull.fragment)[0]) + 2.0)

    merged = of(Merged, outer_step(core, ROUNDS + 1.0, {"sick": far}))
    assert [merge.weights["sick"] / merge.weights["a"] for merge in merged] == [pytest.approx(3 / 20, rel=1e-4)]
    assert [merge.weights["b"] / merge.weights["a"] for merge in merged] == [1.0]
