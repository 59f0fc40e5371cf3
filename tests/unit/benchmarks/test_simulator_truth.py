"""Settings of real and simulated jobs, without a real one: failures, the twin on virtual time, what is compared and drawn."""

import json
import math
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.evidence.table4 import ideal
from benchmarks.truth.predictions import FILE, from_json
from benchmarks.truth.scavenged import Row, Size, rows_of, simulated_times, worst
from benchmarks.truth.settings import CALIBRATION, SETTINGS, SETTLED, Setting, tape
from benchmarks.truth.simulated import Calibration, JobResult, simulate
from benchmarks.truth.truth import points

FREE = Calibration(start_seconds=0.0, overhead_seconds=0.0)
FAILING = Setting("failing", (0.5, 0.5), 40.0, steps_between_failures=40, out_seconds=5.0)


def test_failures_are_the_same_for_one_seed_and_none_comes_before_the_window() -> None:
    found = tape(FAILING, 7)
    assert found == tape(FAILING, 7)
    assert found != tape(FAILING, 8)
    assert all(failures[0].step > SETTLED for failures in found.values())
    assert tape(replace(FAILING, steps_between_failures=0.0), 7) == {"u0": (), "u1": ()}


@pytest.mark.slow
def test_failures_have_the_means_that_the_setting_says() -> None:
    failures = [failure for seed in range(20) for of_unit in tape(FAILING, seed).values() for failure in of_unit[1:]]
    # 3,960 of each: the standard errors are 40 / 63 = 0.6 steps and, with a deviation below the mean, 0.08 s. Five of them.
    assert mean(failure.step for failure in failures) == pytest.approx(40.0, abs=3.2)
    assert mean(failure.out_seconds for failure in failures) == pytest.approx(5.0, abs=0.4)


@pytest.mark.slow
def test_the_twin_of_a_job_without_failures_trains_all_the_time_and_merges_at_each_step() -> None:
    calm = simulate(replace(FAILING, steps_between_failures=0.0), FREE, 7)
    assert calm.goodput == pytest.approx(100.0, abs=1.5)  # a step of 40 s more or less
    assert calm.merges_per_hour == pytest.approx(7200.0, rel=0.03)
    assert calm.units_in_each_merge == pytest.approx(2.0, abs=0.05)
    assert calm.failures == 0


@pytest.mark.slow
def test_the_twin_loses_the_time_of_its_failures() -> None:
    failing = replace(FAILING, step_seconds=(0.5,), seconds=200.0)
    found = simulate(failing, Calibration(start_seconds=1.0, overhead_seconds=0.0), 7)
    failures = tape(failing, 7)["u0"]
    # From its first step on: half a step is lost, and then the time out and the start. The window begins after `SETTLED` steps.
    lost, now = 0.0, -SETTLED * 0.5
    for failure in failures:
        now += (failure.step - 0.5) * 0.5
        if now >= failing.seconds:
            break
        spent = min(0.25 + failure.out_seconds + 1.0, failing.seconds - now + 0.25)
        lost, now = lost + spent, now - 0.25 + spent
    assert found.failures > 2
    assert found.goodput == pytest.approx(100 * (1 - lost / failing.seconds), abs=0.6)


def test_what_was_predicted_too_much_is_positive() -> None:
    predicted, measured = JobResult(90.0, 10_300.0, 4.0, 3), JobResult(88.5, 10_000.0, 4.0, 3)
    assert points(predicted, measured) == {"goodput": pytest.approx(1.5), "merges_per_hour": pytest.approx(3.0)}
    assert points(predicted, replace(measured, merges_per_hour=0.0))["merges_per_hour"] == math.inf


def test_all_settings_are_predicted_and_none_of_them_was_used_to_calibrate() -> None:
    found = json.loads(FILE.read_text(encoding="ascii"))
    assert from_json(found).as_json() == found
    assert list(found["settings"]) == [setting.name for setting in SETTINGS]
    assert CALIBRATION.name not in found["settings"]


@pytest.mark.slow
def test_units_that_come_and_go_and_cost_nothing_keep_the_law() -> None:
    rows = rows_of(simulated_times(Size((0.0, 1.0), 0.1, 800), FREE))
    # Those that leave lose up to H + tau = 7 of their 200 to 400 steps.
    assert rows[0].time == 1.0
    assert rows[1].time == pytest.approx(ideal(1.0), rel=0.03)
    assert worst([Row(0.0, 1.0), Row(1.0, 0.78)]) == pytest.approx(0.04)
