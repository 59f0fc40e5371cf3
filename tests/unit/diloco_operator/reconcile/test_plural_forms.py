"""What users read of counts of 0, 1 and 2."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_cli.status_text import status_text
from diloco_cli.view_model import JobView

STARTING = "v5p-0 is starting (bytes-lm-v5p-0-a1-0: waits for a scheduler)"


def a_stage(*, max: int, nodes: int, min: int = 1) -> Stage:
    """A job of up to `max` learners on so many slices; those that have one contribute."""
    job = a_job().with_learners(min, max).with_restarts(0).with_pool(max=max)
    return Stage(job, *(a_tpu_node(f"tpu-{index}") for index in range(nodes)))


@pytest.mark.parametrize(
    ("max", "nodes", "text"),
    [
        (1, 0, "0 of 1 unit has hardware, learners.min is 1; pool v5p needs 1 more slice of tpu-v5p 2x2x1"),
        (2, 0, "0 of 2 units have hardware, learners.min is 1; pool v5p needs 2 more slices of tpu-v5p 2x2x1"),
        (1, 1, "1 of 1 unit has hardware"),
        (2, 1, "1 of 2 units have hardware, learners.min is 1; pool v5p needs 1 more slice of tpu-v5p 2x2x1"),
        (2, 2, "2 of 2 units have hardware"),
    ],
)
def test_placed_counts_units_and_slices(max: int, nodes: int, text: str) -> None:
    stage = a_stage(max=max, nodes=nodes)
    stage.settle()
    assert stage.condition("Placed")["message"].partition("; the fleet")[0] == text


@pytest.mark.parametrize(
    ("min", "nodes", "text"),
    [
        (1, 0, "no learner has hardware, learners.min is 1; v5p-0 waits for a slice, see Placed"),
        (2, 1, f"0 of 1 learner contributes, learners.min is 2; {STARTING}; v5p-1 waits for a slice, see Placed"),
        (3, 1, f"0 of 1 learner contributes, learners.min is 3; {STARTING}; v5p-1, v5p-2 wait for slices, see Placed"),
    ],
)
def test_degraded_counts_units_that_wait(min: int, nodes: int, text: str) -> None:
    stage = a_stage(min=min, max=min, nodes=nodes)
    stage.settle()
    assert stage.condition("Degraded")["message"] == text


@pytest.mark.parametrize(
    ("count", "training", "degraded", "shown"),
    [
        (
            1,
            "1 of 1 learner contributes",
            "1 contributes, learners.min is 1",
            "  1 learner contributes, 1 placed, 1 desired (min 1, max 1)",
        ),
        (2, "2 of 2 learners contribute", "2 contribute, learners.min is 1", "  2 learners contribute, 2 placed, 2 desired (min 1, max 2)"),
    ],
)
def test_learners_that_contribute_are_counted(count: int, training: str, degraded: str, shown: str) -> None:
    stage = a_stage(max=count, nodes=count).train()
    assert (stage.condition("Training")["message"], stage.condition("Degraded")["message"]) == (training, degraded)
    assert shown in status_text(JobView.of(stage.job), stage.now).splitlines()


@pytest.mark.parametrize(
    ("count", "lost", "contribute", "pool"),
    [
        (1, "1 of 3 learners is lost", "; 2 contribute", "pool v5p may have 3 units: 2 placed, 1 given up, see its message"),
        (2, "2 of 3 learners are lost", "; 1 contributes", "pool v5p may have 3 units: 1 placed, 2 given up, see their messages"),
    ],
)
def test_units_that_were_given_up_are_counted(count: int, lost: str, contribute: str, pool: str) -> None:
    stage = a_stage(max=3, nodes=3).train()
    for index in range(count):
        stage.learner_exits(f"v5p-{index}", 1, 65)
        stage.settle()
    assert stage.condition("Degraded")["message"].startswith(f"{lost} until a person acts: v5p-0: ")
    assert stage.status["pools"][0]["message"] == pool
    assert stage.condition("Degraded")["message"].endswith(contribute)


def test_failures_on_the_restart_budget_are_counted() -> None:
    stage = a_stage(max=2, nodes=2).train()
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert stage.unit("v5p-0")["message"].startswith("given up: 1 failure within 1h, learners.restart.limit is 0; the last, attempt 1: ")
