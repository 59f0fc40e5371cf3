from __future__ import annotations

from functools import partial

import pytest
from builders.trace_scenes import a_trace_job, a_week

from benchmarks.trace.by_flow import by_flow, known
from benchmarks.trace.inputs import START, Outage
from benchmarks.trace.outcome import Outcome, isolated
from benchmarks.trace.rules import by_speed, first_fit, gangs
from benchmarks.trace.scene import Orders
from benchmarks.trace.world import GAP, Rule, Week, simulate

FIRST_FIT = Rule(partial(first_fit, order=by_speed))
FLOW = Rule(partial(by_flow, knowledge=known))


def test_a_job_trains_on_all_its_units_after_their_start() -> None:
    ran = simulate(a_week(["fast", "slow"], a_trace_job(tokens=300_000.0)), FIRST_FIT)
    # 120 s of start, then 2,000 + 1,000 tokens each second
    assert ran.completions == {"job": pytest.approx(START + 100)}
    assert ran.tokens == 300_000
    assert ran.job_seconds == pytest.approx(START + 100)


def test_below_its_quorum_a_job_merges_nothing() -> None:
    """Two units of a job of four, which needs two: one loses its slice, and the other waits for it."""
    job = a_trace_job(size=4, tokens=600_000.0)
    outage = Outage(1, START + 100, START + 1000)
    ran = simulate(a_week(["slow", "slow"], job, outages=[outage]), FIRST_FIT)
    # 100 s at 2,000; the lost unit takes 30 s of its own along: 170,000. It comes back at 1,000 s, and starts again: 430,000 at 2,000
    assert ran.completions["job"] == pytest.approx(START + 1000 + START + 215)


def test_a_gang_that_loses_a_unit_starts_again_as_a_whole() -> None:
    job = a_trace_job(size=2, tokens=400_000.0)
    outage = Outage(0, START + 100, START + 500)
    ran = simulate(a_week(["slow"] * 3, job, outages=[outage]), Rule(gangs, quorum=lambda job: job.size))
    # 200,000 less 30,000. At the second decision all leave, at the third both start again, and need 230,000 at 2,000
    assert ran.completions["job"] == pytest.approx(2 * GAP + START + 115)
    assert ran.moves == 1


def test_what_is_not_complete_at_the_end_of_the_week_counts_as_far_as_it_is_merged() -> None:
    ran = simulate(a_week(["slow"], a_trace_job(tokens=1e6), seconds=500.0), FIRST_FIT)
    assert ran.tokens == pytest.approx((500 - START) * 1000)
    assert ran.completions["job"] == pytest.approx(START + 1000)
    assert ran.job_seconds == pytest.approx(500)


def test_a_slice_is_given_once() -> None:
    twice = Rule(lambda scene: Orders(take={("job", "slow"): 2}))
    with pytest.raises(ValueError, match="job gets 2 slices of slow, of which 1 are free"):
        simulate(a_week(["slow"], a_trace_job()), twice)


def test_no_rule_but_gangs_takes_a_job_below_its_minimum() -> None:
    week = Week.of(24, 1.2, 10_000.0, 0)
    for rule in (FIRST_FIT, FLOW):
        ran = simulate(week, rule)
        assert ran.below_minimum == 0
        assert len(ran.completions) == len(week.jobs)


def test_a_week_runs_alike_each_time() -> None:
    first, second = (simulate(Week.of(10, 0.8, 10_000.0, 1), FLOW) for _ in range(2))
    assert first.completions == second.completions
    assert (first.tokens, first.moves) == (second.tokens, second.moves)


def test_fairness_compares_with_the_job_alone_on_its_share_of_the_slices() -> None:
    job = a_trace_job(size=4, run_time=1000.0)
    # 4,000 slice-seconds on 2.5 slices, or on the 8 that it can use
    assert isolated(job, 2.5) == START + 1600
    assert isolated(job, 100.0) == START + 500
    week = a_week(["slow"] * 4, job, a_trace_job("other", created=5000.0, run_time=1000.0))
    ran = simulate(week, FIRST_FIT)
    outcome = Outcome.of(week, ran, rivals=2.0)
    # of size 4, 1,000,000 tokens on 4 slices of 1,000: 250 s; alone on 2: 2,000 s. The other: on its 2 at most 500 s, alone 500 s
    assert outcome.mean_fairness == pytest.approx(((START + 250) / (START + 2000) + (START + 500) / (START + 500)) / 2)
    assert outcome.moves_per_job == 0
