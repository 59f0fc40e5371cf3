"""Jobs through the real operator whose nodes a real autoscaler makes, and gives back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.growing_jobs import a_growing_job, contributing
from builders.karpenter import Karpenter
from builders.kube_jobs import operator
from builders.local import is_gone, wait_for
from builders.nodes import a_fleet_gpu_node
from builders.operator_process import OperatorReplica
from diloco_operator.api.names import NODES

type Obj = dict[str, Any]


@pytest.fixture
async def running(cluster: GrowingCluster, tmp_path: Path) -> AsyncIterator[OperatorReplica]:
    """The operator of the chart."""
    with operator(cluster.control, tmp_path) as found:
        yield found


async def test_a_job_brings_its_nodes_from_none_trains_and_leaves_none_when_it_is_suspended(
    cluster: GrowingCluster, autoscaler: Karpenter, running: OperatorReplica
) -> None:
    assert autoscaler.claims == []
    await cluster.apply(a_growing_job("grow", "h100", "v6e", min=2))
    await cluster.unit("grow", "h100-0", lambda unit: unit.get("reason") == "WaitingForNodes")
    job = await cluster.job("grow", lambda job: contributing(job) == 2)
    assert [len(autoscaler.claims_of(pool)) for pool in ("h100", "v6e", "v5p")] == [1, 1, 0]
    for unit in job["status"]["units"]:
        pod = await cluster.pod_of("grow", unit["name"])
        assert unit["slice"] == pod["spec"]["nodeName"], "the operator learned it from the binding"
        assert (unit["attempt"], unit["failures"]) == (1, []), "to wait for a node is no failure"
    await cluster.change("grow", {"suspend": True})
    await cluster.without_machines(autoscaler)
    job = await cluster.job("grow")
    assert [unit["state"] for unit in job["status"]["units"]] == ["Pending", "Pending"]
    assert [unit["failures"] for unit in job["status"]["units"]] == [[], []]


async def test_a_pool_out_of_capacity_leaves_its_unit_to_the_next_pool(
    cluster: GrowingCluster, autoscaler: Karpenter, running: OperatorReplica
) -> None:
    autoscaler.limit("v5p", 0)
    try:
        await cluster.apply(a_growing_job("fall", "v5p", "h100", min=1, timeouts={"v5p": "5s"}))
        waits = await cluster.unit("fall", "v5p-0", lambda unit: unit.get("reason") == "NotProvisioned")
        assert (waits["state"], waits["failures"]) == ("Pending", [])
        assert "5s" in waits["message"]
        await cluster.unit("fall", "h100-0", lambda unit: unit.get("state") == "Training")
    finally:
        autoscaler.limit("v5p", 100)
    assert len(autoscaler.claims_of("h100")) == 1


async def test_a_unit_that_waits_for_its_node_takes_one_that_becomes_free_and_asks_for_none(
    plane: ControlPlane, autoscaler: Karpenter, tmp_path: Path
) -> None:
    autoscaler.limit("h100", 0)
    try:
        async with growing_cluster(plane, tmp_path, autoscaler, fleet=[a_fleet_gpu_node("gpu-0")]) as cluster:
            await cluster.kubectl("cordon", "gpu-0")
            with operator(plane, tmp_path):
                await cluster.apply(a_growing_job("free", "h100", min=1))
                await cluster.unit("free", "h100-0", lambda unit: unit.get("reason") == "WaitingForNodes")
                await cluster.kubectl("uncordon", "gpu-0")
                unit = await cluster.unit("free", "h100-0", lambda unit: unit.get("state") == "Training")
            assert (unit["slice"], unit["attempt"]) == ("gpu-0", 1)
            assert autoscaler.claims == []
    finally:
        autoscaler.limit("h100", 100)


async def test_a_consolidation_drains_a_unit_that_may_be_moved_and_it_trains_on_the_cheaper_node(
    cluster: GrowingCluster, autoscaler: Karpenter, running: OperatorReplica
) -> None:
    # Pods of jobs ask autoscalers not to move them; a template may say otherwise.
    may_move = {"karpenter.sh/do-not-disrupt": "false"}
    await cluster.apply(a_growing_job("moved", "h100", min=1, annotations=may_move))
    await cluster.job("moved", lambda job: contributing(job) == 1)
    assert [len(autoscaler.claims_of(pool)) for pool in ("h100", "h100-cheap")] == [1, 0]
    autoscaler.limit("h100-cheap", 1)
    try:
        unit = await cluster.unit("moved", "h100-0", lambda unit: unit.get("state") == "Training" and unit["attempt"] == 2)
    finally:
        autoscaler.limit("h100-cheap", 0)
    assert unit["failures"] == [], "drained, not failed"
    node = await cluster.client.get(NODES, "", unit["slice"])
    assert node["metadata"]["labels"]["karpenter.sh/nodepool"] == "h100-cheap"
    assert "drained after" in cluster.log("moved-h100-0-a1-0")


async def test_a_node_that_vanishes_at_its_binding_is_asked_for_again(
    cluster: GrowingCluster, autoscaler: Karpenter, running: OperatorReplica
) -> None:
    await cluster.apply(a_growing_job("gone", "v5p", min=1))
    unit = await cluster.unit("gone", "v5p-0", lambda unit: bool(unit.get("slice")))
    node = unit["slice"]
    # As when a spot machine is lost: no taint, no drain.
    await cluster.kubectl("patch", "node", node, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))
    await cluster.kubectl("delete", "node", node)
    await wait_for(cluster.client, NODES, "", node, is_gone)
    again = await cluster.unit("gone", "v5p-0", lambda unit: unit.get("state") == "Training" and unit["slice"] != node)
    assert again["failures"] == [], "the loss of a node is a disruption"
