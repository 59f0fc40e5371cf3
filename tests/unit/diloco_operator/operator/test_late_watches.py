"""Watches that are behind: what they do not show yet is not taken for lost."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import a_strangers_pod, operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import tpu_pool
from diloco_operator.api import names
from diloco_operator.kube.client import Resource
from diloco_operator.reconcile import OperatorConfig

PODS_OF_LM = ("pods", "diloco.dev/job=lm")
CLASS = OperatorConfig(storage_class_name="fast")
"""Of an operator whose jobs' learners come in one plan with their syncer: nothing need be awaited of a claim whose class is known."""


def tried(cluster: FakeCluster) -> list[str]:
    """The learner pods that operators tried to create."""
    return [name for name in cluster.client.created if name.startswith("lm-v6e")]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [20.0, 40.0, 300.0])
@operated(slices=["np-a", "np-b", "np-c"], runs=False)
async def test_a_pod_watch_that_is_behind_replaces_no_learner_that_runs(cluster: FakeCluster, lag: float) -> None:
    cluster.client.lag["pods"] = lag
    async with cluster.operating():
        await cluster.apply("lm", tpu_pool("v6e", "tpu-v6e", "2x2", max=3), min=2)
        await cluster.trains(units=2)
        await asyncio.sleep(2 * lag)
        await cluster.edit(learners={"min": 2, "max": 3})  # what is created next is as late
        await cluster.trains(units=3)
        await asyncio.sleep(2 * lag)
        units = (await cluster.status())["units"]
    assert [(unit["state"], unit["attempt"], unit["restarts"]) for unit in units] == [("Training", 1, 0)] * 3
    assert sorted(tried(cluster)) == ["lm-v6e-0-a1-0", "lm-v6e-1-a1-0", "lm-v6e-2-a1-0"]


async def fall_behind(cluster: FakeCluster, resource: Resource, lag: float) -> None:
    """From now on the watch of this resource is so late."""
    cluster.client.lag[resource.plural] = lag
    for reflector in cluster.operator.caches.reflectors:
        if reflector.resource == resource:
            reflector.list_again()
    await cluster.settle(1.0)


@pytest.mark.slow
@operated(slices=["np-a"])
async def test_a_deletion_that_the_watch_does_not_show_is_found_by_a_list(cluster: FakeCluster) -> None:
    await cluster.apply()
    await cluster.trains()
    await fall_behind(cluster, names.PODS, 3600.0)
    before = len(cluster.client.listed)
    await cluster.edit(suspend=True)
    await cluster.settle(20.0)
    assert PODS_OF_LM not in cluster.client.listed[before:]  # the watch may show it yet
    await cluster.settle(100.0)
    assert PODS_OF_LM in cluster.client.listed[before:]
    assert await cluster.pod_phases("lm") == {}


@operated(slices=["np-a"], runs=False)
async def test_a_pod_that_came_and_went_unseen_is_made_again_after_a_look(cluster: FakeCluster) -> None:
    async with cluster.operating(config=CLASS):
        await fall_behind(cluster, names.PODS, 3600.0)
        await cluster.apply()
        await cluster.settle()
        await cluster.api.delete(names.PODS, NS, "lm-v6e-0-a1-0", grace_seconds=0)
        await cluster.settle(40.0)  # after 30 s the list shows that the syncer's pod is there; the learner's may come
        assert tried(cluster) == ["lm-v6e-0-a1-0"]
        await cluster.settle(30.0)
        assert tried(cluster) == ["lm-v6e-0-a1-0", "lm-v6e-0-a2-0"]


@pytest.mark.slow
@operated(slices=["np-a"], runs=False)
async def test_nothing_is_decided_while_the_pods_cannot_be_listed(cluster: FakeCluster) -> None:
    async with cluster.operating(config=CLASS):
        await fall_behind(cluster, names.PODS, 3600.0)
        cluster.client.forbidden.add(("list", "pods", NS))
        await cluster.apply()
        await cluster.settle(300.0)
        assert tried(cluster) == ["lm-v6e-0-a1-0"]
        cluster.client.forbidden.clear()
        await cluster.trains()
        assert tried(cluster) == ["lm-v6e-0-a1-0"]


@operated(slices=["np-a"])
async def test_a_malformed_pod_of_the_job_stops_nothing(cluster: FakeCluster) -> None:
    cluster.client.distortions["pods", NS, "odd"] = lambda obj: {**obj, "spec": []}
    await cluster.api.create(names.PODS, a_strangers_pod("odd", "lm"))
    await fall_behind(cluster, names.CONFIG_MAPS, 3600.0)
    await cluster.apply()
    before = len(cluster.client.listed)
    await cluster.settle(40.0)
    assert cluster.client.listed[before:].count(PODS_OF_LM) == 1
    await cluster.trains()
