"""The syncer's pod and what it is made from."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_node, a_tpu_node
from builders.pods import exits, starts
from builders.stage import Stage
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.report import FaultKind, ReportFault, UnitPhase
from diloco_operator.timeouts import RECONCILE


def trained() -> Stage:
    return Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()


def replace_syncer(stage: Stage) -> None:
    """Another one runs, to which the learner has not connected yet."""
    del stage.pods["bytes-lm-syncer"]
    stage.settle()
    stage.advance(20)
    starts(stage.syncer, stage.now)
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED)
    stage.settle()


def test_vanished_syncer_is_created_again_and_learners_run_on() -> None:
    stage = trained()
    del stage.pods["bytes-lm-syncer"]
    plan = stage.step()
    assert [c.obj["metadata"]["name"] for c in plan.creates] == ["bytes-lm-syncer"]
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("False", "SyncerUnavailable")
    assert "reconnect by themselves" in training["message"]


def test_last_report_of_a_replaced_syncer_says_nothing_of_the_one_that_starts() -> None:
    stage = trained()
    stage.all_contribute(pod_uid=stage.syncer["metadata"]["uid"], t=48, snapshot_t=40, snapshot="snapshots/snapshot-00000003-t40")
    stage.settle()
    assert (stage.condition("Training")["reason"], stage.status["model"]["step"]) == ("QuorumContributing", 40)
    stage.status["model"]["step"] = 48  # the final snapshot, which no report named
    del stage.pods["bytes-lm-syncer"]
    stage.settle()
    starts(stage.syncer, stage.now)
    stage.settle()
    assert (stage.condition("Training")["reason"], stage.status["model"]["step"]) == ("SyncerStarting", 48)


def test_while_the_syncer_is_replaced_its_learners_reconnect_and_the_state_names_the_syncer() -> None:
    """No unit contributes, so the job is degraded; but no event blames the learners, for they wait unharmed."""
    stage = trained()
    stage.plans.clear()
    replace_syncer(stage)
    assert (stage.condition("Training")["status"], stage.states()) == ("False", {"v5p-0": "Joining"})
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "LearnersReconnecting")
    assert degraded["message"] == ("0 of 1 learner contributes, learners.min is 1; 1 reconnects by itself, because the syncer went away")
    assert all("Degraded" not in event.message for plan in stage.plans for event in plan.events)
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "QuorumMissing")


def test_who_does_not_come_back_to_a_new_syncer_is_missed_after_a_while() -> None:
    stage = trained()
    replace_syncer(stage)
    plan = stage.reconcile_only()
    assert plan.requeue_after is not None
    assert plan.requeue_after <= stage.config.report_stale_after + 0.001
    stage.advance(stage.config.report_stale_after)
    stage.syncer_says("v5p-0", 1, UnitPhase.DISCONNECTED)
    stage.step()
    assert stage.condition("Degraded")["reason"] == "LearnersMissing"


def test_who_is_lost_while_the_syncer_is_away_is_missing() -> None:
    stage = trained()
    del stage.pods["bytes-lm-syncer"]
    stage.step()
    stage.learner_exits("v5p-0", 1, 1)
    stage.step()
    assert stage.condition("Degraded")["status"] == "True"


def test_a_syncer_that_asks_for_less_memory_than_the_model_needs_is_named_while_it_trains_and_when_it_fails() -> None:
    stage = trained()
    stage.all_contribute(parameters=1_100_000_000)
    stage.settle()
    told = "the syncer asks for 1.00 GiB of memory, and for 1.1 B parameters and 1 learner needs about"
    assert told in stage.condition("Training")["message"]
    del stage.pods["bytes-lm-syncer"]
    stage.step()
    assert told in stage.condition("Training")["message"]
    small = trained()
    small.all_contribute(parameters=1_000_000)
    small.settle()
    assert "of memory" not in small.condition("Training")["message"]


@pytest.mark.parametrize("memory", ["1Kib", {"an": "object"}])
def test_a_template_whose_memory_is_no_quantity_stops_no_status(memory: object) -> None:
    resources = {"requests": {"memory": memory}, "limits": None}
    syncer = {"template": {"spec": {"containers": [{"name": "syncer", "resources": resources}]}}}
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.edit(syncer=syncer)
    stage.all_contribute(parameters=1_100_000_000)
    stage.settle()
    assert stage.condition("Training")["reason"] == "QuorumContributing"


def test_failed_syncer_is_deleted_and_created_again() -> None:
    stage = trained()
    exits(stage.syncer, 137, stage.now)
    stage.step()
    assert "its pod failed (exit 137 (SIGKILL))" in stage.condition("Training")["message"]
    stage.settle()
    assert stage.syncer["status"]["phase"] == "Pending"


def test_syncer_pods_that_fail_at_once_follow_each_other_ever_more_slowly() -> None:
    stage = Stage(a_job().with_restarts(5, initial="5s").with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.advance(1000)
    exits(stage.syncer, 137, stage.now)
    stage.settle()
    began, created = stage.now, []
    while stage.now < began + 1000:
        if stage.syncer["status"]["phase"] == "Pending":
            created.append(parse_timestamp(stage.syncer["metadata"]["creationTimestamp"]) - began)
            stage.syncer["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}
        stage.settle()
        stage.now += 1
    # The first one comes at once, as the pod before it had run for long. The next ones pause for as long as the syncer is away already, for
    # 5 s at least and 300 s at most: 0 + 5, 5 + 5, 10 + 10 … 320 + 300, 620 + 300.
    assert created == [0, 5, 10, 20, 40, 80, 160, 320, *range(620, 1000, 300)]
    assert "UnexpectedAdmissionError: no device; it is created again on the same volume at 20" in stage.condition("Training")["message"]


def test_syncer_is_never_forced() -> None:
    stage = trained()
    stage.set_node(a_node("cpu-0", ready=False, ready_since="2026-11-20T11:00:00Z"))
    stage.settle()
    stage.advance(100_000)
    stage.settle()
    assert all(d.grace_seconds is None for plan in stage.plans for d in plan.deletes if d.name == "bytes-lm-syncer")
    assert "bytes-lm-syncer" in stage.pods
    assert "kubectl delete node cpu-0" in stage.condition("Training")["message"]


def test_syncer_of_a_lost_node_starts_elsewhere() -> None:
    stage = trained()
    stage.lose_node("cpu-0")
    stage.settle()
    assert stage.syncer["status"]["phase"] == "Pending"
    assert stage.states() == {"v5p-0": "Training"}


def test_changed_training_replaces_the_job_file_and_then_the_syncer_gracefully() -> None:
    stage = trained()
    stage.edit(training={**stage.job["spec"]["training"], "steps": 200})
    plan = stage.step()
    assert [(d.resource.kind, d.grace_seconds) for d in plan.deletes] == [("ConfigMap", None)]
    plan = stage.step()
    assert [c.resource.kind for c in plan.creates] == ["ConfigMap"]
    assert (plan.deletes, [check.pod["metadata"]["name"] for check in plan.pod_checks]) == ((), ["bytes-lm-syncer-next"])
    plan = stage.step()
    (delete,) = plan.deletes
    assert (delete.name, delete.grace_seconds) == ("bytes-lm-syncer", None)
    stage.kubelets_finish_deletions()
    stage.settle()
    assert '"steps":200' in stage.children["ConfigMap"]["data"]["job.json"]
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    assert "bytes-lm-syncer" in stage.pods


def test_edited_job_file_is_put_right() -> None:
    stage = trained()
    stage.children["ConfigMap"]["data"]["job.json"] = "{}"
    stage.settle()
    assert '"steps":100' in stage.children["ConfigMap"]["data"]["job.json"]


def test_name_of_a_foreign_object_is_reported_and_nothing_is_overwritten() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.children["Service"] = {"kind": "Service", "metadata": {"name": "bytes-lm", "uid": "x"}}
    stage.settle()
    training = stage.condition("Training")
    assert training["reason"] == "NameTaken"
    assert "Service bytes-lm exists and is not this job's" in training["message"]
    assert stage.pods == {}


def test_pod_name_of_a_foreign_pod_is_reported() -> None:
    stage = Stage(a_job().with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.syncer["metadata"]["ownerReferences"] = [{"uid": "the-job-before", "controller": True}]
    stage.settle()
    assert "Pod bytes-lm-syncer" in stage.condition("Training")["message"]


def test_crash_looping_syncer_reports_how_it_ends() -> None:
    stage = trained()
    container = stage.syncer["status"]["containerStatuses"][0]
    container["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    container["lastState"] = {
        "terminated": {"exitCode": 1, "message": 'Traceback (most recent call last):\n  File "x.py"\nOSError: No space left on device\n'}
    }
    container["restartCount"] = 4
    stage.step()
    message = stage.condition("Training")["message"]
    assert "restarted 4 times, last after exit 1: OSError: No space left on device" in message
    assert stage.states() == {"v5p-0": "Training"}


def test_restarted_syncer_that_runs_again_is_no_news() -> None:
    stage = trained()
    starts(stage.syncer, stage.now)
    container = stage.syncer["status"]["containerStatuses"][0]
    container["restartCount"] = 1
    container["lastState"] = {"terminated": {"exitCode": 1}}
    stage.all_contribute()
    stage.settle()
    assert "Training" in stage.true()


def test_syncer_on_an_unreachable_node_reports_what_a_person_can_do() -> None:
    stage = trained()
    stage.set_node(a_node("cpu-0", ready=False, taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]))
    stage.settle()
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("False", "SyncerUnavailable")
    assert "kubectl delete node cpu-0" in training["message"]
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in training["message"]


@pytest.mark.slow
def test_deleted_volume_claim_is_reported_while_work_goes_on() -> None:
    stage = trained()
    stage.children["PersistentVolumeClaim"]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    stage.settle()
    degraded = stage.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "VolumeDeleted")
    assert "copy its content" in degraded["message"]
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.unit("v5p-0")["attempt"] == 2  # learners are still replaced
    # No syncer is created on a volume that goes.
    del stage.pods["bytes-lm-syncer"]
    stage.settle()
    assert "bytes-lm-syncer" not in stage.pods


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "PersistentVolumeClaim"])
def test_lost_object_of_a_running_job_is_created_again_and_no_pod_is_disturbed(kind: str) -> None:
    stage = trained()
    before = {name: pod["metadata"]["uid"] for name, pod in stage.pods.items()}
    del stage.children[kind]
    stage.settle()
    assert kind in stage.children
    assert {name: pod["metadata"]["uid"] for name, pod in stage.pods.items()} == before
    assert stage.condition("Training")["status"] == "True"


def test_a_frozen_syncer_is_named_within_seconds_and_its_learners_are_left_alone() -> None:
    stage = trained()
    stage.advance(0)
    stage.now += RECONCILE.syncer_answer  # its pod runs, and no report comes
    assert stage.step().requeue_after is not None
    assert stage.condition("Training")["reason"] == "QuorumContributing", "a busy machine is no frozen syncer"
    stage.now += 1
    stage.step()
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("Unknown", "SyncerUnreachable")
    assert "the syncer has not answered the operator for 20 s, though its pod runs" in training["message"]
    assert (stage.states(), stage.learner_pods()) == ({"v5p-0": "Training"}, ["bytes-lm-v5p-0-a1-0"])
    stage.advance(0)  # the next report
    stage.step()
    assert (stage.condition("Training")["status"], stage.condition("Training")["reason"]) == ("True", "QuorumContributing")


def test_a_job_whose_syncer_falls_silent_is_looked_at_again_by_the_time_it_must_be_named() -> None:
    stage = trained()
    stage.advance(0)
    plan = stage.reconcile_only()
    assert plan.requeue_after is not None
    assert plan.requeue_after <= RECONCILE.syncer_answer + 0.001


def test_a_syncer_whose_reports_are_refused_is_named_and_the_rest_of_the_status_stays() -> None:
    stage = trained()
    stage.report_fault = ReportFault(FaultKind.TOO_LARGE, "a report of the syncer is larger than 1280 KiB, the most for 1024 units")
    stage.step()
    training = stage.condition("Training")
    assert (training["status"], training["reason"]) == ("Unknown", "ReportsRefused")
    assert "is larger than 1280 KiB" in training["message"]
    assert "check the image and command of spec.syncer.template" in training["message"]
    assert stage.states() == {"v5p-0": "Training"}
    assert stage.condition("Placed")["status"] == "True"
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0"]
    stage.report_fault = None
    stage.step()
    assert stage.condition("Training")["reason"] == "QuorumContributing"
