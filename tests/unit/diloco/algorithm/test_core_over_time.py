"""The core with simulated learners on virtual time: pace, quorum, silence and grace."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_seeded_core
from builders.exploration import examples
from diloco.algorithm.effects import Broadcast, Merged, Pull, Rest, Skipped
from diloco.algorithm.events import Metadata
from diloco.algorithm.pacing import MOST_LOCAL_STEPS
from diloco.contract import Grace
from hypothesis import given, settings
from hypothesis import strategies as st


def simulation(*learners: SimulatedLearner, tensors: int = 4, **job: Any) -> Simulation[SimulatedLearner]:
    return Simulation(a_seeded_core(a_job(**job), a_layout(tensors)), learners)


def spacing(learner: SimulatedLearner) -> float:
    """Mean local steps between two adoptions of a fragment, the first apart."""
    return np.mean([n for counts in learner.adopted_after.values() for n in counts[1:]])


@pytest.mark.slow
@pytest.mark.parametrize(("fragments", "interval"), [(4, 4), (2, 8), (1, 24)])
def test_effective_interval_does_not_collapse_with_a_quorum_of_one_on_a_fast_network(fragments: int, interval: int) -> None:
    # The trap: 4 unaligned learners report 4 times a step, and K = 1 needs one report for a step of the clock.
    learners = [SimulatedLearner(f"u{i}", 1.0, start=0.23 * i) for i in range(4)]
    sim = simulation(*learners, sync_interval=interval, fragments=fragments).run(until=400)
    for learner in learners:
        assert spacing(learner) == pytest.approx(interval, rel=0.03)
    # so every merge holds the work of all; while they are starting up not all are there yet
    sizes = [len(m.units) for m in sim.all(Merged)]
    assert sizes[-50:] == [4] * len(sizes[-50:])
    assert not sim.refused


@pytest.mark.slow
def test_clock_takes_one_step_per_mean_learner_step_however_mixed_the_speeds() -> None:
    learners = [SimulatedLearner(f"u{i}", seconds) for i, seconds in enumerate((1.0, 1.0, 2.0, 4.0))]
    sim = simulation(*learners).run(until=400)
    # mean speed (1 + 1 + 1/2 + 1/4)/4 = 0.6875 steps a second
    assert sim.core.t == pytest.approx(400 * 0.6875, rel=0.02)
    assert [spacing(x) for x in learners] == pytest.approx([4 / 0.6875, 4 / 0.6875, 2 / 0.6875, 1 / 0.6875], rel=0.05)
    assert sim.core.step_seconds == pytest.approx(1 / 0.6875)


def one_fast_seven_slow(**changes: Any) -> list[SimulatedLearner]:
    return [SimulatedLearner("fast", 1.0, **changes), *(SimulatedLearner(f"slow{i}", 10.0, 0.37 * i, **changes) for i in range(7))]


@pytest.mark.slow
def test_a_learner_far_faster_than_the_mean_takes_one_and_a_half_intervals_between_adoptions() -> None:
    learners = one_fast_seven_slow()
    sim = simulation(*learners, sync_interval=24, fragments=4, overlap_steps=2).run(until=600)
    # one outer step per 1.5 of its steps; the mean, (1 + 7/10)/8 steps a second, would have let it take 24/0.2125 = 113
    assert spacing(learners[0]) == pytest.approx(36, rel=0.02)
    assert max(n for counts in learners[0].adopted_after.values() for n in counts) <= 36 + 12 + 1.5
    assert sim.core.t == pytest.approx(600 / 1.5, rel=0.02)
    assert 34 <= sim.core.steps_per_sync("fast") <= 38
    assert sim.core.steps_per_sync("slow0") in (3, 4)
    # the slow ones are in every merge with the 3.6 steps that they take meanwhile
    assert all(len(m.units) == 8 for m in sim.all(Merged)[20:])
    assert sim.core.contributions_of("fast").share == pytest.approx(36 / (36 + 7 * 3.6), rel=0.1)


@pytest.mark.slow
def test_one_fast_learner_alone_does_not_drive_the_clock_at_its_own_rate() -> None:
    """The trap with K = 1: the clock follows the fastest learner's reports, but no closer than 1.5 of its steps for one of its own."""
    sim = simulation(*one_fast_seven_slow(), quorum=1).run(until=300)
    assert sim.core.t <= 300 / 1.5 + 1


@pytest.mark.slow
def test_answers_between_long_steps_are_waited_for_as_long_as_the_fast_learner_stays_within_its_allowance() -> None:
    # A slow learner answers up to ten seconds after a pull, at the end of its step. With one fragment there is time for that.
    learners = one_fast_seven_slow(between_steps=True)
    sim = simulation(*learners, sync_interval=24, fragments=1).run(until=2000)
    merges = sim.all(Merged)[5:]
    assert sum(len(m.units) for m in merges) / len(merges) > 7
    assert spacing(learners[0]) == pytest.approx(36, rel=0.05)


@pytest.mark.slow
def test_answers_that_take_longer_than_the_overlap_do_not_lift_the_cap() -> None:
    # Here an exchange begins every 1.5 s and must be merged three outer steps later: 4.5 s, of which a slow answer takes up to 10.
    learners = one_fast_seven_slow(between_steps=True)
    sim = simulation(*learners, sync_interval=24, fragments=24, overlap_steps=2, tensors=24).run(until=600)
    assert spacing(learners[0]) == pytest.approx(36, rel=0.05)
    assert all("fast" in m.units for m in sim.all(Merged))
    # more overlap lets them in: 8 * 1.5 s > 10 s
    sim = simulation(*one_fast_seven_slow(between_steps=True), sync_interval=24, fragments=24, overlap_steps=7, tensors=24).run(until=600)
    assert all(len(m.units) == 8 for m in sim.all(Merged)[50:])


MOST_BETWEEN_ADOPTIONS = 1.5 * 24 + 12
"""At H = 24."""


def most_between_adoptions(learner: SimulatedLearner) -> int:
    return max(n for counts in learner.adopted_after.values() for n in counts)


def test_learners_that_wait_for_the_quorum_bring_no_more_to_the_first_merge_than_to_any_other() -> None:
    early, late = SimulatedLearner("early", 1.0), SimulatedLearner("late", 1.0, start=500.0)
    sim = simulation(early, late, sync_interval=24, fragments=4, overlap_steps=2, quorum=2).run(until=499)
    assert (sim.core.t, early.local_step) == (0, 24)  # 24/2 at the start, 1.5 * 24/4 + 2 * 1.5 with which the clock catches up
    sim.run(until=700)
    assert sim.core.t > 150
    assert {m.units for m in sim.all(Merged)} == {("early", "late")}
    assert most_between_adoptions(early) <= MOST_BETWEEN_ADOPTIONS
    assert not early.resting


def test_learners_whose_quorum_is_lost_wait_for_its_return_and_then_go_on_as_before() -> None:
    stays, goes = SimulatedLearner("stays", 1.0), SimulatedLearner("goes", 1.0, start=0.5)
    sim = simulation(stays, goes, sync_interval=24, fragments=4, overlap_steps=2, quorum=2)

    def go() -> None:
        sim.core.leave("goes", sim.now)
        goes.stopped = True

    def come_back() -> None:
        sim.core.join("goes", sim.now)
        goes.stopped = False
        goes.steps = [0] * 4

    sim.at(100.2, go)
    sim.at(1000.2, come_back)
    before = sim.run(until=100.1).core.t
    sim.run(until=1000.1)
    assert stays.resting
    assert stays.local_step <= 100 + 24
    assert sim.core.t <= before + 1
    sim.run(until=1200)
    assert sim.core.t >= before + 190
    assert most_between_adoptions(stays) <= MOST_BETWEEN_ADOPTIONS
    assert {m.units for m in sim.all(Merged)[-20:]} == {("goes", "stays")}


@pytest.mark.slow
def test_with_a_quorum_of_all_the_fast_learner_keeps_within_its_allowance_and_the_slow_one_never_rests() -> None:
    fast, slow = SimulatedLearner("fast", 1.0), SimulatedLearner("slow", 10.0, start=0.3)
    sim = simulation(fast, slow, sync_interval=24, fragments=4, overlap_steps=2, quorum=2).run(until=2000)
    assert sim.core.t == pytest.approx(200, abs=3), "one outer step for each step of the slow one"
    # At first it gets ahead by what the clock could catch up with, 24 steps, and that stays, as the slow one cannot go faster.
    assert max(counts[0] for counts in fast.adopted_after.values()) <= 36 + 24
    assert {n for counts in fast.adopted_after.values() for n in counts[1:]} <= {35, 36, 37}
    assert {rest.unit for rest in sim.all(Rest)} == {"fast"}


@pytest.mark.slow
def test_learners_of_like_speed_with_a_quorum_of_all_never_rest() -> None:
    learners = [SimulatedLearner(f"u{i}", 1.0 + 0.06 * i, 0.31 * i, between_steps=True) for i in range(4)]
    sim = simulation(*learners, sync_interval=24, fragments=4, overlap_steps=2, quorum=4).run(until=600)
    assert not sim.all(Rest)
    assert sim.core.t == pytest.approx(600 / 1.18, rel=0.02)


@pytest.mark.slow
def test_twice_as_fast_at_the_same_batch_weighs_twice() -> None:
    sim = simulation(SimulatedLearner("fast", 1.0), SimulatedLearner("slow", 2.0), sync_interval=24, fragments=4).run(until=1000)
    fast, slow = sim.core.contributions_of("fast").share, sim.core.contributions_of("slow").share
    assert fast / slow == pytest.approx(2, rel=0.1)  # counters are whole steps: 32 +- 1 against 16 +- 1


@pytest.mark.slow
def test_one_late_answer_is_enough_to_wait_long_enough_for_the_next_ones() -> None:
    """As when a machine or a network becomes much slower all at once: every exchange that closes without answers trains nothing."""
    learners = [SimulatedLearner(f"u{i}", 1.0, start=0.2 * i) for i in range(3)]
    sim = simulation(*learners, overlap_steps=1).run(until=100)
    assert not sim.all(Skipped)
    for learner in learners:
        learner.answer_seconds = 5.0
    sim.run(until=300)
    assert sim.all(Skipped), "nothing is known yet of the slower answers"
    # The first pull after 100 s is answered before 107 s.
    assert max(sim.times(Skipped)) < 107
    assert len([when for when in sim.times(Merged) if when > 107]) > 50


@pytest.mark.slow
def test_silent_learner_slows_the_clock_by_its_share_and_no_longer_than_until_it_is_lost() -> None:
    learners = [SimulatedLearner(f"u{i}", 1.0, start=0.1 * i) for i in range(4)]
    sim = simulation(*learners).run(until=100)
    before = sim.core.t
    learners[3].stopped = True
    sim.run(until=300)
    # It counts for the 60 s after which it is lost: an outer step takes 4/3 s in these.
    assert sim.core.t - before == pytest.approx(60 * 3 / 4 + 140, abs=4)
    assert all("u3" not in pull.units for when, pull in sim.actions if isinstance(pull, Pull) and when > 100 + 60 + 1)
    longest = np.diff([t for t in sim.times(Broadcast) if t > 99]).max()
    assert longest <= 4  # an exchange closes tau and a step of grace after its launch, 2 s; then an outer step of 4/3 s


def test_silent_learner_is_asked_until_it_is_lost_and_delays_a_merge_by_no_more_than_the_overlap_and_the_grace() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, start=0.5)]
    sim = simulation(*learners, sync_interval=24, fragments=4).run(until=98)
    learners[1].stopped = True
    sim.run(until=250)
    after = [(when, a.units) for when, a in sim.actions if isinstance(a, Pull) and when > 98]
    assert {units for when, units in after if when > 98 + 60} == {("a",)}
    pulled = {a.t: when for when, a in sim.actions if isinstance(a, Pull)}
    late = [when - pulled[a.t] for when, a in sim.actions if isinstance(a, Merged) and when > 98]
    # tau is a step and the grace another; until b is lost an outer step takes one that a trains alone, up to 2 s with the two of them
    assert max(late) <= 2 * 2 + 1


@pytest.mark.slow
def test_silent_learner_is_asked_again_when_it_comes_back() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, start=0.5)]
    sim = simulation(*learners).run(until=50)
    learners[1].stopped = True
    sim.run(until=200)
    learners[1].stopped = False
    sim.run(until=250)
    assert sim.all(Merged)[-1].units == ("a", "b")
    # Alone beside a silent one a drives the clock with 1.5 steps for each of its own; from 110 s on b is lost, until 200 s.
    assert sim.core.t == pytest.approx(50 + 60 / 1.5 + 90 + 50, abs=6)


@pytest.mark.slow
def test_learner_that_trains_and_never_answers_is_left_out_within_the_grace() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, start=0.5, mute=True)]
    sim = simulation(*learners).run(until=200)
    assert sim.core.t >= 195
    assert {m.units for m in sim.all(Merged)} == {("a",)}


@pytest.mark.slow
def test_quorum_of_two_waits_longer_for_the_second_answer_but_not_for_ever() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, mute=True)]
    sim = simulation(*learners, quorum=2).run(until=200)
    pulls, merges = sim.times(Pull), sim.times(Merged)
    # b never answers: the first exchange waits for 30 s, the time for a first answer; then b is known not to answer
    assert merges[0] - pulls[0] == pytest.approx(30, abs=1)
    assert sim.core.t >= 160


@pytest.mark.slow
def test_learner_that_answers_again_is_waited_for_again() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, answer_seconds=2.5, mute=True)]
    sim = simulation(*learners, quorum=2).run(until=100)
    assert sim.all(Merged)[-1].units == ("a",)
    learners[1].mute = False
    sim.run(until=200)
    # its first answer comes too late, as tau is one step; it says how long this learner takes
    assert "StaleRound" in {refusal.reason for _, refusal in sim.refused}
    assert [m.units for m in sim.all(Merged)[-20:]] == [("a", "b")] * 20


@pytest.mark.slow
@pytest.mark.parametrize("claimed_at", [2.5, 20.5])
def test_a_report_of_any_number_of_steps_does_not_end_the_grace_for_slow_units(claimed_at: float) -> None:
    # An answer takes 4.4 s. An exchange is open for tau + maxSteps steps: 5 s.
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, start=0.3), SimulatedLearner("c", 1.0, 0.6, answer_seconds=4.4)]
    sim = simulation(*learners, quorum=1, grace=Grace(max_steps=4, safety_factor=0.8))
    sim.at(0.0, lambda: sim.core.join("odd", sim.now))
    for when, local_step in ((1.0, 1), (claimed_at, 2**63)):
        # It never says how long a step takes.
        sim.at(when, functools.partial(sim.core.progress, "odd", Metadata(local_step, (0,) * 4, (0,) * 4, math.nan), when))
    sim.run(until=200)
    late = [merge for when, merge in sim.actions if isinstance(merge, Merged) and when > claimed_at + 20]
    assert len(late) > 50
    assert all("c" in merge.units for merge in late)


@pytest.mark.slow
def test_slow_network_stretches_the_interval_but_every_learner_stays_in() -> None:
    learners = [SimulatedLearner(f"u{i}", 1.0, answer_seconds=5.0 + 0.3 * i) for i in range(3)]
    sim = simulation(*learners, overlap_steps=1).run(until=300)
    # answers take 5.6 steps, tau = 1 allows two exchanges at a time
    assert sim.core.t == pytest.approx(300 / 5.6 * 2, rel=0.1)
    assert all(len(m.units) == 3 for m in sim.all(Merged)[2:])
    assert not sim.refused
    # What is left of the job is told by outer steps: the local ones take a second.
    assert sim.core.step_seconds == pytest.approx(1.0)
    assert sim.core.outer_step_seconds == pytest.approx(5.6 / 2, rel=0.1)


@pytest.mark.slow
def test_one_slow_link_does_not_slow_the_others() -> None:
    learners = [SimulatedLearner("a", 1.0), SimulatedLearner("b", 1.0, start=0.3), SimulatedLearner("far", 1.0, answer_seconds=30.0)]
    sim = simulation(*learners).run(until=300)
    assert sim.core.t >= 290
    assert all(m.units == ("a", "b") for m in sim.all(Merged)[4:])


@pytest.mark.slow
def test_members_may_come_and_go() -> None:
    core = a_seeded_core()
    learners = [SimulatedLearner(f"u{i}", 1.0, start=40.0 * i) for i in range(3)]
    sim = Simulation(core, learners)
    sim.at(100.0, lambda: core.leave("u0", sim.now))
    sim.at(100.0, lambda: setattr(learners[0], "stopped", True))
    sim.run(until=160)
    at = {round(when): a.units for when, a in sim.actions if isinstance(a, Merged)}
    assert at[30] == ("u0",)
    assert at[75] == ("u0", "u1")
    assert at[95] == ("u0", "u1", "u2")
    assert at[150] == ("u1", "u2")
    assert core.t == pytest.approx(160, abs=4)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.floats(0.2, 5), st.floats(0, 3), st.floats(0.001, 8), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_whatever_the_speeds_the_clock_neither_races_nor_stops(
    learners: list[tuple[float, float, float, bool]], overlap: int, quorum: int
) -> None:
    simulated = [SimulatedLearner(f"u{i}", step, start, answer, mute=mute) for i, (step, start, answer, mute) in enumerate(learners)]
    sim = Simulation(a_seeded_core(a_job(overlap_steps=overlap, quorum=quorum)), simulated).run(until=120)
    taken = max(sum(x.local_step for x in simulated) / len(simulated), max(x.local_step for x in simulated) / MOST_LOCAL_STEPS)
    # units that join one after the other are counted from when they report, so the fewer at first count for more: at most their steps
    assert sim.core.t <= taken + 3 / min(x.step_seconds for x in simulated) + 2
    assert (sim.core.t > 0) == (len(learners) >= quorum)
    asked = [(a.t, unit) for a in sim.all(Pull) for unit in a.units]
    merged = [(a.t, unit) for a in sim.all(Merged) for unit in a.units]
    assert len(set(merged)) == len(merged)
    assert set(merged) <= set(asked)
    assert len(sim.all(Merged)) + len(sim.all(Skipped)) <= sim.core.t


@pytest.mark.slow
def test_equal_events_give_equal_bytes() -> None:
    def run() -> tuple[list[bytes], int]:
        job = a_job(compression="Int4", merge={"method": "RDA"}, outer_optimizer={"learning_rate": 0.7, "momentum": 0.9}, overlap_steps=2)
        core = a_seeded_core(job, a_layout(6, 300))
        Simulation(core, [SimulatedLearner(f"u{i}", 1.0 + 0.37 * i, 0.1 * i, 0.4) for i in range(4)]).run(until=100)
        return [core.value(p).tobytes() for p in range(4)], core.t

    assert run() == run()


def test_order_in_which_answers_come_does_not_change_the_bytes() -> None:
    def run(answer_seconds: list[float]) -> bytes:
        core = a_seeded_core(a_job(sync_interval=1, fragments=1, overlap_steps=0, quorum=3, merge={"method": "RDA"}), a_layout(1, 50))
        learners = [SimulatedLearner(f"u{i}", 1.0, 0.0, s, tokens=100 + i) for i, s in enumerate(answer_seconds)]
        Simulation(core, learners).run(until=10.5)
        assert core.t == 10
        return core.value(0).tobytes()

    assert run([0.1, 0.2, 0.3]) == run([0.3, 0.1, 0.2])


def test_restored_core_goes_on_at_the_same_step_and_pulls_anew() -> None:
    training = a_job(overlap_steps=2)
    core = a_seeded_core(training)
    sim = Simulation(core, [SimulatedLearner("a", 1.0, answer_seconds=0.9)]).run(until=50.5)
    again = InlineCore(core.layout, training, core.state())
    assert again.t == core.t
    after = Simulation(again, [SimulatedLearner("a", 1.0)]).run(until=3.5)
    assert after.all(Pull)[0].t == core.t + 1
    assert after.all(Broadcast)[0].base == core.version(after.all(Pull)[0].fragment)
    assert again.contributions_of("a").contributions > sim.core.contributions_of("a").contributions
