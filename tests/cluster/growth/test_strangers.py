"""A cluster full of other people's pending pods. The last file here: what it leaves in the control plane would slow others down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from builders.growing_cluster import GrowingCluster
from builders.growing_jobs import a_growing_job, contributing
from builders.karpenter import Karpenter
from builders.kube_jobs import operator
from builders.nodes import GPU
from diloco_operator.api.names import NAMESPACES, PODS

STRANGERS = 10_000
UNSCHEDULABLE = 500
"""So many of these ask for GPUs of a kind that no pool has. The others are held by a scheduling gate, as those of queues are."""
AT_ONCE = 64


async def fill(cluster: GrowingCluster) -> None:
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "strangers"}})
    await cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "strangers", "--timeout=180s")
    left = iter(range(STRANGERS))

    async def work() -> None:
        for index in left:
            container = {"name": "main", "image": "image:1", "resources": {"limits": {GPU: "8"}}}
            spec: dict[str, Any] = {"containers": [container], "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-b200"}}
            if index >= UNSCHEDULABLE:
                spec["schedulingGates"] = [{"name": "example.org/queue"}]
            await cluster.client.create(PODS, {"metadata": {"name": f"stranger-{index}", "namespace": "strangers"}, "spec": spec})

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def test_ten_thousand_pending_pods_of_strangers_do_not_keep_a_job_from_its_nodes(
    cluster: GrowingCluster, autoscaler: Karpenter, tmp_path: Path
) -> None:
    await fill(cluster)
    with operator(cluster.control, tmp_path) as running:
        await cluster.apply(a_growing_job("among", "h100", min=1))
        job = await cluster.job("among", lambda job: contributing(job) == 1)
        [unit] = job["status"]["units"]
        assert (unit["attempt"], unit["failures"]) == (1, [])
        # As much as without strangers, 95 MiB, and half as much again: it keeps nothing of pods that have no node.
        assert running.resident_mib < 150
    assert [len(autoscaler.claims_of(pool)) for pool in ("h100", "v6e", "v5p")] == [1, 0, 0], "nothing was made for strangers"
