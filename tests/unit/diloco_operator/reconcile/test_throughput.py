"""A job learns how fast its units are in each pool, and what that makes them worth to placement."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.reports import a_report, a_unit_report
from builders.stage import START, Stage
from diloco_operator.api.job import load
from diloco_operator.api.spec import Pool
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.placement import JobRequest
from diloco_operator.reconcile.observe.throughput import PoolRecord, measure_pools, write_pool
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.report import Report, UnitPhase

PRIOR = {"v5p": 650, "v6e": 1350}
"""By the peaks of 4 chips each, 459 and 918 TFLOP/s: 667 and 1333 thousandths, in steps of 50."""
OTHER = "team/other/uid-2"


def a_mixed_job(**placement: Any) -> Stage:
    """It trains with a unit on v5p and one on v6e, and may have two of each."""
    job = a_job().with_learners(1, 4).with_pool("v5p", max=2).with_pool("v6e", accelerator="tpu-v6e", topology="2x2", max=2)
    if placement:
        job.with_spec(placement=placement)
    nodes = a_tpu_node("tpu-0"), a_tpu_node("tpu-1", kind="tpu-v6e-slice", topology="2x2")
    return Stage(job, *nodes).train()


def with_all_its_units(stage: Stage) -> Stage:
    """It may have no more than the two that it has."""
    stage.job["spec"]["learners"]["max"] = 2
    stage.job["metadata"]["generation"] += 1
    return stage


def trains(stage: Stage, seconds: float, **rates: float) -> None:
    """For so long, with a report every 10 s. `rates`: pool -> tokens/s of each of its units."""
    for _ in range(round(seconds / 10)):
        stage.now += 10
        units = [unit for unit in stage.status["units"] if unit["state"] == "Training"]
        reported = [a_unit_report(each["name"], each["attempt"], tokens_per_second=rates.get(each["pool"], 0.0)) for each in units]
        stage.report = a_report(*reported, at=stage.now)
        stage.step()


def figures(stage: Stage, pool: str) -> dict[str, Any]:
    found = next(each for each in stage.status["pools"] if each["name"] == pool)
    return {key: found[key] for key in ("tokensPerSecond", "measuredSeconds", "value") if key in found}


def request(stage: Stage) -> JobRequest:
    found = stage.reconcile_only().request
    assert found is not None
    return found


def values(stage: Stage) -> dict[str, int]:
    """As the job's request says them."""
    return {pool.name: value for pool in request(stage).pools for value in pool.values.values()}


# --- what status shows -------------------------------------------------------------------------------------------------
def test_status_shows_the_throughput_of_one_unit_of_each_pool() -> None:
    stage = a_mixed_job()
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert figures(stage, "v5p") == {"tokensPerSecond": 300.0, "measuredSeconds": 300.0, "value": 0.5}
    assert figures(stage, "v6e") == {"tokensPerSecond": 900.0, "measuredSeconds": 300.0, "value": 1.5}


def test_the_peak_of_the_accelerator_decides_until_two_minutes_are_measured() -> None:
    stage = a_mixed_job()
    trains(stage, 110, v5p=600.0, v6e=600.0)
    assert values(stage) == PRIOR
    trains(stage, 10, v5p=600.0, v6e=600.0)
    assert values(stage) == {"v5p": 1000, "v6e": 1000}
    assert "value" not in figures(stage, "v5p")


def test_a_kind_that_the_job_has_not_tried_is_hoped_to_be_better_than_its_peak_until_it_is_measured() -> None:
    stage = a_mixed_job()
    stage.lose_node("tpu-1")
    stage.settle()
    trains(stage, 300, v5p=300.0)
    # By the peaks v6e is twice as fast; 1.5 times 600 are 900, and the mean with 300 is 600.
    assert values(stage) == {"v5p": 500, "v6e": 1500}


def test_the_record_outlives_the_pools_units() -> None:
    stage = a_mixed_job()
    trains(stage, 300, v5p=300.0, v6e=900.0)
    known = figures(stage, "v6e")
    stage.lose_node("tpu-1")
    stage.settle()
    trains(stage, 600, v5p=300.0)
    assert stage.unit("v6e-0")["slice"] == ""
    assert figures(stage, "v6e") == known


def test_the_record_outlives_the_operator() -> None:
    stage = a_mixed_job()
    trains(stage, 300, v5p=300.0, v6e=900.0)
    known, wanted = {pool: figures(stage, pool) for pool in PRIOR}, values(stage)
    stage.restart_operator()
    stage.settle()
    assert values(stage) == wanted
    assert {pool: figures(stage, pool) for pool in PRIOR} == known


def test_an_attempt_goes_on_with_the_average_of_the_one_before() -> None:
    stage = a_mixed_job()
    trains(stage, 600, v5p=300.0, v6e=900.0)
    stage.learner_exits("v6e-0", 1, 1)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.unit("v6e-0")["attempt"] == 2
    trains(stage, 10, v5p=300.0, v6e=840.0)
    # One report of 10 s in an average over 600 s: 900 - 60 / 60.
    assert figures(stage, "v6e")["tokensPerSecond"] == pytest.approx(899.0, abs=2.0)


def test_a_unit_that_rests_or_pauses_says_nothing_about_its_hardware() -> None:
    stage = a_mixed_job()
    trains(stage, 300, v5p=300.0, v6e=900.0)
    known = figures(stage, "v6e")
    for fields in ({"resting_seconds": 4.0}, {"pause": "evaluates", "pause_left": 60.0}):
        stage.syncer_says("v6e-0", 1, UnitPhase.CONTRIBUTING, tokens_per_second=5.0, **fields)
        stage.advance(30)
        stage.settle()
        assert figures(stage, "v6e") == known


def test_one_report_counts_once_however_often_it_is_read() -> None:
    stage = a_mixed_job()
    trains(stage, 600, v5p=300.0, v6e=900.0)
    trains(stage, 10, v5p=300.0, v6e=300.0)
    known = figures(stage, "v6e")
    for _ in range(20):
        stage.step()
    assert figures(stage, "v6e") == known


# --- what the allotment is told ----------------------------------------------------------------------------------------
def test_a_job_asks_with_what_a_unit_is_worth_on_each_kind() -> None:
    stage = a_mixed_job()
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert [dict(pool.values) for pool in request(stage).pools] == [{"tpu-v5p": 500}, {"tpu-v6e": 1500}]


def test_waiting_jobs_with_equal_pools_stand_in_one_line() -> None:
    pools = [
        request(Stage(a_job(name).with_learners(1, 4).with_pool("v5p").with_pool("v6e", accelerator="tpu-v6e", topology="2x2"))).pools
        for name in ("one", "two")
    ]
    assert len(set(pools)) == 1


def test_the_order_of_the_pools_decides_where_the_user_says_so() -> None:
    stage = a_mixed_job(objective="Preference")
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert values(stage) == {"v5p": 1000, "v6e": 1000}
    assert figures(stage, "v6e")["value"] == 1.5


def test_leaving_a_slice_costs_a_margin_until_a_recovery_was_measured() -> None:
    stage = a_mixed_job(horizon="5m")
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert {unit.name: unit.leaving_cost for pool in request(stage).pools for unit in pool.units} == {"v5p-0": 100, "v6e-0": 300}
    trains(stage, 300, v5p=300.0, v6e=900.0)  # the average is as long as it gets
    assert {unit.name: unit.leaving_cost for pool in request(stage).pools for unit in pool.units} == {"v5p-0": 50, "v6e-0": 150}
    stage.learner_exits("v6e-0", 1, 1)
    stage.settle()
    stage.advance(50)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.unit("v6e-0")["recoverSeconds"] == 50.0
    # 50 s of 300 are a sixth, rounded up to a fifth.
    assert {unit.name: unit.leaving_cost for pool in request(stage).pools for unit in pool.units} == {"v5p-0": 100, "v6e-0": 300}


def test_no_more_units_move_than_the_user_allows_and_none_while_others_are_on_the_way() -> None:
    assert request(a_mixed_job()).may_move == 1
    assert request(a_mixed_job(maxMoving=0)).may_move == 0
    stage = a_mixed_job(maxMoving=2)
    assert request(stage).may_move == 2
    stage.revoked = {"v6e-0": OTHER}
    stage.settle()
    assert stage.states()["v6e-0"] == "Draining"
    assert request(stage).may_move == 1


def test_a_job_that_has_all_its_units_still_wants_one_where_it_yields_clearly_more() -> None:
    stage = with_all_its_units(a_mixed_job())
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert {pool.name: pool.wanted for pool in request(stage).pools} == {"v5p": 0, "v6e": 1}
    trains(stage, 900, v5p=300.0, v6e=250.0)
    # The average of v6e is 250 + 650 e^(-900 / 600) = 395 tokens/s: more than v5p, and a third of it more than leaving costs.
    assert request(stage).pools[1].wanted == 1
    trains(stage, 900, v5p=300.0, v6e=250.0)
    # 282 tokens/s.
    assert {pool.name: pool.wanted for pool in request(stage).pools} == {"v5p": 0, "v6e": 0}


def test_a_job_whose_units_never_move_wants_none_beyond_its_maximum() -> None:
    stage = with_all_its_units(a_mixed_job(maxMoving=0))
    trains(stage, 300, v5p=300.0, v6e=900.0)
    assert {pool.name: pool.wanted for pool in request(stage).pools} == {"v5p": 0, "v6e": 0}


def test_no_unit_moves_where_all_have_one_kind_of_hardware() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0")).train()
    assert request(stage).may_move == 0


# --- noise and gains ---------------------------------------------------------------------------------------------------
class Rounds:
    """A job of these pools, of which each has 3 units that train, round by round of 10 s, with noise of 10 % in each rate."""

    def __init__(self, seed: int, rates: dict[str, float]) -> None:
        job = a_job()
        for name in rates:
            job.with_pool(name)
        self.pools: tuple[Pool, ...] = load(job.build()).spec.pools
        self.shapes = {pool.name: shape_of(pool) for pool in self.pools}
        self.rates = rates
        self.units = {f"{name}-{number}": UnitStatusRecord(f"{name}-{number}", name, attempt=1) for name in rates for number in range(3)}
        self.status: dict[str, Any] = {}
        self.now = START
        self.noise = random.Random(seed)

    def play(self, rounds: int) -> set[tuple[int, ...]]:
        """Returns the values that there were."""
        seen = set()
        for _ in range(rounds):
            self.now += 10
            found = measure_pools(self.pools, self.shapes, self.units, self._report(), self.status, self.now)
            seen.add(tuple(record.value for record in found.values()))
            pools = [{"name": name, **write_pool(record)} for name, record in found.items()]
            self.status = {"pools": pools, "progress": {"updatedAt": format_timestamp(self.now)}}
        return seen

    def _report(self) -> Report:
        reported = (
            a_unit_report(name, tokens_per_second=self.rates[record.pool] * self.noise.uniform(0.9, 1.1))
            for name, record in self.units.items()
        )
        return a_report(*reported, at=self.now)


FLEETS = {
    "equal kinds": {"a": 1000.0, "b": 1000.0},
    "far kinds": {"a": 300.0, "b": 1900.0},
    "many kinds": {f"k{index}": 100.0 * (index + 1) for index in range(16)},
    "a small job": {"a": 3.0, "b": 4.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("seed", range(3))
def test_noise_of_a_tenth_changes_no_value_in_a_thousand_rounds(fleet: str, seed: int) -> None:
    rounds = Rounds(seed, dict(FLEETS[fleet]))
    rounds.play(100)  # until the averages are as long as they get
    assert len(rounds.play(1000)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
def test_a_gain_of_three_tenths_changes_the_value(fleet: str) -> None:
    rounds = Rounds(1, dict(FLEETS[fleet]))
    rounds.play(100)
    (before,) = rounds.play(1)
    first = next(iter(rounds.rates))
    rounds.rates[first] *= 1.3
    after = rounds.play(200)
    assert any(each != before for each in after)
    (settled,) = rounds.play(1)
    assert settled[0] > before[0]


@pytest.mark.slow
def test_noise_makes_no_new_request() -> None:
    """What the allotment compares is equal, so it decides nothing anew."""
    stage, noise = a_mixed_job(), random.Random(7)
    trains(stage, 900, v5p=300.0, v6e=900.0)
    before = request(stage)
    for _ in range(200):
        trains(stage, 10, v5p=300.0 * noise.uniform(0.9, 1.1), v6e=900.0 * noise.uniform(0.9, 1.1))
        assert stage.plans[-1].request == before
    trains(stage, 1200, v5p=390.0, v6e=900.0)
    assert request(stage) != before


def test_a_throughput_that_no_hardware_has_harms_nothing() -> None:
    rounds = Rounds(1, {"a": 1e308, "b": 1e-308})
    rounds.play(30)
    ((fast, slow),) = rounds.play(1)
    assert (fast, slow) == (2000, 50)
    rounds.status["pools"] = [{"name": "a", "tokensPerSecond": 1e12, "measuredSeconds": 1e300, "value": 16.0}, {"name": "b"}]
    assert all(50 <= value <= 16000 for seen in rounds.play(3) for value in seen)


def test_what_was_never_measured_is_absent() -> None:
    assert write_pool(PoolRecord()) == {}
