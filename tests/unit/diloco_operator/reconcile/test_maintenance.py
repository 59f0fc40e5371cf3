"""Nodes that are about to go, or that a person drains."""

from __future__ import annotations

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice, an_inventory
from builders.stage import START, Stage, one_unit_on_two_nodes
from diloco_operator.fleet import Shape
from diloco_operator.reconcile import OperatorConfig

ANNOUNCED = "cloud.google.com/scheduled-maintenance-time"


def at(seconds: float) -> dict[str, str]:
    """Maintenance begins so long after the test began."""
    return {ANNOUNCED: str(round(START + seconds))}


def test_unit_leaves_ahead_of_announced_maintenance_and_it_does_not_count() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_tpu_node("tpu-0", labels=at(1000)))
    plan = stage.step()
    # maintenance_lead is 300 s: at 700 s it leaves, and the job is requeued for no later
    assert stage.states() == {"v5p-0": "Training"}
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 700.001
    stage.advance(699)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Draining"
    assert "maintenance of node tpu-0 begins at 2026-11-20T12:16:40Z" in stage.unit("v5p-0")["message"]
    stage.kubelets_finish_deletions()
    stage.settle()
    assert (stage.unit("v5p-0")["slice"], stage.unit("v5p-0")["failures"]) == ("tpu-1", [])


def test_lead_is_the_operators_to_set() -> None:
    job = a_job().with_learners(1, 1).with_pool(max=1)
    stage = Stage(job, a_tpu_node("tpu-0", labels=at(1000)), config=OperatorConfig(maintenance_lead=2000.0))
    stage.inventory = type(stage.inventory)(stage.config.disruption_signals)
    stage.set_node(stage.nodes["tpu-0"])
    stage.settle()
    assert stage.unit("v5p-0")["reason"] == "NoCapacity"
    assert "maintenance of node tpu-0" in stage.status["pools"][0]["message"]


def test_node_whose_maintenance_is_far_off_is_used_and_one_that_is_near_is_not() -> None:
    fleet = an_inventory(a_tpu_node("far", labels=at(10_000)), a_tpu_node("near", labels=at(100)))
    shape = Shape("tpu-v5p", "2x2x1", 4)
    fleet.advance(START)
    assert [part.name for part in fleet.free(shape)] == ["far"]
    assert fleet.advance(START + 9_699) == []
    assert fleet.advance(START + 9_700) == ["far"]
    assert list(fleet.free(shape)) == []


def test_announcement_that_stays_on_the_node_is_ignored_in_the_end() -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=at(100)))
    shape = Shape("tpu-v5p", "2x2x1", 4)
    fleet.advance(START)
    assert list(fleet.free(shape)) == []
    fleet.advance(START + 100 + 21_600)
    assert [part.name for part in fleet.free(shape)] == ["tpu-0"]


def test_announcement_that_is_moved_or_withdrawn_is_followed() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_tpu_node("tpu-0", labels=at(400)))
    stage.settle()
    stage.set_node(a_tpu_node("tpu-0", labels=at(4000)))
    stage.advance(200)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}
    stage.set_node(a_tpu_node("tpu-0"))
    stage.advance(4000)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}


@pytest.mark.parametrize("value", ["", "soon", "-5", "1e9", "\u0663"])
def test_announcement_that_cannot_be_read_is_none(value: str) -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_tpu_node("tpu-0", labels={ANNOUNCED: value}))
    stage.advance(1)
    stage.settle()
    # An Arabic-Indic digit is a number to Python, and a moment long past: nothing to leave for either.
    assert stage.states() == {"v5p-0": "Training"}


def test_maintenance_of_one_host_takes_the_whole_slice() -> None:
    nodes = a_tpu_slice("np-0", 2)
    nodes[1]["metadata"]["labels"] |= at(100)
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2"), *nodes, *a_tpu_slice("np-1", 2))
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "np-1"


def test_cordoned_node_keeps_its_pods_and_gets_no_new_ones() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_tpu_node("tpu-0", cordoned=True))
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}
    stage.learner_exits("v5p-0", 1, 1)
    stage.settle()
    assert (stage.unit("v5p-0")["attempt"], stage.unit("v5p-0")["slice"]) == (2, "tpu-1")


def test_syncer_leaves_a_node_ahead_of_its_maintenance_too() -> None:
    stage = one_unit_on_two_nodes()
    node = stage.nodes["cpu-0"]
    stage.set_node({**node, "metadata": {**node["metadata"], "labels": {**node["metadata"]["labels"], **at(100)}}})
    stage.step()
    assert "deletionTimestamp" in stage.syncer["metadata"]
