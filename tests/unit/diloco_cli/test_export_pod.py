"""The pod of `kubectl diloco export` while it starts, as scheduler and kubelet report it."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import on_a_cluster
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj
from diloco_cli.cluster import CommandError
from diloco_cli.kubectl.export_pod import PodRequest, running_pod
from diloco_operator.api import names

NO_NODE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}
RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


def waits(reason: str) -> Obj:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "not found"}}}]}


async def starting(cluster: FakeCluster, *statuses: Obj) -> asyncio.Task[None]:
    """The start of a pod that has had these statuses, each for 10 s."""
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team"}})

    async def start() -> None:
        async with running_pod(cluster.api, PodRequest("reader", "team", "quad-syncer", "registry/syncer:1"), cluster.said.append):
            return

    task = asyncio.create_task(start())
    await asyncio.sleep(0.1)
    for status in statuses:
        await cluster.write_status(names.PODS, "reader", status, namespace="team")
        await asyncio.sleep(10)
    return task


@on_a_cluster
async def test_one_failed_pull_is_waited_for_whatever_the_pod_waited_for_before(cluster: FakeCluster) -> None:
    task = await starting(cluster, NO_NODE, waits("ErrImagePull"), waits("ImagePullBackOff"), RUNNING)
    await task
    assert [line.removeprefix("waiting for pod reader: ") for line in cluster.said] == [
        "no node takes it: 0/3 nodes are available",
        "ErrImagePull: not found",
        "ImagePullBackOff: not found",
    ]


@on_a_cluster
async def test_a_second_failed_pull_ends_the_wait(cluster: FakeCluster) -> None:
    task = await starting(cluster, waits("ErrImagePull"), waits("ImagePullBackOff"))
    assert not task.done()
    await cluster.write_status(names.PODS, "reader", waits("ErrImagePull"), namespace="team")
    with pytest.raises(CommandError, match=r"pod reader cannot start: ErrImagePull: not found\. The image is registry/syncer:1"):
        await task
    assert (await cluster.api.list(names.PODS, "team")).items == []
