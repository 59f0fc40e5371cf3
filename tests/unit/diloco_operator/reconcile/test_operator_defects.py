"""What happens to a unit and is no row of its table is a defect of the operator. It costs that unit its attempt, and the job nothing."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from diloco_operator.reconcile.units.states import State
from diloco_operator.reconcile.units.transitions import UnitEvent
from diloco_operator.report import UnitPhase


def one_that_cannot_be_asked_to_leave(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """One unit trains, another one joins, and the table does not let it leave from there."""
    stage = Stage(a_job().with_learners(1, 2).with_pool(max=2), a_tpu_node("tpu-0"), a_tpu_node("tpu-1")).train()
    stage.syncer_says("v5p-1", 1, UnitPhase.JOINING)
    stage.settle()
    assert {name: stage.unit(name)["reason"] for name in stage.states()} == {"v5p-0": "", "v5p-1": "TakingParameters"}
    row = UnitEvent.ASKED_TO_LEAVE.row
    monkeypatch.setattr(UnitEvent.ASKED_TO_LEAVE, "_value_", row._replace(before=row.before - {State.COPYING_STATE}))
    return stage


def test_suspended_job_ends_although_one_of_its_units_meets_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = one_that_cannot_be_asked_to_leave(monkeypatch)
    stage.edit(suspend=True)
    plan = stage.step()
    assert stage.states() == {"v5p-0": "Draining", "v5p-1": "Pending"}
    [event] = [event for event in plan.events if event.reason == "OperatorDefect"]
    assert (event.type, event.unit) == ("Warning", "v5p-1")
    assert event.unit_message.startswith("attempt 1: ASKED_TO_LEAVE cannot lead from COPYING_STATE to DRAINING (Draining, Suspended)")
    for _ in range(3):
        stage.settle()
        stage.kubelets_finish_deletions()
    assert stage.condition("Suspended")["reason"] == "Suspended"
    assert stage.pods == {}


def test_unit_that_meets_a_defect_starts_again_after_the_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = one_that_cannot_be_asked_to_leave(monkeypatch)
    stage.revoked = {"v5p-1": "ml/other/uid-9"}
    stage.settle()
    assert (stage.states()["v5p-0"], stage.unit("v5p-1")["reason"]) == ("Training", "OperatorDefect")
    stage.revoked = {}
    stage.kubelets_finish_deletions()
    stage.advance(299)  # restart.backoff.max is 300 s by default
    stage.settle()
    assert stage.unit("v5p-1")["attempt"] == 1
    stage.advance(1)
    stage.settle()
    assert (stage.states(), stage.unit("v5p-1")["attempt"]) == ({"v5p-0": "Training", "v5p-1": "Starting"}, 2)
