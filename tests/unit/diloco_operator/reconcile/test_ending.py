"""How a job ends: complete, failed, and what stays."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.pods import exits, main_container_exits, phase
from builders.stage import Stage
from diloco.contract import Exit, Result, UnitResult
from diloco_operator.api.losses import LossPoint
from diloco_operator.api.names import ANNOTATION_FOLDER
from diloco_operator.api.status import Status
from diloco_operator.report import UnitPhase
from diloco_operator.timeouts import RECONCILE

RESULT = Result(
    step=100,
    steps=100,
    tokens=64000,
    loss=2.125,
    held_out_loss=2.25,
    units=[UnitResult(unit="v5p-0", tokens=64000, steps=500, contributions=90)],
)


def trained(**spec: object) -> Stage:
    return Stage(a_job().with_pool(max=1).with_spec(**spec), a_tpu_node("tpu-0")).train()


def completed(result: Result = RESULT, **spec: object) -> Stage:
    stage = trained(**spec)
    stage.learner_exits("v5p-0", 1, 0)
    exits(stage.syncer, 0, stage.now, message=result.model_dump_json(by_alias=True))
    stage.step()
    return stage


def test_syncer_that_succeeded_completes_the_job_with_its_figures() -> None:
    stage = completed()
    assert stage.true() == {"Accepted", "Complete"}
    assert stage.condition("Complete")["message"] == (
        "100 of 100 steps, 64000 tokens, training loss 2.1250, held-out loss 2.2500. The model is in claim bytes-lm-syncer (safetensors); "
        "the claim is deleted with the job (syncer.storage.retain: Delete)"
    )
    progress = stage.status["progress"]
    assert (progress["step"], progress["tokens"], progress["heldOutLoss"]) == (100, 64000, 2.25)
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["tokens"], unit["steps"]) == ("Completed", 64000, 500)


@pytest.mark.parametrize("counts", [{"tokens": -1}, {"tokens": 2**63}, {"steps": -1}, {"steps": 2**63}])
def test_a_result_with_a_count_that_no_status_can_have_is_not_read(counts: dict[str, int]) -> None:
    [unit] = RESULT.units
    stage = completed(RESULT.model_copy(update={"units": [unit.model_copy(update=counts)]}))
    assert stage.condition("Complete")["message"].startswith("the syncer ended with status 0, but left no readable result")


def test_end_of_a_job_whose_claim_is_a_folder_of_this_machine_names_the_folder_and_no_deletion() -> None:
    """As under `diloco up`: the folder of the claim stays when the job goes."""
    stage = trained()
    stage.children["PersistentVolumeClaim"]["metadata"]["annotations"][ANNOTATION_FOLDER] = (
        "/home/me/.diloco/volumes/default/bytes-lm-syncer"
    )
    stage.learner_exits("v5p-0", 1, 0)
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.step()
    message = stage.condition("Complete")["message"]
    assert message.endswith(
        ". The model is in /home/me/.diloco/volumes/default/bytes-lm-syncer (safetensors), and stays there until you delete it"
    )
    stage.settle()
    assert stage.condition("Complete")["message"] == message, "it is restated as long as the job exists"


@pytest.mark.parametrize(
    ("figures", "reason", "said"),
    [
        ({"tokens": 0, "contributions": 3, "refused": 21}, "NothingTrained", "21 contributions were refused, 3 merged; the syncer's log"),
        ({"tokens": 0, "contributions": 5}, "NothingTrained", "give the job more steps than its syncInterval"),
        ({"tokens": 0, "ended_by": "Program"}, "NothingTrained", "give the job more steps than its syncInterval"),
        ({"contributions": 90, "refused": 11}, "WorkRefused", "11 contributions were refused, 90 merged; the syncer's log"),
    ],
)
def test_a_complete_job_says_that_its_learners_work_was_lost(figures: dict[str, int], reason: str, said: str) -> None:
    stage = completed(RESULT.model_copy(update=figures))
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    assert said in degraded["message"]
    assert stage.condition("Complete")["status"] == "True"


@pytest.mark.parametrize(
    ("refused", "refusal", "why"),
    [
        (21, "20 as Outlier, such as: the norm is 3", "21 contributions were refused (20 as Outlier, such as: the norm is 3)"),
        (0, "", "none came in time"),
    ],
)
def test_a_job_that_took_its_last_step_and_merged_nothing_failed(refused: int, refusal: str, why: str) -> None:
    stage = completed(RESULT.model_copy(update={"tokens": 0, "contributions": 0, "refused": refused, "refusal": refusal}))
    failed = stage.condition("Failed")
    assert (stage.true(), failed["reason"]) == ({"Accepted", "Failed"}, "NothingTrained")
    assert f"100 of 100 steps are over and nothing was merged: {why}. " in failed["message"]
    assert "raise training.steps, then kubectl diloco retry bytes-lm -n team; a change" in failed["message"]


def test_few_refusals_of_a_complete_job_are_no_warning() -> None:
    """10 of 100: a tenth."""
    stage = completed(RESULT.model_copy(update={"contributions": 90, "refused": 10}))
    assert stage.condition("Degraded")["reason"] == "JobComplete"


def test_the_loss_history_of_a_complete_job_ends_with_its_result() -> None:
    stage = trained()
    stage.advance(10)
    stage.all_contribute(losses=tuple(LossPoint(step, 3.0) for step in range(1, 65)))
    stage.settle()
    stage.learner_exits("v5p-0", 1, 0)
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.report = None  # the operator restarted meanwhile
    stage.settle()
    progress = stage.status["progress"]
    points = progress["losses"].split(" ")
    assert (len(points), points[0], points[-1]) == (64, "1:3", "100:2.125")
    assert progress["heldOutLosses"] == "100:2.25"
    assert Status.model_validate(stage.status)


def test_pods_go_only_after_the_end_is_on_record() -> None:
    stage = trained()
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    plan = stage.step()
    assert plan.status is not None
    assert plan.deletes == ()
    stage.advance(RECONCILE.end_by_itself)
    assert {d.name for d in stage.step().deletes} == {"bytes-lm-v5p-0-a1-0"}


def test_result_survives_an_operator_that_was_not_there() -> None:
    stage = trained()
    stage.learner_exits("v5p-0", 1, 0)
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.restart_operator()
    stage.settle()
    assert "Complete" in stage.true()


def test_gang_is_done_when_its_last_host_is() -> None:
    stage = Stage(a_job().with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    stage.learner_exits("v5p-0", 1, 0, host=0)
    assert stage.step().deletes == ()
    assert stage.states() == {"v5p-0": "Training"}
    stage.learner_exits("v5p-0", 1, 0, host=1)
    stage.step()
    assert stage.states() == {"v5p-0": "Completed"}


def test_sidecar_of_the_syncer_does_not_hold_up_completion() -> None:
    stage = trained()
    main_container_exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.step()
    assert "Complete" in stage.true()


@pytest.mark.parametrize(
    ("code", "states"), [(0, ("Completed", "Pending", "Pending")), (Exit.BAD_STATE, ("Pending", "Pending", "Pending"))]
)
def test_only_units_that_trained_to_the_end_are_completed(code: int, states: tuple[str, ...]) -> None:
    """One trains, one backs off, and one waits for hardware; a job that failed completes none."""
    job = a_job().with_learners(3, 3).with_restarts(3, "30s").with_pool(max=3)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.failed_before("v5p-1")
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "BackingOff", "v5p-2": "Pending"}
    exits(stage.syncer, code, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.syncer["status"]["containerStatuses"][0]["restartCount"] = 1
    stage.step()
    assert tuple(stage.states().values()) == states
    assert [stage.unit(f"v5p-{i}")["message"] for i in (1, 2)] == ["the job is over"] * 2


def test_completion_without_a_readable_result_is_reported() -> None:
    stage = trained()
    exits(stage.syncer, 0, stage.now, message="{truncated")
    stage.step()
    assert stage.condition("Complete")["message"] == (
        "the syncer ended with status 0, but left no readable result. The model is in claim bytes-lm-syncer (safetensors); the claim is "
        "deleted with the job (syncer.storage.retain: Delete)"
    )


def test_finished_job_stays_as_it_is() -> None:
    stage = completed()
    stage.settle()
    before = dict(stage.status)
    stage.advance(100)
    stage.settle()
    assert stage.status == before
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    assert phase(stage.syncer) == "Succeeded"


def test_finished_job_is_deleted_after_its_time_to_live() -> None:
    stage = completed(ttlSecondsAfterFinished=60)
    stage.settle()
    stage.kubelets_finish_deletions()
    assert 59 <= (stage.reconcile_only().requeue_after or 0) <= 60.01
    stage.advance(60)
    stage.step()
    assert stage.job_gone


def test_finished_job_without_a_time_to_live_stays() -> None:
    stage = completed()
    stage.settle()
    stage.advance(10_000_000)
    stage.step()
    assert not stage.job_gone


def test_no_unit_restarts_after_the_last_step() -> None:
    stage = trained()
    stage.all_contribute(done=True, t=100)
    stage.learner_exits("v5p-0", 1, 1)
    assert stage.step().creates == ()
    assert stage.unit("v5p-0")["message"] == "the job is about to end"


@pytest.mark.parametrize("recorded", [True, False], ids=["after Complete", "while the syncer writes its last snapshot"])
def test_a_program_that_fails_once_the_job_is_done_is_said_in_unit_condition_and_event(recorded: bool) -> None:
    stage = Stage(a_job().with_learners(2, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.all_contribute(t=100)
    stage.step()
    if recorded:
        exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
        stage.step()
        assert stage.states() == {"v5p-0": "Completed", "v5p-1": "Completed"}
    stage.learner_exits("v5p-0", 1, 1, message="OSError: [Errno 28] No space left on device")
    stage.learner_exits("v5p-1", 1, 0)
    plan = stage.step()
    stage.settle()
    if recorded:
        assert {event.reason for event in plan.events} == {"UnitFailed", "ProgramsFailed"}
    else:
        assert stage.unit("v5p-0")["lastFailure"].startswith("FailedAtEnd: exit 1: OSError")
        exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.settle()
    assert stage.true() == {"Accepted", "Complete", "Degraded"}
    assert stage.states() == {"v5p-0": "Failed", "v5p-1": "Completed"}
    unit, said = stage.unit("v5p-0"), "exit 1: OSError: [Errno 28] No space left on device"
    assert (unit["reason"], unit["lastFailure"], said in unit["message"]) == ("FailedAtEnd", f"FailedAtEnd: {said}", True)
    assert (unit["tokens"], unit["steps"]) == (64000, 500), "the figures of the result stay"
    degraded = stage.condition("Degraded")
    assert (degraded["reason"], degraded["message"]) == ("ProgramsFailed", f"the job is complete, but v5p-0 has failed ({unit['message']})")
    assert stage.status["state"] == "Complete"
    before = dict(stage.status)
    stage.settle()
    assert stage.status == before, "it is said once"


def test_a_job_whose_final_snapshot_has_no_room_says_that_training_is_done_and_what_is_missing() -> None:
    stage = trained()
    stage.all_contribute(t=100, snapshot_t=0)
    stage.settle()
    assert stage.condition("Complete")["message"] == "the last outer step is done; the syncer writes the final snapshot"
    error = "snapshots of /state: it needs 3.0 MiB, and 1.2 MiB are free"
    stage.all_contribute(t=100, snapshot_t=0, snapshot_error=error)
    stage.learner_exits("v5p-0", 1, 0)
    stage.settle()
    assert stage.states() == {"v5p-0": "Completed"}
    told = (
        "training is done, and the job waits for its final snapshot, which cannot be stored and is tried again; the newest one is of outer "
        f"step 0: {error}. Make room on the syncer's volume"
    )
    for condition in ("Complete", "Degraded"):
        assert stage.condition(condition)["message"].startswith(told)
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "SnapshotFailed")


def test_a_program_that_leaves_its_loop_early_is_named_at_once_and_counts_as_failed_with_its_end() -> None:
    stage = trained()
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED, left=True)
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["reason"]) == ("Joining", "LeftEarly")
    for condition in ("Degraded", "Training"):
        assert "is joining" not in stage.condition(condition)["message"]
    assert (
        "v5p-0 has left (its program left the training loop before the job was done, and runs on" in stage.condition("Degraded")["message"]
    )
    stage.learner_exits("v5p-0", 1, 0)
    stage.step()
    unit = stage.unit("v5p-0")
    assert (unit["attempt"], unit["lastFailure"].partition(":")[0]) == (2, "LeftEarly"), "in the same reconcile, without a wait"


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize(("before", "state"), [(2.0, "Failed"), (20.0, "")])  # "": it is stopped with the job
def test_a_program_that_fails_a_moment_before_the_report_of_the_last_step_failed_at_the_end(
    before: float, state: str, failures: int
) -> None:
    stage = Stage(a_job().with_restarts(3, "5m").with_pool(max=1), a_tpu_node("tpu-0")).train()
    if failures:
        stage.failed_before()
    stage.learner_exits("v5p-0", 1, 1, message="LoopError: other values than the final ones")
    stage.settle()
    assert stage.states() == {"v5p-0": "BackingOff" if failures else "Starting"}
    stage.advance(before)
    stage.all_contribute(t=100)
    stage.settle()
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.settle()
    never_ran = "Pending" if failures else "Completed"  # its next attempt had begun to start, and was stopped with the job
    assert stage.states() == {"v5p-0": state or never_ran}


def test_a_program_that_runs_on_when_the_job_is_over_is_stopped_and_named_and_has_not_failed() -> None:
    stage = trained()
    exits(stage.syncer, 0, stage.now, message=RESULT.model_dump_json(by_alias=True))
    stage.step()
    assert not stage.unit("v5p-0").get("reason"), "it may still end by itself"
    stage.advance(RECONCILE.end_by_itself)
    stage.step()
    exits(stage.pod("v5p-0", 1), 143, stage.now)
    stage.settle()
    assert (stage.states(), stage.condition("Degraded")["reason"]) == ({"v5p-0": "Completed"}, "JobComplete")
    assert stage.unit("v5p-0")["reason"] == "StoppedAtEnd"
    assert "had not ended 30s after the job was complete" in stage.unit("v5p-0")["message"]


def test_a_unit_that_failed_at_the_end_starts_again_where_the_job_goes_on() -> None:
    stage = trained()
    stage.learner_exits("v5p-0", 1, 1)
    stage.all_contribute(t=100, steps=100)
    stage.settle()
    stage.edit(training={**stage.job["spec"]["training"], "steps": 200})
    stage.settle()
    stage.kubelets_finish_deletions()  # the syncer of fewer steps
    stage.settle()
    stage.kubelets_start()
    stage.settle()
    assert stage.unit("v5p-0")["attempt"] == 2


def test_job_fails_when_no_unit_can_reach_the_quorum_any_more() -> None:
    stage = trained()
    stage.learner_exits("v5p-0", 1, 65, message="expected wte of 256x64")
    stage.step()
    assert stage.true() == {"Accepted", "Failed"}
    failed = stage.condition("Failed")
    assert failed["reason"] == "LayoutRefused"
    for part in ("expected wte of 256x64", "training.quorum 1", "claim bytes-lm-syncer"):
        assert part in failed["message"]
    stage.settle()
    assert "deletionTimestamp" in stage.syncer["metadata"]
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]  # ended by itself: its log says why


def test_job_with_a_quorum_of_two_fails_with_one_unit_left() -> None:
    job = a_job().with_learners(2, 2).with_restarts(0).with_pool(max=2).with_training(quorum=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-1", 1, 1)
    stage.step()
    assert stage.condition("Failed")["reason"] == "RestartsExhausted"


def test_unusable_state_fails_the_job_and_reports_that_nothing_was_overwritten() -> None:
    stage = trained()
    container = stage.syncer["status"]["containerStatuses"][0]
    container["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    log = "INFO diloco.syncer.main: looks for snapshots\n" * 40 + "diloco syncer: step-240: checksum of fragment 3 differs\n"
    container["lastState"] = {"terminated": {"exitCode": 69, "message": log}}
    container["restartCount"] = 1
    stage.step()
    failed = stage.condition("Failed")
    assert failed["reason"] == "StateUnusable"
    assert "cannot be used: diloco syncer: step-240: checksum of fragment 3 differs. Nothing was overwritten" in failed["message"]


def test_a_model_to_start_from_that_cannot_be_used_fails_the_job_and_names_it() -> None:
    stage = Stage(a_job().with_pool(max=1).with_spec(startFrom={"uri": "s3://bucket/bsae"}), a_tpu_node("tpu-0"))
    stage.settle()
    said = "diloco syncer: spec.startFrom.uri s3://bucket/bsae: it does not exist"
    exits(stage.syncer, Exit.BAD_START, stage.now, message=said)
    stage.step()
    failed = stage.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "StartUnusable")
    assert f"cannot begin with the model of spec.startFrom: {said}. Correct spec.startFrom.uri" in failed["message"]
