"""Scenarios for words that no other test of reconcile leads to."""

from __future__ import annotations

from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.pods import exits
from builders.stage import Stage
from diloco.contract import Exit
from diloco_operator.api.names import ANNOTATION_FOLDER


def test_too_few_units_for_the_quorum_are_counted() -> None:
    stage = Stage(a_job().with_learners(1, 2).with_training(quorum=2).with_pool(max=2), a_tpu_node("tpu-0"))
    stage.settle()
    assert stage.condition("Training")["message"] == "1 of 2 units have hardware, training.quorum is 2; see Placed"


def test_what_the_syncer_says_stands_in_the_condition() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.all_contribute(message="writes its snapshots slowly")
    stage.step()
    assert "; the syncer writes its snapshots slowly" in stage.condition("Training")["message"]


def test_many_lost_units_are_named_in_part() -> None:
    nodes = [a_tpu_node(f"tpu-{index}") for index in range(6)]
    stage = Stage(a_job().with_learners(1, 6).with_restarts(0).with_pool(max=6), *nodes).train()
    for index in range(5):
        stage.learner_exits(f"v5p-{index}", 1, 1)
    stage.settle()
    assert "; 1 more; 1 contributes" in stage.condition("Degraded")["message"]


def test_pod_that_failed_without_a_reason_says_so() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0")).train()
    pod = stage.pod("v5p-0", 1)
    exits(pod, 1, stage.now)
    pod["status"] = {"phase": "Failed"}
    stage.step()
    assert "the pod bytes-lm-v5p-0-a1-0 failed (the kubelet gives no reason)" in stage.unit("v5p-0")["lastFailure"]


def test_failed_job_without_a_snapshot_names_the_folder_of_its_claim() -> None:
    """As under `diloco up`."""
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0")).train()
    stage.children["PersistentVolumeClaim"]["metadata"]["annotations"][ANNOTATION_FOLDER] = "/home/me/volumes/bytes-lm-syncer"
    exits(stage.syncer, Exit.BAD_CONTRACT, stage.now)
    stage.syncer["status"]["containerStatuses"][0]["restartCount"] = 1
    stage.settle()
    assert stage.condition("Failed")["message"].endswith(". No snapshot is known in /home/me/volumes/bytes-lm-syncer")
