"""A pod that does not end keeps its own host only: its unit goes on elsewhere, and a job that is made again under its name is not in its
way."""

from __future__ import annotations

import copy

from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice
from builders.pods import is_deleted
from builders.stage import Stage
from diloco_operator.kube.timestamps import format_timestamp

STUCK = 91.0  # s; a pod is stuck 60 s after its grace of 30 s


def one_unit_of(nodes: int) -> Stage:
    """It trains on tpu-0."""
    return Stage(a_job().with_learners(1, 1).with_pool(max=1), *(a_tpu_node(f"tpu-{index}") for index in range(nodes))).train()


def evict(stage: Stage) -> None:
    """The pod is deleted, and its process cannot be killed."""
    is_deleted(stage.pod("v5p-0", 1), stage.now)
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining"}
    stage.advance(STUCK)
    stage.settle()


def test_a_unit_whose_pod_does_not_end_starts_on_a_free_host() -> None:
    stage = one_unit_of(2)
    evict(stage)
    unit = stage.unit("v5p-0")
    assert (unit["state"], unit["attempt"], unit["slice"]) == ("Starting", 2, "tpu-1")
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-0-a2-0"]
    assert stage.inventory.reservations(stage.observed().job.key) == {"tpu-0", "tpu-1"}, "its old host is in use until the pod ends"


def test_a_unit_whose_pod_does_not_end_waits_for_it_while_no_other_host_is_free() -> None:
    stage = one_unit_of(1)
    evict(stage)
    assert stage.states() == {"v5p-0": "Draining"}
    assert "node tpu-0 answers but has not ended it" in stage.unit("v5p-0")["message"]
    stage.set_node(a_tpu_node("tpu-1"))
    stage.settle()
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["slice"]) == ("Starting", "tpu-1")


def test_only_a_pod_whose_own_time_has_passed_is_named_as_one_that_does_not_end() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2"), *a_tpu_slice("np-0", 2)).train()
    is_deleted(stage.pod("v5p-0", 1, host=0), stage.now, grace=120)
    is_deleted(stage.pod("v5p-0", 1, host=1), stage.now)
    stage.settle()
    stage.advance(STUCK)
    stage.settle()
    assert "its pod bytes-lm-v5p-0-a1-1 was to end by" in stage.unit("v5p-0")["message"]
    stage.advance(90)
    stage.settle()
    assert "its pod bytes-lm-v5p-0-a1-0 was to end by" in stage.unit("v5p-0")["message"], "the first of two"


def test_a_suspended_job_waits_for_a_pod_that_does_not_end() -> None:
    stage = one_unit_of(2)
    stage.edit(suspend=True)
    stage.settle()
    stage.advance(STUCK)
    stage.settle()
    assert stage.states() == {"v5p-0": "Draining"}
    assert stage.condition("Suspended")["reason"] == "Suspending"


# --- a job that is made again under its name ------------------------------------------------------------------------------
def made_again(*kept: str, silent: str = "") -> Stage:
    """The former job is gone, all but some of its pods, which are being deleted. The new one has room on tpu-1."""
    former = one_unit_of(1)
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"), a_tpu_node("tpu-1"))
    stage.job["metadata"]["uid"] = "uid-of-the-new-job"
    for name in kept:
        stage.pods[name] = copy.deepcopy(former.pods[name])
        is_deleted(stage.pods[name], stage.now)
    if silent:
        stage.set_node(a_tpu_node(silent, ready=False, ready_since=format_timestamp(stage.now)))
        stage.settle()  # the fleet has been as it is for a while when its pods are forced
    stage.advance(60)  # the grace, and 30 s until pods on a node that does not answer are forced
    return stage


def test_a_job_made_again_does_not_take_the_name_of_a_pod_that_still_ends() -> None:
    stage = made_again("bytes-lm-v5p-0-a1-0")
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a1-0", "bytes-lm-v5p-0-a2-0"]
    assert stage.states() == {"v5p-0": "Starting"}


def test_a_pod_of_a_former_job_on_a_node_that_does_not_answer_is_forced() -> None:
    stage = made_again("bytes-lm-v5p-0-a1-0", silent="tpu-0")
    stage.settle()
    assert stage.learner_pods() == ["bytes-lm-v5p-0-a2-0"]
    [delete] = [delete for plan in stage.plans for delete in plan.deletes]
    assert (delete.name, delete.grace_seconds) == ("bytes-lm-v5p-0-a1-0", 0)


def test_a_former_syncer_that_does_not_end_is_named_and_keeps_no_hardware() -> None:
    stage = made_again("bytes-lm-syncer")
    stage.settle()
    assert stage.learner_pods() == []
    assert stage.inventory.reservations(stage.observed().job.key) == frozenset()
    training = stage.condition("Training")
    assert training["reason"] == "NameTaken"
    assert "Pod bytes-lm-syncer of an earlier job of this name is being deleted and has not gone yet" in training["message"]
    del stage.pods["bytes-lm-syncer"]
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting"}
