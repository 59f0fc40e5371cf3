"""Bare pods: what the autoscaler and Kueue do without any operator. Every test of a job here relies on it."""

from __future__ import annotations

import asyncio
from typing import Any

from builders.growing_cluster import GrowingCluster
from builders.karpenter import Karpenter
from builders.kueue import Kueue
from builders.local import condition, has_phase, is_gone, wait_for
from builders.nodes import GPU, TPU
from diloco_operator.api.names import NODES, PODS

type Obj = dict[str, Any]

GROUP = "kueue.x-k8s.io/pod-group-name"
ALONE = {"kueue.x-k8s.io/pod-group-total-count": "1", "kueue.x-k8s.io/retriable-in-group": "false"}
"""Annotations of the only pod of a group, which is over when the pod is."""
LONG_AGO = "2026-11-20T21:00:00Z"
H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def is_bound(pod: Obj | None) -> bool:
    return bool(pod and pod["spec"].get("nodeName"))


# --- Karpenter --------------------------------------------------------------------------------------------------------
async def test_a_pending_gpu_pod_gets_a_node_and_the_fleet_goes_to_zero_after_it(cluster: GrowingCluster, autoscaler: Karpenter) -> None:
    assert autoscaler.claims == []
    await cluster.run_pod("learner", {GPU: "8"}, selector=H100)
    pod = await cluster.pod("learner", has_phase("Running"))
    [claim] = autoscaler.claims
    assert claim["metadata"]["labels"]["karpenter.sh/nodepool"] == "h100"
    node = await cluster.client.get(NODES, "", pod["spec"]["nodeName"])
    assert node["metadata"]["labels"].items() >= H100.items()
    await cluster.delete_pod("learner")
    await cluster.without_machines(autoscaler)
    await wait_for(cluster.client, NODES, "", node["metadata"]["name"], is_gone)


async def test_a_node_is_kept_for_a_pod_that_is_bound_late_on_a_busy_machine(cluster: GrowingCluster, autoscaler: Karpenter) -> None:
    await cluster.run_pod("late", {GPU: "8"}, selector=H100, spec={"schedulerName": "nobody"})
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node", "lastTransitionTime": LONG_AGO}
    await cluster.client.patch(PODS, "default", "late", {"status": {"conditions": [waits]}}, subresource="status")
    [node] = await asyncio.to_thread(autoscaler.nodes, 1)
    await asyncio.to_thread(autoscaler.starve, 6)
    assert await asyncio.to_thread(autoscaler.nodes, 1) == [node]


async def test_a_pool_at_its_limit_makes_no_node_until_the_limit_is_raised(cluster: GrowingCluster, autoscaler: Karpenter) -> None:
    autoscaler.limit("v6e", 0)
    try:
        await cluster.run_pod("learner", {TPU: "4"}, selector={"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"})
        assert "limits" in await cluster.told("learner", "FailedScheduling", source="karpenter")
        assert autoscaler.claims == []
    finally:
        autoscaler.limit("v6e", 100)
    await cluster.pod("learner", is_bound)


# --- Kueue ------------------------------------------------------------------------------------------------------------
async def test_kueue_admits_one_group_and_holds_another_until_the_first_has_gone(cluster: GrowingCluster, queues: Kueue) -> None:
    queues.flavor("h100", H100)
    queues.cluster_queue("all", {"h100": {GPU: "8"}})
    queues.local_queue("training", "all")
    for group in ("first", "second"):
        labels = {"kueue.x-k8s.io/queue-name": "training", GROUP: group}
        await cluster.run_pod(group, {GPU: "8"}, labels=labels, annotations=ALONE)
        if group == "first":
            queues.wait_admitted(group)
    await cluster.pod("first", has_phase("Running"))
    second = await cluster.pod("second", lambda pod: condition(pod, "PodScheduled").get("reason") == "SchedulingGated")
    assert not queues.is_admitted("second")
    assert "kueue.x-k8s.io/managed" in second["metadata"]["finalizers"]
    await cluster.delete_pod("first")
    await cluster.pod("second", has_phase("Running"))
