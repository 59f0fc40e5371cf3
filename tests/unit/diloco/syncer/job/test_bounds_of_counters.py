"""Counters that no program has: what becomes of weights, sums and stored states."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from builders.exchange import LocalSyncer, Place, job_file, training, until
from builders.scripted_learner import ScriptedLearner
from diloco.algorithm.codec import Coding
from diloco.algorithm.events import Marks, Offer
from diloco.data.ledger import MOST_WORK, Ledger, UnitWork
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, Progress, Refused
from diloco.syncer.job.work import ENOUGH_SAMPLES, MOST_TOKENS_RATIO, JobWork
from diloco.syncer.streams.sessions import UnitSession

LONG = 100_000
"""Outer steps of a job that is to last as long as its test."""


def a_place(path: Path, **changes: object) -> Place:
    return Place(path, job_file(training(LONG, **changes)))


def seeded(raw: ScriptedLearner) -> ScriptedLearner:
    raw.hello().hear("welcome")
    return raw.seed()


def answer(raw: ScriptedLearner, **counters: int) -> ScriptedLearner:
    """The answer to the next pull, of one step with 8 tokens where nothing else is said."""
    pull = raw.hear("pull").pull
    usual = {"steps": 1, "tokens": 8, "tokens_done": 8 * pull.t, "steps_done": pull.t}
    header = Chunk(kind=Chunk.PUSH, fragment=pull.fragment, t=pull.t, coding=Chunk.FLOAT32, **(usual | counters))  # type: ignore[arg-type]
    return raw.transfer(header, bytes(4 * raw.fragments[pull.fragment].size))


def says(raw: ScriptedLearner, steps: int) -> ScriptedLearner:
    counters = [steps] * len(raw.fragments)
    progress = Progress(local_step=steps, steps=counters, tokens=counters, step_seconds=20.0, loss=float("nan"))
    return raw.say(FromLearner(progress=progress))


def test_steps_beyond_the_pace_of_the_clock_do_not_raise_a_weight(tmp_path: Path) -> None:
    """H = 2, and one outer step has two exchanges behind it: countable are 1.5 x 1 + 2 + 8 = 11.5 at t = 1, 13 at t = 2."""
    with LocalSyncer(a_place(tmp_path, quorum=2)) as syncer, ScriptedLearner(syncer, unit="a") as a, ScriptedLearner(syncer, unit="b") as b:
        seeded(a)
        until(lambda: syncer.report().seeded, "the seed")
        b.hello().hear("welcome")
        a.step(1)
        says(b, 1_000_000)
        answer(a)
        answer(b, steps=1_000_000, tokens=8_000_000, steps_done=1_000_000, tokens_done=8_000_000)
        until(lambda: syncer.unit("b").contributions == 1, "the merge")
        # Both have 8 tokens per step: their weights are as their steps.
        share = syncer.unit("b").weight
        assert 11 / 12 < share <= 13 / 14


def test_a_unit_that_trained_on_during_a_pause_takes_part(tmp_path: Path) -> None:
    """150 steps since the last adoption, where H is 2."""
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer) as raw:
        seeded(raw)
        says(raw, 150)
        answer(raw, steps=150, tokens=1200, steps_done=150, tokens_done=1200)
        until(lambda: syncer.unit("u-0").contributions == 1, "the merge")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_seconds", "least"),
    [
        pytest.param(20.0, 20.0, id="more steps than it has time for"),
        # Those of the other take 20 s.
        pytest.param(1e-6, 20.0 / 16, id="steps that take no time, a sixteenth of the time of the others"),
    ],
)
def test_a_unit_that_claims_a_thousand_steps_in_each_report_does_not_run_the_clock(
    tmp_path: Path, step_seconds: float, least: float
) -> None:
    """Each report is enough for the quorum of one. One outer step costs 1.5 local steps of the fastest unit, of which 65 count beyond those
    for which there is time. No exchange begins before outer step 1000."""
    place = a_place(tmp_path, sync_interval=1000, fragments=1)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer, unit="a") as a, ScriptedLearner(syncer, unit="b") as b:
        seeded(a)
        until(lambda: syncer.report().seeded, "the seed")
        b.hello().hear("welcome")
        for step in (1, 2, 3):
            a.step(step).want(1).hear("work")  # with the answer the syncer has taken it
        until(lambda: syncer.report().t >= 1, "an outer step, from which on its steps are known")
        began = time.monotonic()
        for report in range(1, 151):
            b.step(1000 * report, step_seconds=step_seconds).want(1).hear("work")
        seconds = time.monotonic() - began
        assert syncer.report().t <= 3 + (65 + seconds / least) / 1.5


def test_steps_that_no_program_takes_are_refused_and_the_unit_goes_on(tmp_path: Path) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer) as raw:
        says(seeded(raw), 10**15)
        answer(raw, steps=10**15, tokens=10**15, steps_done=10**15, tokens_done=10**15)
        until(lambda: syncer.unit("u-0").refused.get("Impossible", 0) == 1, "the refusal")
        assert syncer.unit("u-0").contributions == 0
        raw.want(1).hear("work")


@pytest.mark.parametrize("totals", [{"tokens_done": 2**64 - 1}, {"tokens_done": MOST_WORK + 1}, {"steps_done": 2**64 - 1}])
def test_totals_whose_sum_does_not_fit_end_their_sender_only(tmp_path: Path, totals: dict[str, int]) -> None:
    with LocalSyncer(a_place(tmp_path)) as syncer, ScriptedLearner(syncer) as raw:
        seeded(raw).step(1)
        refused = answer(raw, **totals).hear("refused").refused
        assert (refused.code, f"are more than {MOST_WORK}" in refused.message) == (Refused.PROTOCOL, True), refused.message
        with ScriptedLearner(syncer, unit="other") as other:
            other.hello().hear("welcome")
            assert {other.receive().header.tokens for _ in other.fragments} == {0}


def a_session(ledger: Ledger, samples: int) -> tuple[JobWork, UnitSession]:
    """Return the work and the session of a unit that has leased so many samples."""
    work, session = JobWork(ledger, fragments=1), UnitSession("u", 1, b"s", "u/1/1", 1)
    work.begin(session)
    list(work.lease(session, samples))
    return work, session


def totals(samples: int, tokens: int) -> Chunk:
    return Chunk(samples_done=samples, tokens_done=tokens, steps_done=1, tokens=1, steps=1)


def trained(samples: int, tokens: int) -> Ledger:
    """Return the ledger of a job whose one unit has trained so much."""
    ledger = Ledger()
    ledger.begin("v/1/1", "v")
    ledger.lease("v/1/1", samples)
    ledger.commit("v/1/1", UnitWork(samples, tokens, 1))
    return ledger


def test_samples_hold_at_most_a_multiple_of_what_samples_held_before() -> None:
    work, session = a_session(trained(ENOUGH_SAMPLES, 10 * ENOUGH_SAMPLES), samples=4)
    most = 4 * 10 * MOST_TOKENS_RATIO
    assert work.contradiction(session, totals(4, most)) == ""
    assert "in 4 samples, of which the job has trained 1024 with 10240 tokens" in work.contradiction(session, totals(4, most + 1))


def test_few_samples_of_a_job_and_programs_without_samples_say_nothing_of_others() -> None:
    work, session = a_session(trained(ENOUGH_SAMPLES - 1, ENOUGH_SAMPLES), samples=4)
    assert work.contradiction(session, totals(4, 10**9)) == ""
    work, session = a_session(trained(ENOUGH_SAMPLES, ENOUGH_SAMPLES), samples=0)
    assert work.contradiction(session, totals(0, 10**9)) == ""


def test_sums_count_what_others_have_committed() -> None:
    work, session = a_session(trained(1, MOST_WORK - 10), samples=4)
    assert work.contradiction(session, totals(4, 10)) == ""
    assert f"are more than {MOST_WORK}" in work.contradiction(session, totals(4, 11))


def an_offer(samples: int, tokens: int, steps: int = 1) -> Offer:
    return Offer(0, 1, Coding.FLOAT32, 0, steps, tokens, Marks("u/1/1", samples, tokens, steps))


def trained_by(**units: UnitWork) -> Ledger:
    """Return the ledger of a job whose units have trained so much."""
    ledger = Ledger()
    for unit, work in units.items():
        ledger.begin(f"{unit}/1/1", unit)
        if work.samples:
            ledger.lease(f"{unit}/1/1", work.samples)
        ledger.commit(f"{unit}/1/1", work)
    return ledger


def test_tokens_count_in_a_weight_up_to_what_the_samples_of_other_units_hold() -> None:
    """Three units have trained samples of 10, 12 and, one of them claims, 60,000 tokens: 12 are usual."""
    ledger = trained_by(a=UnitWork(100, 1000, 10), b=UnitWork(100, 1200, 10), c=UnitWork(100, 6_000_000, 10))
    work, _ = a_session(ledger, 200)
    assert work.countable_tokens("u", an_offer(49, 49 * 60_000)) == 12 * (49 + 6 * 7)
    # Once a contribution is merged, the samples since then.
    work.offered(an_offer(49, 588))
    work.closed(0, 1, {"u/1/1"})
    assert work.countable_tokens("u", an_offer(85, 1020)) == 12 * (36 + 6 * 6)
    # A count that stands still is no division by zero, and no weight of nothing.
    assert work.countable_tokens("u", an_offer(49, 588)) == 12 * (1 + 6)


def test_samples_as_uneven_as_a_lognormal_of_sigma_1_2_count_in_full() -> None:
    """The standard deviation of such a sample is 1.8 times its mean, so the bound lies 3.3 standard deviations of a sum above its mean: one
    normal sum in 2000 is beyond it. These are skewed to the right; of 100 one may be."""
    random = np.random.default_rng(1)
    work, _ = a_session(trained(samples=1000, tokens=1_000_000), 10_000)
    for samples in (25, 100, 1000):
        sums = random.lognormal(-(1.2**2) / 2, 1.2, (100, samples)).sum(axis=1) * 1000  # a lognormal with mean 1
        assert (sums > work.countable_tokens("u", an_offer(samples, 1))).sum() <= 1


def test_without_samples_the_usual_tokens_per_step_of_those_that_have_some_count() -> None:
    """They have 100, 300 and 700 tokens per step."""
    ledger = trained_by(a=UnitWork(100, 1000, 10), b=UnitWork(300, 3000, 10), c=UnitWork(700, 7000, 10), own=UnitWork(0, 10**9, 10))
    work, _ = a_session(ledger, 0)
    assert work.countable_tokens("u", an_offer(0, 10**6, steps=3)) == 900


def test_all_tokens_count_of_a_job_that_has_only_begun() -> None:
    work, _ = a_session(Ledger(), 200)
    assert work.countable_tokens("u", an_offer(50, 10**6)) == math.inf
    assert work.countable_tokens("u", an_offer(0, 10**6)) == math.inf
    work, _ = a_session(trained(samples=63, tokens=630), 200)
    assert work.countable_tokens("u", an_offer(50, 10**6)) == math.inf


def test_where_most_units_feed_themselves_twice_the_tokens_per_step_of_the_others_count() -> None:
    """The others have 1000, 100 and 120 tokens per step; what a unit claims of itself is no measure of it."""
    sampled, own, more = UnitWork(1000, 10_000, 10), UnitWork(0, 1000, 10), UnitWork(0, 1200, 10)
    work, _ = a_session(trained_by(a=sampled, b=own, c=more), 0)
    assert work.countable_tokens("u", an_offer(0, 10**6, steps=3)) == 2 * 120 * 3
    assert work.countable_tokens("u", an_offer(50, 10**6)) == 2 * 120
    assert work.countable_tokens("c", an_offer(0, 10**6)) == 2 * 100, "without its own 120"
    work, _ = a_session(trained_by(a=sampled, b=own), 0)
    assert work.countable_tokens("u", an_offer(0, 10**6)) == 1000
    work, _ = a_session(trained_by(b=own), 0)
    assert work.countable_tokens("b", an_offer(0, 10**6)) == math.inf, "it is alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("samples", "tokens", "share"),
    [
        # The other's weight is 1280^2 / 2. The 128 samples of two steps count for at most 10 (128 + 6 sqrt(128)) = 1959 tokens.
        pytest.param((64, 64), 20, 1959**2 / (1959**2 + 1280**2), id="tokens beyond the samples"),
        # Two steps at the 640 tokens of each step of the other.
        pytest.param((64, 0), 20, 1 / 2, id="no samples beside a unit that has some"),
        # At most twice the tokens of each step of the other have four times its weight.
        pytest.param((0, 0), 20, 4 / 5, id="no samples anywhere"),
        pytest.param((64, 64), 1, 1 / 2, id="what is true"),
    ],
)
def test_what_samples_can_hold_bounds_the_share_in_a_merge(tmp_path: Path, samples: tuple[int, int], tokens: int, share: float) -> None:
    """Two units of 640 tokens a step, in 64 samples or in none; the second claims `tokens` times as many in the third outer step, once both
    fragments are merged and the samples of the first two steps are committed."""
    with LocalSyncer(a_place(tmp_path, quorum=2)) as syncer, ScriptedLearner(syncer, unit="a") as a, ScriptedLearner(syncer, unit="b") as b:
        seeded(a)
        until(lambda: syncer.report().seeded, "the seed")
        b.hello().hear("welcome")
        for raw, each in ((a, samples[0]), (b, samples[1])):
            if each:
                raw.want(1000).hear("work")

        def merges_of_b() -> int:
            return syncer.unit("b").contributions

        for t in (1, 2, 3):
            for raw in (a, b):
                raw.step(t, tokens=640)
            for raw, each, claimed in ((a, samples[0], 1), (b, samples[1], tokens if t == 3 else 1)):
                steps = min(t, 2)
                done = {"steps_done": t, "samples_done": each * t, "tokens_done": 640 * (t - steps + steps * claimed)}
                answer(raw, steps=steps, tokens=640 * steps * claimed, **done)
            until(lambda: merges_of_b() == t, f"merge {t}")  # noqa: B023 -- it is called in this turn of the loop
        # The mean over three merges, two of them with equal shares.
        assert syncer.unit("b").weight == pytest.approx((0.5 + 0.5 + share) / 3, rel=1e-4)


def test_a_stored_count_beyond_all_bounds_is_replaced_and_named() -> None:
    stored = trained(100, 1000).to_json()
    stored |= {"frontier": 110, "committed": [[0, 110]]}
    stored["units"] |= {"bad": [10, 2**70, 2**65], "own": [0, 2**64, 5]}
    ledger = Ledger.from_json(stored)
    # The samples of v hold 10 tokens each.
    assert (ledger.unit("bad"), ledger.unit("own"), ledger.unit("v")) == (UnitWork(10, 100, 0), UnitWork(0, 0, 5), UnitWork(100, 1000, 1))
    assert ledger.tokens == 1100
    assert [text.split(" cannot")[0] for text in ledger.repaired] == ["unit bad", "unit own"]
    assert Ledger.from_json(ledger.to_json()).repaired == ()


def test_the_tokens_of_a_job_never_exceed_what_the_wire_carries() -> None:
    stored = trained(1, MOST_WORK).to_json()
    stored["units"] |= {f"u-{i}": [0, MOST_WORK, 1] for i in range(5000)}
    assert Ledger.from_json(stored).tokens == MOST_WORK


@pytest.mark.slow
def test_a_job_goes_on_from_a_state_with_a_count_beyond_all_bounds(tmp_path: Path) -> None:
    """As a hostile learner may have had it stored."""
    place = a_place(tmp_path)
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as raw:
        seeded(raw).step(1)
        answer(raw)
        until(lambda: syncer.unit("u-0").contributions == 1, "the merge")
        syncer.syncer.engine.work.ledger._units["bad"] = UnitWork(0, 2**70, 1)  # no door lets it in
    with LocalSyncer(place) as syncer, ScriptedLearner(syncer) as raw:
        assert "unit bad cannot have trained" in syncer.report().message
        raw.hello(session=b"again").hear("welcome")
        assert {raw.receive().header.tokens for _ in raw.fragments} == {syncer.report().tokens}
