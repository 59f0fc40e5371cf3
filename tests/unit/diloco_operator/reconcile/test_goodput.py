"""Where the time of units went, from one status write to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits, starts
from builders.reports import a_report, a_unit_report
from builders.stage import Stage
from diloco.goodput import Use
from diloco_operator.accelerators import unit_shape
from diloco_operator.api.goodput import MAX_KINDS, key_of
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import Status, UnitState
from diloco_operator.kube.timestamps import format_timestamp, parse_timestamp
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status.goodput import account
from diloco_operator.report import Report, UnitPhase

NOTHING = {key_of(use): 0.0 for use in Use}


SHAPES = {
    "u": unit_shape("tpu-v5p", topology="2x2x1"),
    "h": unit_shape("nvidia-h100-80gb", hosts=2, accelerators_per_host=8),
    "c": unit_shape("cpu"),
}
"""Units of `u` have 4 chips, those of `h` 16 GPUs, and those of `c` no accelerator."""


def a_record(state: UnitState = UnitState.TRAINING, **fields: Any) -> UnitStatusRecord:
    return UnitStatusRecord("u-0", "u", state, **{"slice": "n-0", "attempt": 1, "since": 0.0, **fields})


TRAINS = a_record(figures={"steps": 5})
BACKS_OFF = a_record(UnitState.BACKING_OFF, figures={"steps": 5}, ended_attempt=1, restarts=1, since=106.0, ended_at=104.0)


def spent(
    before: UnitStatusRecord | None,
    after: UnitStatusRecord | None,
    report: Report | None = None,
    *,
    until: float = 110.0,
    old: dict[str, Any] | None = None,
    counts: bool = True,
) -> dict[str, float]:
    """What 10 s from second 100 on were used for, without what is 0."""
    goodput = account(
        old or {"measuredAt": format_timestamp(100.0)},
        {before.name: before} if before is not None else {},
        {after.name: after} if after is not None else {},
        report,
        until,
        shapes=SHAPES,
        counts=counts,
    )
    assert goodput["measuredAt"] == format_timestamp(until)
    return {key: seconds for key, seconds in goodput["unitSeconds"].items() if seconds}


@pytest.mark.parametrize(
    ("unit", "use"),
    [
        (a_record(UnitState.PENDING, slice="", attempt=0), "missing"),
        (a_record(UnitState.STARTING), "start"),
        (a_record(UnitState.JOINING, reason=UnitReason.FIRST_STEP), "compile"),
        (TRAINS, "training"),
        (a_record(reason=UnitReason.WAITING_FOR_QUORUM), "waiting"),
        (a_record(reason=UnitReason.PAUSED), "pause"),
        (BACKS_OFF, "recovery"),
        (a_record(UnitState.DRAINING), "reconfiguration"),
    ],
)
def test_a_unit_that_stays_as_it_is_spends_all_time_on_that(unit: UnitStatusRecord, use: str) -> None:
    assert spent(unit, unit) == {use: 10.0}


@pytest.mark.parametrize("state", [UnitState.FAILED, UnitState.COMPLETED])
def test_a_unit_that_will_not_train_again_has_no_time(state: UnitState) -> None:
    assert spent(a_record(state), a_record(state)) == {}


def test_a_state_that_began_in_between_counts_from_then_on() -> None:
    # Started at 100 on record, joined with the parameters at 103.
    began = a_record(UnitState.JOINING, reason=UnitReason.FIRST_STEP, since=103.0)
    assert spent(a_record(UnitState.STARTING), began) == {"start": 3.0, "compile": 7.0}


def test_a_unit_that_was_not_on_record_counts_from_its_own_beginning() -> None:
    assert spent(None, a_record(UnitState.STARTING, since=108.0)) == {"start": 2.0}


def test_a_unit_that_leaves_counts_until_now() -> None:
    assert spent(a_record(UnitState.DRAINING), None) == {"reconfiguration": 10.0}


def test_a_unit_that_stays_as_it_was_while_nothing_is_heard_of_the_syncer_waits() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.advance(100)
    stage.settle()
    exits(stage.syncer, 137, stage.now)
    stage.settle()  # its successor finds no node for half an hour
    stage.advance(1800)
    starts(stage.syncer, stage.now)
    stage.all_contribute()
    stage.settle()
    stage.advance(50)
    stage.all_contribute(t=20)
    stage.settle()
    seconds = stage.status["goodput"]["unitSeconds"]
    assert (seconds["training"], seconds["waiting"]) == (150.0, 1800.0)


def test_a_rest_that_the_status_first_shows_now_begins_now() -> None:
    assert spent(TRAINS, TRAINS._replace(reason=UnitReason.WAITING_FOR_QUORUM)) == {"training": 10.0}


def test_a_loss_is_recovery_from_the_end_of_the_attempt_on() -> None:
    # It ended at 104; the operator saw that at 106.
    assert spent(TRAINS, BACKS_OFF) == {"training": 4.0, "recovery": 6.0}


def test_the_step_that_a_failure_ended_is_lost_work() -> None:
    # At 103 the syncer had heard of no step for 1 s: its last one ended at 102.
    report = a_report(a_unit_report("u-0", 1, seconds_since_heard=1.0), at=103.0)
    assert spent(TRAINS, BACKS_OFF, report) == {"training": 2.0, "lostWork": 2.0, "recovery": 6.0}


def test_a_stall_is_lost_work_also_where_its_time_is_booked_as_training() -> None:
    # It took its last step at 84; until 100 the status had booked training.
    report = a_report(a_unit_report("u-0", 1, seconds_since_heard=16.0), at=100.0)
    old = {"measuredAt": format_timestamp(100.0), "unitSeconds": {"training": 100.0}}
    assert spent(TRAINS, BACKS_OFF, report, old=old) == {"training": 84.0, "lostWork": 20.0, "recovery": 6.0}


def test_a_report_of_another_attempt_says_nothing_of_the_lost_step() -> None:
    report = a_report(a_unit_report("u-0", 2, seconds_since_heard=1.0), at=103.0)
    assert spent(TRAINS, BACKS_OFF, report) == {"training": 4.0, "recovery": 6.0}


def test_a_loss_and_a_return_while_no_operator_ran_are_both_counted() -> None:
    # Lost at 102, back at 107.
    back = TRAINS._replace(attempt=2, ended_attempt=1, restarts=1, since=107.0, recover_seconds=5.0)
    assert spent(TRAINS, back) == {"training": 5.0, "recovery": 5.0}


def test_a_clock_that_went_back_costs_the_time_since_the_last_write_and_counts_nothing_twice() -> None:
    old = {"measuredAt": format_timestamp(100.0), "unitSeconds": {"training": 40.0}}
    assert spent(TRAINS, TRAINS, old=old, until=70.0) == {"training": 40.0}
    assert spent(TRAINS, TRAINS, old={**old, "measuredAt": format_timestamp(70.0)}, until=75.0) == {"training": 45.0}


def test_time_after_the_end_of_a_job_counts_for_no_unit() -> None:
    assert spent(a_record(UnitState.PENDING, slice=""), a_record(UnitState.PENDING, slice=""), counts=False) == {}


def test_nothing_is_on_record_before_the_first_write() -> None:
    assert account(None, {"u-0": TRAINS}, {"u-0": TRAINS}, None, 100.0, shapes=SHAPES)["unitSeconds"] == NOTHING


def test_interruptions_are_attempts_that_ended_and_units_that_were_given_up() -> None:
    given_up = a_record(UnitState.FAILED, restarts=1, slice="")
    restored = given_up._replace(restarts=0)
    for before, after, known, interruptions in ((TRAINS, BACKS_OFF, 0, 1), (BACKS_OFF, given_up, 1, 2), (given_up, restored, 0, 0)):
        old = {"measuredAt": format_timestamp(0.0), "interruptions": known}
        assert account(old, {"u-0": before}, {"u-0": after}, None, 0.0, shapes=SHAPES)["interruptions"] == interruptions


# --- accelerator-hours --------------------------------------------------------------------------------------------------
def held(
    before: Sequence[UnitStatusRecord],
    after: Sequence[UnitStatusRecord],
    *,
    until: float = 1900.0,
    on_record: dict[str, float] | None = None,
    counts: bool = True,
) -> dict[str, float]:
    """Accelerator-hours after the half hour from second 100 on, rounded to the thousandth."""
    goodput = account(
        {"measuredAt": format_timestamp(100.0), **({"acceleratorHours": on_record} if on_record else {})},
        {unit.name: unit for unit in before},
        {unit.name: unit for unit in after},
        None,
        until,
        shapes=SHAPES,
        counts=counts,
    )
    return {kind: round(hours, 3) for kind, hours in goodput.get("acceleratorHours", {}).items()}


def test_a_unit_holds_the_accelerators_of_its_pool_while_it_has_a_slice() -> None:
    assert held([TRAINS], [TRAINS]) == {"tpu-v5p": 2.0}, "half an hour of 4 chips"
    waits = a_record(UnitState.PENDING, slice="", attempt=0)
    assert held([waits], [waits]) == {}
    assert held([TRAINS], [TRAINS], counts=False) == {}, "the job was over"
    on_cpu = TRAINS._replace(name="c-0", pool="c")
    assert held([on_cpu], [on_cpu]) == {}


def test_hours_of_a_unit_that_goes_on_with_other_hardware_are_by_accelerator() -> None:
    # u-0 left the job between the two writes and counts until the second one, 0.5 h of 4 chips. h-0 has its slice since second 1000:
    # 900 s of 2 hosts with 8 GPUs are 4 hours.
    starts = a_record(UnitState.STARTING, since=1000.0)._replace(name="h-0", pool="h")
    assert held([TRAINS], [starts]) == {"tpu-v5p": 2.0, "nvidia-h100-80gb": 4.0}


def test_a_unit_whose_slice_was_lost_held_it_until_it_left_its_state() -> None:
    # 900 s of 4 chips.
    assert held([TRAINS], [a_record(UnitState.PENDING, slice="", ended_attempt=1, since=1000.0)]) == {"tpu-v5p": 1.0}


@pytest.mark.parametrize("state", [UnitState.FAILED, UnitState.COMPLETED])
def test_a_unit_that_will_not_run_again_holds_nothing(state: UnitState) -> None:
    assert held([a_record(state)], [a_record(state)]) == {}


def test_hours_of_pools_that_are_gone_stay_and_their_last_units_count_no_more() -> None:
    gone = TRAINS._replace(name="x-0", pool="x")
    assert held([TRAINS, gone], [TRAINS, gone], on_record={"tpu-v4": 7.5}) == {"tpu-v4": 7.5, "tpu-v5p": 2.0}


def test_a_clock_that_went_back_adds_no_hours_and_takes_none() -> None:
    assert held([TRAINS], [TRAINS], until=70.0, on_record={"tpu-v5p": 1.0}) == {"tpu-v5p": 1.0}


def test_status_has_hours_of_a_bounded_number_of_kinds() -> None:
    full = {f"kind-{number}": 1.0 for number in range(MAX_KINDS)}
    assert held([TRAINS], [TRAINS], on_record=full) == full


# --- in the status of a job ---------------------------------------------------------------------------------------------
def trained() -> Stage:
    return Stage(a_job().with_learners(1, 2).with_restarts(3, "30s").with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()


def seconds_of(stage: Stage) -> dict[str, float]:
    return dict(Status.model_validate(stage.status).goodput.unit_seconds.model_dump(by_alias=True))  # type: ignore[union-attr]


def test_classes_add_up_to_the_time_of_the_units_that_are_there() -> None:
    stage = trained()
    began = parse_timestamp(stage.status["goodput"]["measuredAt"])
    before = sum(seconds_of(stage).values())
    for _ in range(6):
        stage.advance(stage.config.progress_interval)
        stage.all_contribute(t=stage.now)
        stage.settle()
    passed = parse_timestamp(stage.status["goodput"]["measuredAt"]) - began
    assert passed >= 6 * stage.config.progress_interval
    assert sum(seconds_of(stage).values()) - before == pytest.approx(2 * passed, abs=0.01)


def test_a_crash_is_an_interruption_and_its_return_recovery() -> None:
    stage = trained()
    stage.advance(60)
    stage.learner_exits("v5p-1", 1, 1)
    stage.syncer_says("v5p-1", 1, UnitPhase.DISCONNECTED)
    stage.settle()
    stage.advance(40)
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert stage.status["goodput"]["interruptions"] == 1
    assert seconds_of(stage)["recovery"] == pytest.approx(stage.unit("v5p-1")["recoverSeconds"], abs=1.0)


def test_nothing_is_written_for_goodput_alone() -> None:
    stage = trained()
    stage.settle()
    stage.report = None
    stage.settle()
    written = dict(stage.status)
    for _ in range(20):
        stage.advance(1.0)
        assert stage.step().status is None
    assert stage.status == written


def test_an_operator_that_dies_before_the_write_changes_nothing() -> None:
    left, right = trained(), trained()
    for stage in (left, right):
        stage.advance(60)
        stage.learner_exits("v5p-1", 1, 1)
    left.reconcile_only()
    left.restart_operator()
    left.step()
    right.step()
    assert left.status["goodput"] == right.status["goodput"]


def test_goodput_is_frozen_when_the_job_ends() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.advance(30)
    stage.learner_exits("v5p-0", 1, 0)
    exits(stage.syncer, 0, stage.now)
    stage.step()
    assert stage.true() == {"Accepted", "Complete"}
    ended = stage.status["goodput"]
    assert ended["unitSeconds"]["training"] == pytest.approx(30, abs=2)
    stage.advance(3600)
    stage.edit(ttlSecondsAfterFinished=10**6)
    stage.settle()
    assert stage.status["observedGeneration"] == 2
    assert stage.status["goodput"] == ended


def hours_of(stage: Stage) -> float:
    return float(stage.status["goodput"].get("acceleratorHours", {}).get("tpu-v5p", 0.0))


def test_hours_go_on_with_another_operator_and_stand_still_while_the_job_is_suspended() -> None:
    stage = trained()
    began = hours_of(stage)
    stage.advance(1800)
    stage.restart_operator()  # since the last write: half an hour of two units with 4 chips
    stage.all_contribute()
    stage.settle()
    assert hours_of(stage) - began == pytest.approx(4.0, abs=0.01)
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    suspended = hours_of(stage)
    stage.advance(3600)
    stage.edit(suspend=False)
    stage.settle()
    assert hours_of(stage) == pytest.approx(suspended, abs=0.01)
