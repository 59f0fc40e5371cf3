"""A pool whose template changes while its units train."""

from __future__ import annotations

from typing import Any

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_gpu_node, a_tpu_node
from builders.stage import Stage
from diloco_operator.kube.client import ApiError, Forbidden

pytestmark = pytest.mark.slow

BROKEN, REPAIRED, BEFORE = 45, 50, 30
"""Grace periods: they tell the templates apart."""
REFUSED_LAYOUT = 65
"""A learner ends so if its parameters are not the job's: a restart would not help."""


def edit_template(stage: Stage, seconds: int, **pool: Any) -> None:
    new = {"template": template(terminationGracePeriodSeconds=seconds), **pool}
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], **new}])


def three_that_train() -> Stage:
    job = a_job().with_learners(1, 3).with_restarts(2).with_pool(max=3)
    stage = Stage(job, *(a_tpu_node(f"tpu-{i}") for i in range(3))).train()
    edit_template(stage, BEFORE)
    finish(stage)
    return stage


def finish(stage: Stage) -> None:
    """Kubelets and syncer do their part until nothing is left to do."""
    for _ in range(8):
        stage.kubelets_finish_deletions()
        stage.settle()
        stage.kubelets_start()
        stage.all_contribute()
        stage.settle()


def fail_next(stage: Stage, code: int = 1) -> None:
    """The newest attempt of v5p-0 starts, and its program ends with an error before it contributes."""
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.kubelets_start()
    stage.learner_exits("v5p-0", stage.unit("v5p-0")["attempt"], code)
    stage.settle()


def broken(code: int = 1) -> Stage:
    """One unit has been replaced, and failed with the new template."""
    stage = three_that_train()
    edit_template(stage, BROKEN)
    stage.settle()
    fail_next(stage, code)
    return stage


def templates(stage: Stage) -> dict[str, int]:
    """Unit -> grace period of its newest pod."""
    return {name: stage.pod(name, stage.unit(name)["attempt"])["spec"]["terminationGracePeriodSeconds"] for name in stage.states()}


def others(stage: Stage) -> set[str]:
    return {state for name, state in stage.states().items() if name != "v5p-0"}


def test_template_that_fails_again_and_again_takes_one_unit() -> None:
    stage = broken()
    for _ in range(2):
        assert others(stage) == {"Training"}
        fail_next(stage)
    stage.advance(60.0)
    stage.settle()
    assert stage.unit("v5p-0")["failures"]
    assert others(stage) == {"Training"}
    assert "Failed" not in stage.true()


def test_template_for_which_a_unit_is_given_up_takes_one_unit() -> None:
    stage = broken(REFUSED_LAYOUT)
    assert stage.states() == {"v5p-0": "Failed", "v5p-1": "Training", "v5p-2": "Training"}
    assert stage.condition("Degraded")["reason"] == "RollOutStopped"


def test_roll_out_that_stopped_is_said_with_the_cause_and_what_to_do() -> None:
    condition = broken().condition("Degraded")
    assert (condition["status"], condition["reason"]) == ("True", "RollOutStopped")
    assert "the new template of pool v5p has stopped after v5p-0" in condition["message"]
    assert "2 units keep the earlier one. Correct the template, or take the change back" in condition["message"]


def test_roll_out_is_still_stopped_while_the_failed_unit_starts_again() -> None:
    stage = broken()
    stage.advance(60.0)
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting", "v5p-1": "Training", "v5p-2": "Training"}
    assert stage.condition("Degraded")["reason"] == "RollOutStopped"


def test_roll_out_goes_on_once_the_unit_contributes() -> None:
    stage = broken()
    stage.advance(60.0)
    finish(stage)
    assert set(templates(stage).values()) == {BROKEN}
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


def test_corrected_template_replaces_all_units_and_the_failed_one_at_once() -> None:
    stage = broken()
    edit_template(stage, REPAIRED)
    stage.settle()
    assert stage.states()["v5p-0"] == "Starting"  # it does not wait for the end of its pause
    assert stage.unit("v5p-0")["failures"] == []
    finish(stage)
    assert set(templates(stage).values()) == {REPAIRED}


def test_change_that_is_taken_back_restarts_the_failed_unit_alone() -> None:
    stage = broken()
    attempts = {name: stage.unit(name)["attempt"] for name in ("v5p-1", "v5p-2")}
    edit_template(stage, BEFORE)
    finish(stage)
    assert set(stage.states().values()) == {"Training"}
    assert {name: stage.unit(name)["attempt"] for name in attempts} == attempts
    assert templates(stage) == dict.fromkeys(("v5p-0", "v5p-1", "v5p-2"), BEFORE)


def test_unit_of_the_new_template_that_loses_its_node_stops_nothing() -> None:
    stage = three_that_train()
    edit_template(stage, REPAIRED)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    stage.kubelets_start()
    stage.all_contribute()
    stage.lose_node("tpu-0")
    stage.settle()
    assert stage.states() == {"v5p-0": "Pending", "v5p-1": "Draining", "v5p-2": "Training"}


# --- before the first unit leaves -----------------------------------------------------------------------------------------
NO_NODE = {"template": template(nodeSelector={"disk": "none has it"})}
NO_TOPOLOGY = {"topology": "2x2x2"}
INVALID = ApiError(422, "Invalid", "spec.containers[0].volumeMounts[0].name: Not found: data")
QUOTA = Forbidden(403, "Forbidden", "exceeded quota: gpus")


def all_train_on(stage: Stage, said: str) -> None:
    """No unit has left, and the condition says why."""
    assert set(stage.states().values()) == {"Training"}
    assert {unit["attempt"] for unit in stage.status["units"]} == {2}
    condition = stage.condition("Degraded")
    assert (condition["status"], condition["reason"]) == ("True", "RollOutStopped")
    assert said in condition["message"]
    assert "3 units keep the earlier one" in condition["message"]


@pytest.mark.parametrize("pool", [NO_NODE, NO_TOPOLOGY], ids=["node selector", "topology"])
def test_template_that_fits_no_slice_takes_no_unit(pool: dict[str, Any]) -> None:
    stage = three_that_train()
    edit_template(stage, BROKEN, **pool)
    finish(stage)
    all_train_on(stage, "no slice of tpu-v5p")
    edit_template(stage, REPAIRED, topology="2x2x1")
    finish(stage)
    assert set(templates(stage).values()) == {REPAIRED}
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


def test_more_hosts_than_the_fleet_has_for_a_unit_take_no_unit() -> None:
    job = a_job().with_learners(1, 1).with_gpu_pool(max=1)
    stage = Stage(job, a_gpu_node("gpu-0")).train()
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "hosts": 2}])
    finish(stage)
    assert (stage.states(), stage.unit("h100-0")["attempt"]) == ({"h100-0": "Training"}, 1)
    assert stage.condition("Degraded")["reason"] == "RollOutStopped"
    stage.set_node(a_gpu_node("gpu-1"))
    finish(stage)
    assert (stage.states(), stage.unit("h100-0")["attempt"]) == ({"h100-0": "Training"}, 2)


def test_template_that_does_not_tolerate_the_taint_of_its_nodes_takes_no_unit() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    tolerated = template(tolerations=[{"key": "team", "operator": "Exists"}])
    job = a_job().with_learners(1, 1).with_pool(max=1, template=tolerated)
    stage = Stage(job, a_tpu_node("tpu-0", taints=[taint])).train()
    edit_template(stage, BROKEN)
    finish(stage)
    assert (stage.states(), stage.unit("v5p-0")["attempt"]) == ({"v5p-0": "Training"}, 1)
    assert stage.condition("Degraded")["reason"] == "RollOutStopped"


def test_template_that_the_api_server_refuses_takes_no_unit_until_it_is_admitted() -> None:
    stage = three_that_train()
    stage.refuses = lambda pod: INVALID
    edit_template(stage, BROKEN)
    finish(stage)
    all_train_on(stage, "before a unit left for it: the API server rejected it: " + INVALID.message)
    stage.refuses = lambda pod: None  # the same template; its dry run comes again by itself
    stage.advance(300)
    finish(stage)
    assert set(templates(stage).values()) == {BROKEN}


@pytest.mark.parametrize(("least", "left"), [(2, 1), (3, 0)])
def test_template_that_is_forbidden_takes_one_unit_of_a_job_with_more_than_its_minimum(least: int, left: int) -> None:
    stage = three_that_train()
    stage.scale(min=least)
    stage.settle()
    stage.refuses = lambda pod: QUOTA
    edit_template(stage, BROKEN)
    for _ in range(8):
        stage.kubelets_finish_deletions()
        for _ in range(4):
            stage.step_rejected(lambda obj: QUOTA.message if "containers" in obj.get("spec", {}) else "")
            stage.step()
    assert sorted(stage.states().values()) == ["Pending"] * left + ["Training"] * (3 - left)
    assert stage.condition("Degraded")["reason"] == "RollOutStopped"


def test_next_unit_leaves_only_when_the_last_one_trains() -> None:
    stage = three_that_train()
    edit_template(stage, REPAIRED)
    stage.settle()
    for state in ("Draining", "Starting", "Joining"):
        assert list(stage.states().values()) == [state, "Training", "Training"]
        stage.kubelets_finish_deletions() if state == "Draining" else stage.kubelets_start()
        stage.settle()
    stage.all_contribute()
    stage.settle()
    assert list(stage.states().values()) == ["Training", "Draining", "Training"]


def test_unit_that_no_scheduler_binds_with_the_new_template_stops_the_roll_out() -> None:
    stage = three_that_train()
    edit_template(stage, BROKEN)
    stage.settle()
    stage.kubelets_finish_deletions()
    stage.settle()
    pod = stage.pod("v5p-0", stage.unit("v5p-0")["attempt"])
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "node(s) had no room"}
    pod["status"]["conditions"] = [{**said, "lastTransitionTime": "2026-11-20T12:00:00Z"}]
    stage.advance(60)
    stage.settle()
    assert others(stage) == {"Training"}
    assert stage.unit("v5p-0")["reason"] == "Unschedulable"
    assert "had no room" in stage.condition("Degraded")["message"]


def test_unit_that_was_given_up_tries_a_changed_template_before_a_healthy_one_does() -> None:
    stage = broken(REFUSED_LAYOUT)
    edit_template(stage, REPAIRED)
    stage.settle()
    assert stage.states() == {"v5p-0": "Starting", "v5p-1": "Training", "v5p-2": "Training"}
    finish(stage)
    assert set(templates(stage).values()) == {REPAIRED}


def test_template_that_changes_while_the_job_finishes_takes_no_unit() -> None:
    stage = three_that_train()
    stage.all_contribute(t=stage.job["spec"]["training"]["steps"], done=True)
    edit_template(stage, BROKEN)
    stage.settle()
    assert set(stage.states().values()) == {"Training"}


# --- the syncer -------------------------------------------------------------------------------------------------------------
def edit_syncer(stage: Stage) -> str:
    """Change its template; returns the uid of the pod that serves."""
    uid: str = stage.syncer["metadata"]["uid"]
    stage.edit(syncer={**stage.job["spec"].get("syncer", {}), "template": {"metadata": {"labels": {"team": "a"}}, "spec": {}}})
    return uid


@pytest.mark.parametrize("error", [INVALID, QUOTA], ids=["invalid", "forbidden"])
def test_syncer_stays_while_its_new_template_is_refused(error: ApiError) -> None:
    stage = three_that_train()
    stage.refuses = lambda pod: error
    uid = edit_syncer(stage)
    finish(stage)
    assert stage.syncer["metadata"]["uid"] == uid
    assert set(stage.states().values()) == {"Training"}
    condition = stage.condition("Degraded")
    assert condition["reason"] == "RollOutStopped"
    assert f"the syncer keeps its earlier template, for the API server rejected it: {error.message}" in condition["message"]
    stage.refuses = lambda pod: None
    stage.advance(300)
    finish(stage)
    assert stage.syncer["metadata"]["uid"] != uid
    assert stage.condition("Degraded")["reason"] == "EnoughLearners"


def test_syncer_that_does_not_run_is_replaced_at_once() -> None:
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1), a_tpu_node("tpu-0"))
    stage.settle()
    stage.refuses = lambda pod: INVALID
    uid = edit_syncer(stage)
    stage.settle()
    assert stage.syncer["metadata"]["uid"] != uid
