"""A job that cannot start until a person acts keeps no hardware from others, says so, and starts once it can."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import is_unschedulable, starts
from builders.stage import Stage
from diloco_operator.report import Report

QUOTA = 'pods "x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1, limited: pods=1'
NO_CLASS = 'running PreFilter plugin "VolumeBinding": storageclass.storage.k8s.io "fats" not found'
GIVEN_BACK = "0 of 1 unit has hardware, learners.min is 1; it takes none until the job can start, see Training"


def a_stage(**spec: Any) -> Stage:
    return Stage(a_job().with_learners(1, 1).with_pool(max=1).with_spec(**spec), a_tpu_node("tpu-0"))


def reserved(stage: Stage) -> frozenset[str]:
    return frozenset(stage.inventory.reservations(stage.observed().job.key))


def assert_others_may_take_its_hardware(stage: Stage, reason: str) -> None:
    assert reserved(stage) == frozenset()
    assert stage.learner_pods() == []
    assert (stage.condition("Placed")["reason"], stage.condition("Placed")["message"]) == ("CannotStart", GIVEN_BACK)
    assert stage.condition("Training")["reason"] == reason
    assert stage.unit("v5p-0")["message"].endswith("others may take its hardware until then")
    request = stage.plans[-1].request
    assert request is not None
    assert [pool.wanted for pool in request.pools] == [0], "nor does it ask for any"


def test_a_job_whose_syncer_a_quota_refuses_takes_hardware_only_when_it_tries_again() -> None:
    stage = a_stage()
    for _ in range(4):
        stage.step_rejected(lambda obj: QUOTA if obj["metadata"]["labels"].get("diloco.dev/component") == "syncer" else "")
    assert_others_may_take_its_hardware(stage, "WriteRefused")
    stage.advance(6)  # the first retry comes after 5 s
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
    assert reserved(stage) == {"tpu-0"}


def test_a_job_whose_name_is_taken_takes_hardware_once_the_name_is_free() -> None:
    stage = a_stage()
    stage.children["Service"] = {"metadata": {"name": "bytes-lm", "namespace": "ml", "uid": "of-another", "labels": {}}}
    stage.settle()
    assert_others_may_take_its_hardware(stage, "NameTaken")
    del stage.children["Service"]
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}


def of_a_named_class() -> Stage:
    """Its claim exists, and nothing has bound it yet."""
    stage = a_stage(syncer={"storage": {"className": "fats"}})
    stage.step()
    stage.children["PersistentVolumeClaim"]["status"] = {"phase": "Pending"}
    stage.settle()
    return stage


def test_no_learner_starts_while_a_storage_class_may_be_mistyped() -> None:
    stage = of_a_named_class()
    assert stage.learner_pods() == []
    assert (
        "no scheduler has found a node for PersistentVolumeClaim bytes-lm-syncer of StorageClass fats yet" in stage.unit("v5p-0")["message"]
    )
    is_unschedulable(stage.syncer, NO_CLASS)
    stage.settle()
    assert stage.learner_pods() == []
    assert stage.condition("Training")["reason"] == "VolumePending"
    assert reserved(stage) == {"tpu-0"}, "a volume may be late"
    stage.advance(300)
    stage.settle()
    assert_others_may_take_its_hardware(stage, "VolumePending")


def test_learners_start_once_a_scheduler_has_found_a_node_for_the_claim() -> None:
    stage = of_a_named_class()
    stage.children["PersistentVolumeClaim"]["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "cpu-0"}
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]


@pytest.mark.parametrize("reason", ["VolumePending", "WriteRefused"])
def test_learners_that_run_in_vain_give_their_hardware_back(reason: str) -> None:
    stage = a_stage()
    stage.settle()
    stage.syncer["metadata"]["creationTimestamp"] = "2026-11-20T12:00:00Z"
    stage.kubelets_start()
    if reason == "VolumePending":
        stage.syncer["status"] = {"phase": "Pending"}
        is_unschedulable(stage.syncer, "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims")
        stage.children["PersistentVolumeClaim"] |= {"status": {"phase": "Pending"}}
        stage.children["PersistentVolumeClaim"]["spec"]["storageClassName"] = "gp3"
    else:
        del stage.pods["bytes-lm-syncer"]

    def refuses(obj: dict[str, Any]) -> str:
        return QUOTA if obj["metadata"]["labels"].get("diloco.dev/component") == "syncer" else ""

    began = stage.now
    for _ in range(60):
        stage.step_rejected(refuses)
        stage.step_rejected(refuses)
        if stage.states() == {"v5p-0": "Draining"}:
            break
        assert stage.states() in ({"v5p-0": "Starting"}, {"v5p-0": "Joining"})
        stage.advance(10)
    assert stage.now - began == 300
    stage.kubelets_finish_deletions()
    stage.step_rejected(refuses)
    stage.step_rejected(refuses)
    assert_others_may_take_its_hardware(stage, reason)


# --- a syncer that does not serve ---------------------------------------------------------------------------------------
def crashes(stage: Stage, times: int = 1) -> None:
    """The syncer's container; its kubelet waits before it starts it again."""
    stage.report = None
    container = stage.syncer["status"]["containerStatuses"][0]
    container["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    container["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    container["restartCount"] = times


def crash_loop(stage: Stage, seconds: int) -> None:
    """For so long: it runs for 500 s without a report, as it reads its snapshot, then it is killed, and waits for 100 s."""
    for times in range(2, 2 + seconds // 600):
        stage.advance(100)
        starts(stage.syncer, stage.now)
        stage.settle()
        stage.advance(500)
        stage.settle()
        crashes(stage, times)
        stage.settle()


def test_units_of_a_syncer_that_crashes_for_an_hour_give_their_hardware_back_until_it_serves() -> None:
    stage = a_stage().train()
    crashes(stage)
    stage.settle()
    crash_loop(stage, 3000)
    assert stage.states() == {"v5p-0": "Training"}, "it may come back, and the unit would have to start anew"
    assert "Learners reconnect by themselves; after 1h without it they give their hardware back" in stage.condition("Training")["message"]
    crash_loop(stage, 600)
    assert stage.states() == {"v5p-0": "Draining"}
    stage.kubelets_finish_deletions()
    stage.settle()
    assert_others_may_take_its_hardware(stage, "SyncerUnavailable")
    assert "has not served since 2026-11-20T12:00:00Z: it has restarted 2 times" in stage.condition("Training")["message"]
    crash_loop(stage, 600)
    assert stage.learner_pods() == [], "a container that runs for a moment does not serve"
    starts(stage.syncer, stage.now)
    stage.report = Report(received_at=stage.now, t=10, steps=100)
    stage.settle()
    assert (stage.states(), "syncerDownSince" in stage.status) == ({"v5p-0": "Starting"}, False)


def test_units_of_a_syncer_that_finds_no_node_for_an_hour_give_their_hardware_back() -> None:
    stage = a_stage()
    stage.settle()
    starts(stage.pod("v5p-0", 1), stage.now)
    is_unschedulable(stage.syncer, "0/1 nodes are available: 1 Insufficient cpu.")
    stage.settle()
    stage.advance(3599)
    stage.settle()
    assert reserved(stage) == {"tpu-0"}
    stage.advance(1)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    assert_others_may_take_its_hardware(stage, "SyncerStarting")
    assert "Insufficient cpu" in stage.condition("Training")["message"]


def test_a_unit_that_pauses_keeps_no_slice_either() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_restarts(5, initial="1m").with_pool(max=1), a_tpu_node("tpu-0")).train()
    crashes(stage)
    stage.settle()
    stage.advance(3595)
    stage.failed_before()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert (stage.states(), reserved(stage)) == ({"v5p-0": "BackingOff"}, frozenset({"tpu-0"}))
    stage.advance(5)
    stage.settle()
    assert (stage.unit("v5p-0")["reason"], reserved(stage)) == ("WaitingForSyncer", frozenset())


def test_units_of_a_syncer_that_runs_and_that_the_operator_does_not_reach_keep_their_hardware() -> None:
    stage = a_stage().train()
    crashes(stage)
    stage.settle()
    stage.advance(10)
    starts(stage.syncer, stage.now)
    for _ in range(100):
        stage.advance(100)
        stage.settle()
    assert stage.condition("Training")["reason"] == "SyncerUnreachable"
    assert (stage.states(), "syncerDownSince" in stage.status) == ({"v5p-0": "Training"}, False)


def test_a_suspended_job_counts_the_time_without_a_syncer_anew() -> None:
    stage = a_stage().train()
    crashes(stage)
    stage.settle()
    stage.edit(suspend=True)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.pods.clear()
    stage.settle()
    stage.advance(10_000)
    stage.edit(suspend=False)
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
    assert stage.status["syncerDownSince"] == "2026-11-20T14:46:40Z"
