"""A cluster that was restored from a backup: status and pods are older than what the syncer knows."""

from __future__ import annotations

import copy

import pytest
from builders import timelines as t
from builders.jobs import a_job
from builders.nodes import a_tpu_node
from builders.stage import Stage
from builders.timelines import at, has, learner_pods, unit
from diloco_operator.report import UnitPhase


@pytest.fixture
def restored() -> Stage:
    """One unit has trained in attempts 1 to 3. The cluster is as it was in attempt 1, and the syncer's volume is not."""
    job = a_job().with_restarts(2, "0s").with_pool(max=1).with_training(quorum=1)
    stage = Stage(job, a_tpu_node("tpu-0")).train()
    before = copy.deepcopy((stage.job["status"], stage.pods))
    for attempt in (1, 2):
        stage.learner_exits("v5p-0", attempt, 137)
        t.play(stage, at(0, t.reconciled, t.deleted_pods_end, t.reconciled, t.pods_run, unit(attempt=attempt + 1)))
    stage.job["status"], stage.pods = before
    stage.syncer_says("v5p-0", 3, UnitPhase.DISCONNECTED)
    return stage


def test_the_next_attempt_is_newer_than_all_that_the_syncer_has_accepted(restored: Stage) -> None:
    t.play(restored, at(0, t.pod_vanishes(), t.reconciled, learner_pods("v5p-0-a4-0"), unit(attempt=4)))


def test_an_attempt_that_the_syncer_refuses_as_old_is_no_failure_of_the_unit(restored: Stage) -> None:
    refused = has("the syncer knows a newer attempt", "the syncer has accepted attempt 3, which status lacks")
    t.play(
        restored,
        at(0, t.main_container_exits(67), t.one_reconcile, unit(state="Draining", failures=0, message=refused)),
        at(0, t.deleted_pods_end, t.reconciled, learner_pods("v5p-0-a4-0"), unit(attempt=4, failures=0)),
    )


def test_the_end_of_an_attempt_is_told_although_the_next_one_begins_at_once(restored: Stage) -> None:
    refused = has("attempt 1 ended: exit 67", "the syncer has accepted attempt 3", start="v5p-0: ")
    t.play(restored, at(0, t.exits(67), t.one_reconcile, unit(state="Starting", attempt=4), t.losses(refused)))


def test_an_attempt_that_the_syncer_refuses_as_a_second_process_is_a_failure(restored: Stage) -> None:
    restored.syncer_says("v5p-0", 1, UnitPhase.CONTRIBUTING)
    t.play(restored, at(0, t.exits(67), t.one_reconcile, unit(attempt=2, failures=1)))


def test_a_report_of_an_attempt_far_beyond_status_does_not_count(restored: Stage) -> None:
    restored.syncer_says("v5p-0", 2_000_000, UnitPhase.DISCONNECTED)
    t.play(restored, at(0, t.pod_vanishes(), t.reconciled, learner_pods("v5p-0-a2-0")))
