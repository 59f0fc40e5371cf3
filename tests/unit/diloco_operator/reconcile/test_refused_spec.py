"""A job that runs, and whose spec is edited into one that the operator refuses."""

from __future__ import annotations

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_tpu_node
from builders.stage import Stage


def refused(count: int = 2, **spec: object) -> Stage:
    """All units train; then the template gets a variable that the operator sets itself."""
    job = a_job().with_learners(1, count).with_restarts(3).with_pool(max=count)
    stage = Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(count))).train()
    wrong = template()
    wrong["spec"]["containers"][0]["env"] = [{"name": "DILOCO_UNIT", "value": "mine"}]
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": wrong}], **spec)
    stage.settle()
    return stage


def mend(stage: Stage) -> None:
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template()}])


def test_spec_that_is_refused_is_named_beside_a_job_that_trains_on() -> None:
    stage = refused()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.pools[0].template.spec.containers[0].env[0].name: DILOCO_UNIT is set by the operator" in accepted["message"]
    assert (stage.condition("Training")["status"], stage.condition("Placed")["status"]) == ("True", "True")
    assert stage.states() == {"v5p-0": "Training", "v5p-1": "Training"}
    assert (stage.status["state"], stage.status["reason"]) == ("Degraded", "SpecInvalid")


def test_crashed_units_and_syncer_of_a_refused_spec_show_in_the_conditions() -> None:
    stage = refused()
    for unit in ("v5p-0", "v5p-1"):
        stage.learner_exits(unit, 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "BackingOff", "v5p-1": "BackingOff"}
    stage.syncer["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    stage.advance(600)
    stage.settle()
    assert (stage.condition("Training")["status"], stage.condition("Degraded")["status"]) == ("False", "True")
    assert stage.status["learners"]["contributing"] == 0
    assert stage.live_attempts() == []  # nothing starts


def test_unit_of_a_refused_spec_that_has_ended_gives_its_slice_back_until_the_spec_is_mended() -> None:
    stage = refused()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert [unit["slice"] for unit in stage.status["units"]] == ["", "tpu-1"]
    assert stage.plans[-1].reservations.nodes == {"tpu-1"}
    assert (stage.condition("Placed")["reason"], stage.condition("Degraded")["reason"]) == ("MinimumPlaced", "EnoughLearners")
    stage.learner_exits("v5p-1", 1, 1)
    stage.settle()
    assert (stage.condition("Placed")["status"], stage.condition("Placed")["reason"]) == ("False", "SpecInvalid")
    mend(stage)
    stage.advance(600)
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting", "v5p-1": "Starting"}
    assert stage.condition("Accepted")["status"] == "True"


def test_job_with_a_refused_spec_is_suspended() -> None:
    stage = refused(suspend=True)
    for _ in range(3):
        stage.kubelets_finish_deletions()
        stage.settle()
    assert stage.pods == {}
    assert "Suspended" in stage.true()
    assert stage.condition("Accepted")["reason"] == "SpecInvalid"
    assert stage.status["state"] == "Suspended"


def test_pods_of_a_deleted_job_with_a_refused_spec_are_forced_off_a_node_that_does_not_answer() -> None:
    stage = refused()
    stage.set_node(a_tpu_node("tpu-0", ready=False))
    stage.job["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:01Z"
    for pod in stage.pods.values():
        pod["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:01Z"
    stage.advance(3600)
    assert {delete.name for delete in stage.step().deletes if delete.grace_seconds == 0} == {"bytes-lm-v5p-0-a1-0"}


def test_job_with_a_refused_spec_that_is_done_is_complete() -> None:
    stage = refused()
    stage.syncer["status"]["phase"] = "Succeeded"
    stage.settle()
    assert "Complete" in stage.true()
    assert stage.condition("Accepted")["reason"] == "SpecInvalid"
    assert stage.status["state"] == "Complete"
    mend(stage)
    stage.settle()
    assert stage.condition("Accepted")["reason"] == "SpecValid"


@pytest.mark.parametrize(
    "pool",
    [{"accelerator": "tpu-v99"}, {"template": {"spec": {"containers": "learner"}}}, {"topology": "3x5"}],
    ids=["unknown hardware", "no PodSpec", "unknown topology"],
)
def test_unit_of_a_pool_that_cannot_be_read_is_left_alone_and_watched(pool: dict[str, object]) -> None:
    stage = refused(1)
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], **pool}])
    stage.settle()
    assert (stage.states(), stage.live_attempts()) == ({"v5p-0": "Training"}, [("tpu-0", "v5p-0", 1)])
    assert stage.plans[-1].reservations.nodes == {"tpu-0"}
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.states() == {"v5p-0": "BackingOff"}
