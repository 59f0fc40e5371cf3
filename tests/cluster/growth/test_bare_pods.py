"""Bare pods: what the autoscaler, Kueue and the stand-in do without any operator. Every test of a job here relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.growing_pools import GROWN, POD_TEMPLATES, REQUESTS, a_pool, growing_pools, install_requests
from builders.karpenter import Karpenter
from builders.kueue import Kueue
from builders.local import Holds, condition, has_phase, is_gone, is_true, wait_for
from builders.nodes import GPU, TPU
from diloco_operator.api.names import NODE_POOL, NODES, PODS
from diloco_operator.kube.client import PatchType

type Obj = dict[str, Any]

GROUP = "kueue.x-k8s.io/pod-group-name"
ALONE = {"kueue.x-k8s.io/pod-group-total-count": "1", "kueue.x-k8s.io/retriable-in-group": "false"}
"""Annotations of the only pod of a group, which is over when the pod is."""
LONG_AGO = "2026-11-20T21:00:00Z"
H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
V5P_SLICE = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", "cloud.google.com/gke-tpu-topology": "2x2x2"}


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
    await cluster.client.patch(PODS, "default", "late", {"status": {"conditions": [waits]}}, type=PatchType.MERGE, subresource="status")
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


# --- the stand-in -----------------------------------------------------------------------------------------------------
@pytest.fixture
async def tpus(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[GrowingCluster]:
    """Without Karpenter."""
    async with growing_cluster(plane, tmp_path, nodes=GROWN) as found:
        yield found


def of_unit(name: str) -> dict[str, Any]:
    """Labels and affinity of pods that want a node pool for themselves."""

    def term(operator: str) -> Obj:
        return {"topologyKey": NODE_POOL, "labelSelector": {"matchExpressions": [{"key": "unit", "operator": operator, "values": [name]}]}}

    others = {"key": "unit", "operator": "Exists"}
    apart = term("NotIn")
    apart["labelSelector"]["matchExpressions"].append(others)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"podAffinity": {required: [term("In")]}, "podAntiAffinity": {required: [apart]}}
    return {"labels": {"unit": name}, "spec": {"affinity": affinity}}


async def nodes(cluster: GrowingCluster) -> dict[str, str]:
    """Node pool of each node that was grown."""
    found = (await cluster.client.list(NODES, label_selector=GROWN)).items
    return {node["metadata"]["name"]: node["metadata"]["labels"][NODE_POOL] for node in found}


async def test_a_slice_of_two_hosts_comes_for_each_unit_and_goes_as_a_whole(tpus: GrowingCluster) -> None:
    pools = [a_pool(f"np-{index}", "tpu-v5p", topology="2x2x2", hosts=2) for index in range(3)]
    async with growing_pools(tpus.client, pools):
        for unit in ("a", "b"):
            for host in range(2):
                await tpus.run_pod(f"{unit}-{host}", {TPU: "4"}, selector=V5P_SLICE, **of_unit(unit))
        bound = {name: (await tpus.pod(name, is_bound))["spec"]["nodeName"] for name in ("a-0", "a-1", "b-0", "b-1")}
        pool_of = await nodes(tpus)
        assert pool_of[bound["a-0"]] == pool_of[bound["a-1"]] != pool_of[bound["b-0"]] == pool_of[bound["b-1"]]
        assert len(pool_of) == 4, "the third pool stays at zero"
        for name in ("a-0", "a-1"):
            await tpus.delete_pod(name)
        for name in (bound["a-0"], bound["a-1"]):
            await wait_for(tpus.client, NODES, "", name, is_gone)
        assert set(await nodes(tpus)) == {bound["b-0"], bound["b-1"]}


async def test_a_request_is_accepted_then_provisioned_and_its_nodes_wait_until_its_booking_expires(tpus: GrowingCluster) -> None:
    install_requests(tpus.control)
    template = {
        "metadata": {"name": "hosts", "namespace": "default"},
        "template": {
            "spec": {
                "containers": [{"name": "main", "image": "image:1", "resources": {"limits": {TPU: "4"}}}],
                "nodeSelector": V5P_SLICE,
                "tolerations": [{"key": TPU, "operator": "Exists"}],
            }
        },
    }
    await tpus.client.create(POD_TEMPLATES, template)
    request = {
        "apiVersion": REQUESTS.api_version,
        "kind": REQUESTS.kind,
        "metadata": {"name": "unit", "namespace": "default"},
        "spec": {
            "provisioningClassName": "queued-provisioning.gke.io",
            "podSets": [{"podTemplateRef": {"name": "hosts"}, "count": 2}],
            "parameters": {},
        },
    }
    await tpus.client.create(REQUESTS, request)

    async def until(holds: Holds) -> Obj | None:
        return await wait_for(tpus.client, REQUESTS, "default", "unit", holds)

    pools = [a_pool("np-0", "tpu-v5p", topology="2x2x2", hosts=2, queued=True, in_stock=False)]
    async with growing_pools(tpus.client, pools, idle=0.0) as cloud:
        await until(is_true("Accepted"))
        assert await nodes(tpus) == {}
        pools[0].in_stock = True
        await until(is_true("Provisioned"))
        await wait_for(tpus.client, NODES, "", "np-0-1", lambda node: node is not None)
        assert cloud.booked == {"default/unit": "np-0"}
        await cloud.condition("unit", "BookingExpired")
        for name in ("np-0-0", "np-0-1"):
            await wait_for(tpus.client, NODES, "", name, is_gone)
