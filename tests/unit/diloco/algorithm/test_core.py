"""The syncer's state machine, event by event."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from builders.core import InlineCore, Push, a_job, a_layout, a_push, a_seeded_core, metadata
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.effects import Broadcast, Effect, Finish, Merged, Pull, Reason, Refusal, Rest, Skipped, Snapshot
from diloco.algorithm.events import Marks, Metadata, Offer
from diloco.algorithm.layout import LayoutError
from diloco.contract import Grace


def pull_of(actions: Iterable[Effect]) -> Pull:
    (pull,) = [a for a in actions if isinstance(a, Pull)]
    return pull


def merge_of(actions: Iterable[Effect]) -> Merged:
    (merged,) = [a for a in actions if isinstance(a, Merged)]
    return merged


def reason_of(refusal: Refusal | None) -> Reason:
    assert refusal is not None
    return refusal.reason


def step_all(core: InlineCore, now: float, *, local_step: int | None = None, **counters: Any) -> list[Effect]:
    """Every joined learner takes a step at `now`; what the core does about it."""
    for unit in core.units:
        core.progress(unit, metadata(core, local_step or int(now), **counters), now)
    return core.advance(now)


# --- seeding ----------------------------------------------------------------------------------------------------------


def test_nothing_happens_before_the_seed() -> None:
    core = InlineCore(a_layout(), a_job())
    core.join("a", 0.0)
    assert step_all(core, 1.0) == []
    assert (core.seeded, core.t, core.wake_at(1.0)) == (False, 0, None)
    with pytest.raises(ValueError, match="no parameters"):
        core.state()


def test_seed_is_version_zero_of_every_fragment() -> None:
    core = a_seeded_core(value=3.0)
    assert core.seeded
    for f in core.fragments:
        assert core.version(f.index) == 0
        assert core.value(f.index).tolist() == [3.0] * f.size
        assert not core.value(f.index).flags.writeable


def test_a_job_is_seeded_once() -> None:
    core = a_seeded_core(value=3.0)
    assert reason_of(core.begin([np.zeros(f.size, np.float32) for f in core.fragments])) is Reason.STALE
    assert core.value(0)[0] == 3.0


def test_bad_seeds_are_refused_and_the_tensor_is_named() -> None:
    core = InlineCore(a_layout(tensors=2, size=3), a_job(fragments=2))
    good = [np.zeros(3, np.float32)] * 2
    refusal = core.begin([good[0], np.array([0, np.nan, 0], np.float32)])
    assert refusal is not None
    assert (refusal.reason, "w1" in refusal.message) == (Reason.NON_FINITE, True)
    for wrong in ([good[0]], [good[0], np.zeros(4, np.float32)]):
        assert reason_of(core.begin(wrong)) is Reason.BAD_SIZE
    assert not core.seeded


# --- quorum and membership --------------------------------------------------------------------------------------------


def test_clock_stands_still_below_the_quorum_and_goes_on_with_it() -> None:
    core = a_seeded_core(a_job(quorum=2), units=["a"])
    for n in range(1, 6):
        assert step_all(core, float(n)) == []
    assert core.t == 0
    core.join("b", 5.5)
    step_all(core, 6.0)
    assert core.t == 1


def test_a_learner_that_waits_for_the_quorum_rests_once_the_clock_could_not_catch_up_with_it() -> None:
    # H = 4: beyond the first four, the clock catches up with 1.5 * 4/4 + 2 * 1.5 = 4.5 steps. The ninth would be more.
    core = a_seeded_core(a_job(quorum=2), units=["a"])
    for n in range(1, 8):
        assert step_all(core, float(n), local_step=n) == []
    assert step_all(core, 8.0, local_step=8) == [Rest("a", rests=True)]
    assert step_all(core, 9.0, local_step=8) == [], "it is told once"
    core.join("b", 9.5)
    core.progress("b", metadata(core, 1), 10.0)
    assert core.advance(10.0)[-1] == Rest("a", rests=False)
    assert core.t == 1


def test_a_learner_that_joins_again_trains() -> None:
    core = a_seeded_core(a_job(quorum=2), units=["a"])
    core.progress("a", metadata(core, 1), 1.0)
    core.progress("a", metadata(core, 20), 2.0)
    assert core.advance(2.0) == [Rest("a", rests=True)]
    core.join("a", 3.0)
    core.progress("a", metadata(core, 21), 4.0)
    assert core.advance(4.0) == []


def test_nobody_rests_who_could_be_the_one_that_the_quorum_waits_for() -> None:
    core = a_seeded_core(a_job(quorum=2), units=["a", "b"])
    core.progress("a", metadata(core, 1), 1.0)
    core.progress("a", metadata(core, 20), 2.0)
    assert core.advance(2.0) == [Rest("a", rests=True)]
    core.progress("b", metadata(core, 1), 3.0)
    assert Rest("a", rests=False) in core.advance(3.0)
    # Of the next step no learner has reported: what "a" is ahead is no reason to rest now.
    assert core.t > 0
    assert not any(isinstance(action, Rest) for action in core.advance(3.5))


def test_a_repeated_report_is_not_new_metadata() -> None:
    core = a_seeded_core(units=["a"])
    step_all(core, 1.0, local_step=1)
    assert core.t == 1
    for now in (2.0, 3.0, 4.0):
        assert step_all(core, now, local_step=1) == []
    assert core.t == 1


def test_steps_from_before_a_learner_joined_do_not_move_the_clock() -> None:
    core = a_seeded_core(units=["a", "b"])
    core.progress("a", metadata(core, 500), 1.0)
    core.advance(1.0)
    assert core.t == 1  # a is the only one that trains, as far as anyone knows: one step of one learner
    core.progress("b", metadata(core, 700), 1.1)
    core.advance(1.1)
    assert core.t == 1  # one step of two learners is half a mean step


def test_each_fragment_is_pulled_at_its_offset() -> None:
    core = a_seeded_core(a_job(sync_interval=4, fragments=2, overlap_steps=3), units=["a"])
    pulled = {}
    for n in range(1, 9):
        for action in step_all(core, float(n)):
            if isinstance(action, Pull):
                pulled[action.t] = action.fragment
                assert core.push("a", a_push(core, action), n + 0.1) is None
    # offsets of 2 fragments in 4 steps: 0 and 2; fragment p at t mod 4 == offset
    assert pulled == {2: 1, 4: 0, 6: 1, 8: 0}


def test_only_learners_that_have_trained_the_fragment_are_pulled() -> None:
    core = a_seeded_core(units=["a", "b"])
    core.progress("a", metadata(core, 1, steps=1), 1.0)
    core.progress("b", metadata(core, 1, steps=0, tokens=0), 1.0)
    core.advance(1.0)
    core.advance(core.wake_at(1.0) or 1.0)
    assert core.t == 1
    assert reason_of(core.push("b", a_push(core, Pull(1, 1, ("b",))), 1.1)) is Reason.NOT_ASKED


def test_learner_without_a_report_since_a_broadcast_is_not_asked_for_the_fragment_again() -> None:
    core = a_seeded_core(a_job(sync_interval=1, fragments=1, overlap_steps=0), a_layout(1), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    for unit in pull.units:
        core.push(unit, a_push(core, pull), 1.1)
    core.advance(1.1)
    for now, step in ((1.5, 2), (2.0, 3)):
        core.progress("a", metadata(core, step), now)
    # b's last report is from before it adopted version 1: its answer would hold no work
    assert pull_of(core.advance(2.0)).units == ("a",)


def waiting_in_its_grace() -> InlineCore:
    """At 4.0, where fragment 0 is due, a has trained it and b has not since it adopted it; both step once a second."""
    job = a_job(sync_interval=4, fragments=1, overlap_steps=3, grace=Grace(max_steps=2, safety_factor=0.8))
    core = a_seeded_core(job, a_layout(1), units=["a", "b"])
    for n in range(1, 4):
        assert step_all(core, float(n)) == []
    core.progress("a", metadata(core, 4), 4.0)
    core.progress("b", metadata(core, 4, steps=0, tokens=0), 4.0)
    assert core.advance(4.0) == []
    return core


def test_grace_lets_in_a_learner_that_is_about_to_report() -> None:
    core = waiting_in_its_grace()
    core.progress("b", metadata(core, 5), 5.0)
    assert pull_of(core.advance(5.0)).units == ("a", "b")


def test_grace_ends() -> None:
    core = waiting_in_its_grace()
    # tau 3 x 1 s - (1 s from step to quorum + no exchange yet) = 2 s slack, of which 0.8 may be used; below max_steps x 1 s = 2 s
    assert core.wake_at(4.0) == pytest.approx(5.6)
    assert core.advance(5.59) == []
    assert pull_of(core.advance(core.wake_at(5.59) or 5.59)).units == ("a",)


def test_a_turn_without_anyone_to_ask_is_skipped_and_said() -> None:
    core = a_seeded_core(units=["a"])
    actions = step_all(core, 1.0, steps=0, tokens=0)
    assert [type(a) for a in actions] == [Skipped]
    assert core.t == 1


def test_a_learner_that_leaves_is_not_waited_for() -> None:
    core = a_seeded_core(a_job(overlap_steps=0, quorum=2), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    assert pull.units == ("a", "b")
    assert core.push("a", a_push(core, pull, 2.0), 1.1) is None
    assert core.advance(1.1) == []
    core.leave("b", 1.2)
    merged, broadcast = core.advance(1.2)
    assert merged == Merged(1, pull.fragment, ("a",), {"a": 10_000.0}, {"a": Marks()})  # 100 tokens in 1 step
    assert isinstance(broadcast, Broadcast)


def test_what_a_learner_contributed_before_it_left_stands() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    core.push("a", a_push(core, pull, 2.0), 1.1)
    core.leave("a", 1.2)
    core.push("b", a_push(core, pull, 4.0), 1.3)
    merged, _ = core.advance(1.3)
    assert isinstance(merged, Merged)
    assert merged.units == ("a", "b")
    assert core.value(pull.fragment).tolist() == [3.0] * 5


def test_a_learner_that_joins_anew_is_another_process() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    core.join("a", 1.1)
    assert reason_of(core.push("a", a_push(core, pull), 1.2)) is Reason.NOT_ASKED
    assert core.push("b", a_push(core, pull), 1.3) is None
    assert merge_of(core.advance(1.3)).units == ("b",)


def test_units_that_never_joined_do_not_count() -> None:
    core = a_seeded_core(units=["a"])
    core.progress("stranger", metadata(core, 1), 1.0)
    core.leave("stranger", 1.0)
    assert core.advance(1.0) == []
    pull = pull_of(step_all(core, 1.0))
    assert reason_of(core.push("stranger", a_push(core, pull), 1.0)) is Reason.NOT_ASKED


def test_counters_of_another_number_of_fragments_are_an_error() -> None:
    core = a_seeded_core(units=["a"])
    with pytest.raises(ValueError, match="unit a reports 3 step and 4 token counters, the job has 4 fragments"):
        core.progress("a", Metadata(1, (1,) * 3, (1,) * 4, 1.0), 1.0)


# --- contributions ----------------------------------------------------------------------------------------------------


def test_merge_is_weighted_by_tokens_squared_over_steps() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    core.push("a", a_push(core, pull, 1.0, steps=2, tokens=200), 1.1)  # 200^2/2 = 20 000
    core.push("b", a_push(core, pull, 5.0, steps=1, tokens=100), 1.2)  # 100^2/1 = 10 000
    merged, broadcast = core.advance(1.2)
    assert isinstance(merged, Merged)
    assert isinstance(broadcast, Broadcast)
    assert merged.weights == {"a": 20_000.0, "b": 10_000.0}
    # (2*1 + 1*5)/3 with an outer rate of 1 from 0
    assert core.value(pull.fragment) == pytest.approx([7 / 3] * 5)
    assert core.version(pull.fragment) == broadcast.t == pull.t
    assert core.contributions_of("a").share == pytest.approx(2 / 3)
    assert core.contributions_of("b").contributions == 1
    assert (core.merge_share("a"), core.merge_share("b")) == (1.0, 1.0)


def test_contribution_counts_at_most_once() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    assert core.push("a", a_push(core, pull, 2.0), 1.1) is None
    assert reason_of(core.push("a", a_push(core, pull, 2.0), 1.2)) is Reason.DUPLICATE
    assert core.push("b", a_push(core, pull, 2.0), 1.3) is None
    assert merge_of(core.advance(1.3)).units == ("a", "b")
    assert reason_of(core.push("a", a_push(core, pull, 2.0), 1.4)) is Reason.DUPLICATE
    assert core.contributions_of("a").contributions == 1


def test_late_answer_is_stale() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a", "b"])
    pull = pull_of(step_all(core, 1.0))
    core.push("a", a_push(core, pull), 1.1)
    step_all(core, 2.0)  # the next step is ready, so this one waits for the rest of its grace only
    late = core.wake_at(2.0) or 2.0
    assert [a.units for a in core.advance(late) if isinstance(a, Merged)] == [("a",)]
    assert (core.merge_share("a"), core.merge_share("b")) == (1.0, 0.0)
    refusal = core.push("b", a_push(core, pull), late)
    assert refusal is not None
    assert refusal.reason is Reason.STALE
    assert f"fragment {pull.fragment} of outer step 1 from unit b" in refusal.message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base": 7}, Reason.WRONG_BASE),
        ({"coding": Coding.INT4_DELTA}, Reason.WRONG_CODING),
        ({"payload": b"123"}, Reason.BAD_SIZE),
        ({"payload": b"\xc0\x7f" * 5}, Reason.NON_FINITE),  # bfloat16's NaN
        ({"steps": 0, "tokens": 0}, Reason.NO_WORK),
        ({"t": 99}, Reason.NOT_ASKED),
        ({"fragment": 3}, Reason.NOT_ASKED),
    ],
)
def test_bad_contributions_are_refused_and_leave_no_trace(change: dict[str, Any], reason: Reason) -> None:
    core = a_seeded_core(a_job(overlap_steps=0, compression="BFloat16"), units=["bad", "good"])
    pull = pull_of(step_all(core, 1.0))
    refusal = core.push("bad", a_push(core, pull, **change), 1.1)
    assert refusal is not None
    assert refusal.reason is reason
    assert "unit bad" in refusal.message
    core.push("good", a_push(core, pull, 2.0), 1.2)
    if reason is Reason.NOT_ASKED:
        core.leave("bad", 1.3)
    # a refused unit is not waited for
    assert merge_of(core.advance(1.3)).units == ("good",)
    assert core.value(pull.fragment).tolist() == [2.0] * 5


def test_delta_against_an_older_version_is_never_decoded() -> None:
    core = a_seeded_core(a_job(overlap_steps=0, compression="BFloat16"), units=["a"])
    for n in range(1, 5):
        core.push("a", a_push(core, pull_of(step_all(core, float(n))), float(n)), n + 0.1)
        core.advance(n + 0.1)
    pull = pull_of(step_all(core, 5.0))
    assert core.version(pull.fragment) == 1
    before = core.value(pull.fragment)
    assert reason_of(core.push("a", a_push(core, pull, 9.0, base=0), 5.1)) is Reason.WRONG_BASE
    assert [type(a) for a in core.advance(5.1)] == [Skipped]
    assert core.value(pull.fragment) is before


def test_values_are_taken_in_float32_from_a_learner_without_a_base() -> None:
    core = a_seeded_core(a_job(overlap_steps=0, compression="Int4"), units=["a"])
    pull = pull_of(step_all(core, 1.0))
    value = np.full(5, 2.0, np.float32)
    push = Push(Offer(pull.fragment, pull.t, Coding.FLOAT32, -1, 1, 100), codec.encode(Coding.FLOAT32, value))
    assert core.push("a", push, 1.1) is None
    core.advance(1.1)
    assert core.value(pull.fragment) == pytest.approx(value)


def test_the_anchor_is_the_syncers_own_value() -> None:
    # Outer rate 0.5 from 4: one learner at 2 gives delta 4 - 2, so 4 - 0.5*2 = 3, wherever the learner started from.
    training = a_job(overlap_steps=0, outer_optimizer={"learning_rate": 0.5, "momentum": 0.0})
    core = a_seeded_core(training, units=["a"], value=4.0)
    pull = pull_of(step_all(core, 1.0))
    core.push("a", a_push(core, pull, 2.0), 1.1)
    core.advance(1.1)
    assert core.value(pull.fragment).tolist() == [3.0] * 5


@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_every_holder_of_the_base_ends_with_the_syncers_bytes(compression: str) -> None:
    training = a_job(sync_interval=2, fragments=2, overlap_steps=0, compression=compression, outer_optimizer={"learning_rate": 0.7})
    core = a_seeded_core(training, a_layout(tensors=2, size=700), units=["a"])
    rng = np.random.default_rng(1)
    held = [core.value(p) for p in range(2)]
    for n in range(1, 12):
        pull = pull_of(step_all(core, float(n)))
        theta = core.value(pull.fragment) + rng.standard_normal(700, dtype=np.float32)
        payload = codec.encode(core.coding, theta - core.value(pull.fragment) if core.coding.delta else theta)
        assert core.push("a", a_push(core, pull, payload=payload), n + 0.1) is None
        _, sent = core.advance(n + 0.1)
        assert isinstance(sent, Broadcast)
        assert sent.payload.nbytes == codec.payload_bytes(core.coding, 700)
        assert sent.base == max(0, n - 2)
        held[sent.fragment] = codec.value_of(sent.coding, bytes(sent.payload), held[sent.fragment])
        assert held[sent.fragment].tobytes() == core.value(sent.fragment).tobytes()


def test_what_int4_leaves_out_of_an_update_comes_with_a_later_one() -> None:
    # One learner always 1 ahead in one place and 0.01 in the others: 0.01 is below half a level (1/14), so without carrying it over the
    # others would never move. 100 rounds at rate 1 move them by 100 * 0.01 = 1, to within one level of the last update (1/7).
    core = a_seeded_core(a_job(sync_interval=1, fragments=1, overlap_steps=0, compression="Int4"), a_layout(tensors=1, size=100), ["a"])
    step = np.full(100, 0.01, np.float32)
    step[0] = 1.0
    for n in range(1, 101):
        pull = pull_of(step_all(core, float(n)))
        push = a_push(core, pull, coding=Coding.FLOAT32, payload=codec.encode(Coding.FLOAT32, core.value(0) + step))
        assert core.push("a", push, n + 0.1) is None
        core.advance(n + 0.1)
    assert core.value(0)[0] == pytest.approx(100, abs=1 / 7)
    assert core.value(0)[1:] == pytest.approx(np.ones(99), abs=1 / 7)


def test_update_that_is_not_finite_keeps_the_value_and_is_said() -> None:
    training = a_job(overlap_steps=0, outer_optimizer={"learning_rate": 10.0, "momentum": 0.0})
    core = a_seeded_core(training, units=["a"], value=1e38)
    before = core.value(0).tolist()
    pull = pull_of(step_all(core, 1.0))
    core.push("a", a_push(core, pull, -1e38), 1.1)
    (skipped,) = core.advance(1.1)
    assert isinstance(skipped, Skipped)
    assert "diverged" in skipped.message
    assert core.value(pull.fragment).tolist() == before
    assert core.version(pull.fragment) == 0


# --- overlap, snapshots, end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0, 2])
def test_clock_runs_on_for_tau_steps_beside_an_exchange(tau: int) -> None:
    core = a_seeded_core(a_job(sync_interval=8, fragments=1, overlap_steps=tau), units=["a"])
    for n in range(1, 9):
        actions = step_all(core, float(n))
    pull = pull_of(actions)
    assert pull.t == 8
    for n in range(9, 9 + tau):
        step_all(core, float(n))
    assert core.t == 8 + tau
    step_all(core, 9.0 + tau)
    assert core.t == 8 + tau, "the next step waits for the exchange of step 8"
    core.push("a", a_push(core, pull), 11.1)
    merged, sent = core.advance(11.1)
    assert isinstance(merged, Merged)
    assert isinstance(sent, Broadcast)
    assert (merged.t, sent.t) == (8, 8)
    assert core.t == 9 + tau


def test_snapshots_come_at_their_steps_with_the_steps_own_merge_in_them() -> None:
    core = a_seeded_core(a_job(overlap_steps=0, checkpoint={"every_steps": 2}, steps=6), units=["a"])
    taken, finish = [], []
    for n in range(1, 7):
        actions = step_all(core, float(n))
        core.push("a", a_push(core, pull_of(actions)), n + 0.1)
        actions += core.advance(n + 0.1)
        for action in actions:
            if isinstance(action, Snapshot):
                taken.append((action.t, max(core.version(p) for p in range(4))))
        finish += [a for a in actions if isinstance(a, Finish)]
    # the last step has none of its own: the caller makes the final one at Finish
    assert taken == [(2, 2), (4, 4)]
    assert finish == [Finish(6)]


def test_end_waits_for_the_last_exchanges_and_then_nothing_happens_any_more() -> None:
    core = a_seeded_core(a_job(steps=2), units=["a"])
    first = pull_of(step_all(core, 1.0))
    second = pull_of(step_all(core, 2.0))
    step_all(core, 3.0)
    assert (core.t, core.done) == (2, False)
    core.push("a", a_push(core, second), 3.1)
    assert [type(a) for a in core.advance(3.1)] == [Merged, Broadcast]
    core.push("a", a_push(core, first), 3.2)
    assert [type(a) for a in core.advance(3.2)] == [Merged, Broadcast, Finish]
    assert core.done
    assert step_all(core, 4.0) == []
    assert core.wake_at(4.0) is None


def test_advance_may_be_repeated() -> None:
    core = a_seeded_core(a_job(overlap_steps=0, checkpoint={"every_steps": 1}), units=["a"])
    pull = pull_of(step_all(core, 1.0))
    assert core.advance(1.0) == []
    core.push("a", a_push(core, pull), 1.1)
    assert [type(a) for a in core.advance(1.1)] == [Merged, Broadcast, Snapshot]
    assert core.advance(1.1) == []


def test_step_durations_that_cannot_be_or_whose_sums_overflow_are_unknown() -> None:
    """1 / 1e-308 s is 1e308 steps per second; two of them are more than a float holds."""
    core = a_seeded_core(units=["a", "b"])
    for n, seconds in enumerate((math.nan, 0.0, -1.0, math.inf, 1e-308, 5e-324, 1e308, 1e-308), start=1):
        step_all(core, float(n), seconds=seconds)
    assert core.t > 0
    assert core.step_seconds == 0.0


def test_staleness_counts_from_the_last_contribution_or_from_joining() -> None:
    core = a_seeded_core(a_job(overlap_steps=0), units=["a"])
    for n in range(1, 4):
        core.push("a", a_push(core, pull_of(step_all(core, float(n)))), n + 0.1)
        core.advance(n + 0.1)
    core.join("b", 3.2)
    assert (core.staleness("a"), core.staleness("b")) == (0, 0)
    core.leave("a", 3.3)
    for n in range(4, 6):
        core.push("b", a_push(core, pull_of(step_all(core, float(n)))), n + 0.1)
        core.advance(n + 0.1)
    assert (core.staleness("a"), core.staleness("b")) == (2, 0)


def test_staleness_does_not_go_back_when_merges_finish_out_of_order() -> None:
    core = a_seeded_core(a_job(overlap_steps=2), units=["a"])
    first, second = (pull_of(step_all(core, float(n))) for n in (1, 2))
    for pull in (second, first):
        core.push("a", a_push(core, pull), 2.1)
        assert merge_of(core.advance(2.1)).t == pull.t
    assert core.contributions_of("a").last == 2
    assert core.staleness("a") == 0


@pytest.mark.parametrize("missed", [False, True], ids=["answered the pull before", "missed the pull before"])
@pytest.mark.parametrize("answers", [False, True], ids=["never answers", "answers"])
def test_at_the_end_an_answer_may_take_as_long_as_a_pause_of_a_shared_machine_and_no_longer(missed: bool, answers: bool) -> None:
    """The last pull, of 10.0 s, is to a unit that has answered the first in 0.1 s; the second closed 1 s later where it missed that."""
    core = a_seeded_core(a_job(steps=3, sync_interval=2, fragments=2, overlap_steps=0), units=["a"])
    core.push("a", a_push(core, pull_of(step_all(core, 1.0, seconds=0.01))), 1.1)
    core.advance(1.1)
    second = pull_of(step_all(core, 2.0, seconds=0.01))
    if not missed:
        core.push("a", a_push(core, second), 2.1)
    core.advance(3.0)
    pull = pull_of(step_all(core, 10.0, seconds=0.01))
    assert (core.t, core.done) == (3, False)
    assert core.wake_at(10.0) == pytest.approx(11.0), "SILENT_SECONDS, not twice its average of 0.1 s"
    if answers:
        core.push("a", a_push(core, pull), 10.9)
    assert [type(effect) for effect in core.advance(10.9)] == ([Merged, Broadcast, Finish] if answers else [])
    assert [type(effect) for effect in core.advance(11.0)] == ([] if answers else [Skipped, Finish])
    assert core.done


# --- construction -----------------------------------------------------------------------------------------------------


def test_job_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"set training\.fragments to at most 4"):
        InlineCore(a_layout(4), a_job(fragments=5, sync_interval=5))
    with pytest.raises(ValueError, match="overlapSteps is 4"):
        InlineCore(a_layout(4), a_job(overlap_steps=4))


def test_state_of_another_model_is_refused_with_the_difference() -> None:
    state = a_seeded_core().state()
    with pytest.raises(LayoutError, match=r"not the one in the stored state: tensor w0: shape \(6\) here, \(5\) in the job"):
        InlineCore(a_layout(size=6), a_job(), state)


# --- an early end -----------------------------------------------------------------------------------------------------


def test_an_early_end_waits_for_the_exchanges_under_way_and_takes_no_further_step() -> None:
    core = a_seeded_core(a_job(steps=100, sync_interval=2, fragments=2, overlap_steps=1))
    core.join("a", 0.0)
    pull = pull_of(step_all(core, 1.0))
    core.end(0)  # the present step is later
    assert core.advance(1.0) == []
    assert not core.done
    assert core.push("a", a_push(core, pull), 1.5) is None
    actions = core.advance(1.5)
    assert merge_of(actions).t == 1
    assert actions[-1] == Finish(1)
    assert step_all(core, 2.0) == []
    assert (core.done, core.t) == (True, 1)


def test_an_end_is_never_later_than_it_would_have_been() -> None:
    core = a_seeded_core(a_job(steps=3, sync_interval=2, fragments=2, overlap_steps=1))
    core.join("a", 0.0)
    core.end(2)
    core.end(50)
    for now in range(1, 20):
        core.progress("a", metadata(core, now), float(now))
        for action in core.advance(float(now)):
            if isinstance(action, Pull):
                core.push("a", a_push(core, action), float(now))
        core.advance(float(now))
    assert core.t == 2
