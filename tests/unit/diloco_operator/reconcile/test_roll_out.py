"""A pool whose template changes while its units train."""

from __future__ import annotations

import pytest
from builders.jobs import a_job, template
from builders.nodes import a_tpu_node
from builders.stage import Stage

pytestmark = pytest.mark.slow

BROKEN, REPAIRED, BEFORE = 45, 50, 30
"""Grace periods: they tell the templates apart."""
REFUSED_LAYOUT = 65
"""A learner ends so if its parameters are not the job's: a restart would not help."""


def edit_template(stage: Stage, seconds: int) -> None:
    stage.edit(pools=[{**stage.job["spec"]["pools"][0], "template": template(terminationGracePeriodSeconds=seconds)}])


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
