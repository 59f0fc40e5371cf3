"""Pods that ended by themselves stay for their logs, and hold nothing."""

from __future__ import annotations

import copy

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.pods import exits, is_disrupted, is_ended_by_its_node, main_container_exits, phase
from builders.stage import Stage
from diloco.contract import Exit, Result
from diloco_operator.reconcile import project_pod
from diloco_operator.timeouts import RECONCILE

RESULT = Result(step=100, steps=100, tokens=64000, units=[]).model_dump_json(by_alias=True)


def one_unit(initial: str = "0s", **spec: object) -> Stage:
    job = a_job().with_restarts(10, initial).with_pool(max=1).with_spec(**spec)
    return Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()


def gang() -> Stage:
    return Stage(a_job().with_restarts(10, "30s").with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()


def fail(stage: Stage, attempt: int, code: int = 1) -> None:
    """The attempt fails, and the next one trains."""
    stage.learner_exits("v5p-0", attempt, code)
    train_again(stage)


def train_again(stage: Stage) -> None:
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.settle()


def ended(stage: Stage) -> dict[str, str]:
    """Learner pods that have ended, and their phases."""
    return {
        name.removeprefix("bytes-lm-"): phase(stage.pods[name]) for name in stage.learner_pods() if phase(stage.pods[name]) != "Running"
    }


# --- while the job goes on ----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_failed_pod_stays_until_the_next_attempt_has_failed_too() -> None:
    stage = one_unit()
    for attempt in (1, 2, 3):
        fail(stage, attempt)
        assert ended(stage) == {f"v5p-0-a{attempt}-0": "Failed"}
        assert stage.unit("v5p-0")["failedAttempt"] == attempt
        assert stage.unit("v5p-0")["lastFailure"] == "Crashed: exit 1"  # also while it trains again
        assert stage.states() == {"v5p-0": "Training"}


def test_hosts_of_a_failed_gang_that_had_ended_stay_and_those_that_run_go() -> None:
    stage = gang()
    stage.failed_before()
    stage.learner_exits("v5p-0", 1, 0, host=0)
    stage.learner_exits("v5p-0", 1, 1, host=1)
    stage.settle()
    assert ended(stage) == {"v5p-0-a1-0": "Succeeded", "v5p-0-a1-1": "Failed"}
    stage.advance(31)
    train_again(stage)
    stage.learner_exits("v5p-0", 2, 1, host=1)
    stage.settle()
    stage.kubelets_finish_deletions()
    assert ended(stage) == {"v5p-0-a2-1": "Failed"}


@pytest.mark.slow
def test_attempt_that_was_disrupted_leaves_nothing_and_displaces_nothing() -> None:
    stage = one_unit()
    fail(stage, 1)
    is_disrupted(stage.pod("v5p-0", 2))
    train_again(stage)
    assert stage.unit("v5p-0")["attempt"] == 3
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}
    assert (stage.unit("v5p-0")["failedAttempt"], stage.unit("v5p-0")["lastFailure"]) == (1, "Crashed: exit 1")
    is_ended_by_its_node(stage.pod("v5p-0", 3), "Evicted")
    train_again(stage)
    assert stage.unit("v5p-0")["attempt"] == 4
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}


def test_pod_whose_sidecar_runs_on_goes() -> None:
    stage = one_unit("30s")
    main_container_exits(stage.pod("v5p-0", 1), 1, stage.now)
    stage.settle()
    stage.kubelets_finish_deletions()
    assert stage.learner_pods() == []


def test_unit_that_was_given_up_keeps_the_pod_that_says_why() -> None:
    job = a_job().with_learners(1, 2).with_pool(max=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-0", 1, Exit.REFUSED_LAYOUT)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Failed"
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}


def test_program_that_ended_too_early_keeps_its_pod() -> None:
    stage = one_unit()
    stage.learner_exits("v5p-0", 1, 0)
    stage.settle()
    assert stage.states() == {"v5p-0": "Completed"}
    assert ended(stage) == {"v5p-0-a1-0": "Succeeded"}
    stage.advance(61)
    train_again(stage)
    assert stage.unit("v5p-0")["attempt"] == 2
    assert ended(stage) == {"v5p-0-a1-0": "Succeeded"}


@pytest.mark.parametrize("when", ["while the next attempt trains", "while the unit backs off"])
def test_deletion_of_an_ended_pod_by_others_changes_nothing(when: str) -> None:
    """`kubectl drain` deletes ended pods, and so does Kubernetes when there are too many."""
    stage = one_unit("30s")
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    if when.startswith("while the next"):
        stage.advance(31)
        train_again(stage)
    before = copy.deepcopy(stage.status)
    del stage.pods["bytes-lm-v5p-0-a1-0"]
    plan = stage.step()
    assert plan.empty
    assert plan.events == ()
    assert stage.status == before


def test_ended_pods_hold_no_node() -> None:
    stage = one_unit("30s")
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    stage.set_node(a_tpu_node("tpu-0", ready=False))
    stage.advance(400)
    train_again(stage)
    train_again(stage)
    assert stage.unit("v5p-0")["slice"] == "tpu-1"
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}
    assert stage.reconcile_only().reservations.nodes == {"tpu-1"}
    stage.restart_operator()
    assert stage.inventory.reservations(stage.observed().job.key) == {"tpu-1"}


def test_ended_pods_of_units_of_a_removed_pool_go_with_the_unit() -> None:
    job = a_job().with_learners(1, 2).with_restarts(10, "30s").with_pool(max=1).with_pool("other", max=1)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.failed_before("other-0")
    stage.learner_exits("other-0", 1, 1)
    stage.settle()
    assert ended(stage) == {"other-0-a1-0": "Failed"}
    stage.edit(pools=[pool for pool in stage.job["spec"]["pools"] if pool["name"] != "other"])
    stage.settle()
    assert ended(stage) == {}
    assert set(stage.states()) == {"v5p-0"}


@pytest.mark.slow
def test_suspended_job_keeps_its_failed_pods_and_resumes_beside_them() -> None:
    stage = one_unit()
    fail(stage, 1)
    stage.edit(suspend=True)
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    assert sorted(stage.pods) == ["bytes-lm-v5p-0-a1-0"]
    assert "Suspended" in stage.true()
    stage.edit(suspend=False)
    train_again(stage)
    train_again(stage)
    assert stage.states() == {"v5p-0": "Training"}
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}


@pytest.mark.slow
def test_lost_status_is_rebuilt_beside_ended_pods() -> None:
    stage = one_unit()
    fail(stage, 1)
    stage.job["status"] = {}
    stage.restart_operator()
    train_again(stage)
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["failedAttempt"], len(unit["failures"])) == ("Training", 2, 1, 1)
    assert ended(stage) == {"v5p-0-a1-0": "Failed"}


def test_operator_keeps_of_an_ended_learner_no_more_of_its_log_than_status_shows() -> None:
    """A kubelet puts up to 4 KiB of it into the pod's status."""
    stage = one_unit("30s")
    stage.failed_before()
    stage.learner_exits("v5p-0", 1, 1, message="frame\n" * 500 + "ValueError: bad batch\r\n")
    termination = project_pod(stage.pod("v5p-0", 1)).termination
    assert termination is not None
    assert termination.message == "ValueError: bad batch"
    stage.settle()
    assert "exit 1: ValueError: bad batch;" in stage.unit("v5p-0")["message"]


def test_ended_pod_of_the_syncer_does_not_stand_in_the_way_of_the_next() -> None:
    stage = one_unit()
    exits(stage.syncer, 1, stage.now)
    stage.syncer["status"] |= {"reason": "Evicted"}
    before = stage.syncer["metadata"]["uid"]
    stage.settle()
    assert stage.syncer["metadata"]["uid"] != before


# --- once it is over ----------------------------------------------------------------------------------------------------
def complete(stage: Stage) -> Stage:
    exits(stage.syncer, 0, stage.now, message=RESULT)
    stage.settle()
    assert "Complete" in stage.true()
    return stage


@pytest.mark.slow
def test_completed_pods_and_the_last_failed_one_stay_until_the_job_is_deleted() -> None:
    stage = one_unit(ttlSecondsAfterFinished=600)
    fail(stage, 1)
    stage.learner_exits("v5p-0", 2, 0)
    complete(stage)
    stage.advance(500)
    stage.restart_operator()
    stage.settle()
    assert ended(stage) == {"v5p-0-a1-0": "Failed", "v5p-0-a2-0": "Succeeded"}
    assert phase(stage.syncer) == "Succeeded"
    plan = stage.reconcile_only()
    assert plan.empty
    assert plan.reservations.nodes == frozenset()
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 100.01
    stage.advance(100)
    stage.step()
    assert stage.job_gone  # and garbage collection takes the rest


@pytest.mark.parametrize("code", [0, 1])
def test_learner_may_end_by_itself_after_the_syncer(code: int) -> None:
    stage = complete(one_unit())
    plan = stage.reconcile_only()
    assert plan.empty
    assert plan.requeue_after == pytest.approx(RECONCILE.end_by_itself, abs=0.01)
    assert plan.reservations.nodes == {"tpu-0"}
    stage.learner_exits("v5p-0", 1, code)
    stage.advance(RECONCILE.end_by_itself)
    stage.settle()
    assert ended(stage) == {"v5p-0-a1-0": "Succeeded" if code == 0 else "Failed"}


def test_learner_that_does_not_end_with_the_job_is_deleted() -> None:
    stage = complete(one_unit())
    stage.advance(RECONCILE.end_by_itself)
    assert [delete.name for delete in stage.step().deletes] == ["bytes-lm-v5p-0-a1-0"]


def test_pods_of_a_failed_job_that_run_go_at_once() -> None:
    job = a_job().with_learners(2, 2).with_pool(max=2).with_training(quorum=2)
    stage = Stage(job, a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.learner_exits("v5p-1", 1, Exit.REFUSED_LAYOUT)
    stage.step()
    assert "Failed" in stage.true()
    assert {delete.name for delete in stage.step().deletes} == {"bytes-lm-v5p-0-a1-0", "bytes-lm-syncer"}
    stage.kubelets_finish_deletions()
    stage.settle()
    assert sorted(stage.pods) == ["bytes-lm-v5p-1-a1-0"]


def test_node_that_does_not_answer_holds_up_no_end() -> None:
    stage = complete(one_unit())
    stage.set_node(a_tpu_node("tpu-0", ready=False))
    stage.advance(RECONCILE.end_by_itself)
    stage.settle()
    stage.advance(1000)
    stage.settle()
    assert stage.learner_pods() == []
