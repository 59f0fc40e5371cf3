"""Nodes whose end is known: flex-start capacity and limited run times. Units leave them ahead of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_tpu_node, a_tpu_slice, an_inventory
from builders.stage import START, Stage, one_unit_on_two_nodes
from diloco_operator.fleet import Shape
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile import OperatorConfig

ENDS = "node.gke.io/machine-termination-datetime"
RUNS = "cloud.google.com/gke-max-run-duration-seconds"
FLEX = {"cloud.google.com/gke-flex-start": "true"}
DAY = 86400.0
SHAPE = Shape("tpu-v5p", "2x2x1", 4)


def after(seconds: float) -> str:
    """So long after the test began."""
    return format_timestamp(START + seconds)


def a_limited_node(seconds: float, name: str = "tpu-0", **fields: Any) -> dict[str, Any]:
    return a_tpu_node(name, annotations={ENDS: after(seconds)}, **fields)


def test_unit_leaves_ahead_of_the_end_of_its_node_drained_and_goes_on_elsewhere() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_limited_node(1000))
    plan = stage.step()
    # endLead is 300 s: at 700 s it leaves, and the job is reconciled no later
    assert stage.states() == {"v5p-0": "Training"}
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 700.001
    stage.advance(699)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}
    stage.advance(1)
    stage.settle()
    assert (stage.unit("v5p-0")["state"], stage.unit("v5p-0")["message"]) == ("Draining", "node tpu-0 ends at 2026-11-20T12:16:40Z")
    stage.kubelets_finish_deletions()
    stage.settle()
    unit = stage.unit("v5p-0")
    assert (unit["slice"], unit["attempt"], unit["failures"]) == ("tpu-1", 2, [])


@pytest.mark.parametrize(
    ("labels", "annotations", "end"),
    [
        (FLEX, {}, 7 * DAY),
        ({"cloud.google.com/gke-provisioning": "flex-start"}, {}, 7 * DAY),
        ({**FLEX, RUNS: "3600"}, {}, 3600.0),
        ({RUNS: "3600"}, {}, 3600.0),
        ({RUNS: "3600"}, {ENDS: after(1800)}, 1800.0),
        (FLEX, {ENDS: after(8 * DAY)}, 8 * DAY),  # what is said of this node outweighs what holds for all
        ({RUNS: "7200"}, {ENDS: "2026-11-20T05:00:00.000-08:00"}, 3600.0),  # as Compute Engine writes it, with an offset
    ],
)
def test_end_comes_from_the_annotation_the_run_time_or_the_kind_of_capacity(
    labels: Mapping[str, str], annotations: Mapping[str, str], end: float
) -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=labels, annotations=annotations, created=after(0)))
    fleet.advance(START + end - 301)
    assert [part.name for part in fleet.free(SHAPE)] == ["tpu-0"]
    assert fleet.advance(START + end - 300) == ["tpu-0"]
    assert list(fleet.free(SHAPE)) == []


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({}, {}),
        ({"cloud.google.com/gke-spot": "true"}, {}),
        ({"cloud.google.com/gke-flex-start": "false"}, {}),
        ({RUNS: "soon"}, {}),
        ({RUNS: "-1"}, {}),
        ({RUNS: "0"}, {}),
        ({RUNS: "\u0663"}, {}),
        ({RUNS: "9" * 400}, {}),
        ({}, {ENDS: "soon"}),
        ({}, {ENDS: "2026-11-20T12:00:00"}),
        ({}, {ENDS: "9" * 400}),
        ({}, {ENDS: ""}),
    ],
)
def test_node_that_does_not_say_when_it_ends_is_used_for_good(labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=labels, annotations=annotations, created=after(0)))
    fleet.advance(START + 1000 * DAY)
    assert [part.name for part in fleet.free(SHAPE)] == ["tpu-0"]


def test_flex_start_node_without_a_readable_announcement_ends_as_its_kind_does() -> None:
    fleet = an_inventory(a_tpu_node("tpu-0", labels=FLEX, annotations={ENDS: "soon"}, created=after(0)))
    assert fleet.advance(START + 7 * DAY) == ["tpu-0"]


def test_end_of_one_host_takes_the_whole_slice() -> None:
    nodes = a_tpu_slice("np-0", 2)
    nodes[1]["metadata"]["annotations"] = {ENDS: after(200)}
    stage = Stage(a_job().with_learners(1, 1).with_pool(max=1, topology="2x2x2"), *nodes, *a_tpu_slice("np-1", 2))
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "np-1"


def test_end_that_is_put_off_is_followed() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_limited_node(400))
    stage.settle()
    stage.set_node(a_limited_node(4000))
    stage.advance(200)
    stage.settle()
    assert stage.states() == {"v5p-0": "Training"}


def test_lead_and_signals_are_the_operators_to_set() -> None:
    config = OperatorConfig(end_lead=30.0, end_annotations=("example.com/ends",), flex_start_lifetime=DAY)
    job = a_job().with_learners(1, 1).with_pool(max=1)
    node = a_tpu_node("tpu-0", annotations={ENDS: after(0), "example.com/ends": after(100)})
    stage = Stage(job, node, config=config)
    stage.inventory = type(stage.inventory)(config.disruption_signals)
    stage.set_node(node)
    stage.advance(69)
    stage.settle()
    assert stage.unit("v5p-0")["slice"] == "tpu-0"
    stage.advance(1)
    stage.settle()
    assert stage.unit("v5p-0")["state"] != "Starting"


def test_syncer_leaves_a_node_ahead_of_its_end_too() -> None:
    stage = one_unit_on_two_nodes()
    node = stage.nodes["cpu-0"]
    stage.set_node({**node, "metadata": {**node["metadata"], "annotations": {ENDS: after(100)}}})
    stage.step()
    assert "deletionTimestamp" in stage.syncer["metadata"]


def test_node_that_karpenter_takes_away_is_left_at_once() -> None:
    stage = one_unit_on_two_nodes()
    stage.set_node(a_tpu_node("tpu-0", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]))
    stage.settle()
    assert stage.unit("v5p-0")["state"] == "Draining"
    assert "karpenter.sh/disrupted" in stage.unit("v5p-0")["message"]
