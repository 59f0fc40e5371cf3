"""Pods that say they are units, and request nothing: what they say takes no slice from others."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import TPU, operated, play_shared
from builders.fake_cluster import FakeCluster
from builders.jobs import tpu_pool
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

V5P = tpu_pool("v5p", "tpu-v5p", "2x2x1", max=1)
"""A pool that no slice of the cluster is for: its job waits."""


async def evil_job(cluster: FakeCluster, **spec: str) -> str:
    """A job of team-b that gets nothing. Returns its uid."""
    return str((await cluster.apply("evil", V5P, namespace="team-b", spec=spec))["metadata"]["uid"])


async def claim(cluster: FakeCluster, owner: str, *nodes: str, unit: str = "v5p", resources: Obj | None = None) -> None:
    """On each node a pod of team-b, by whose labels, owner and annotations it is a unit of its job."""
    for index, node in enumerate(nodes):
        labels = {
            names.LABEL_JOB: "evil",
            names.LABEL_COMPONENT: names.COMPONENT_LEARNER,
            names.LABEL_POOL: unit,
            names.LABEL_UNIT: f"{unit}-{index}",
            names.LABEL_ATTEMPT: "1",
            names.LABEL_HOST: "0",
        }
        meta = {
            "name": f"evil-{unit}-{index}-a1-0",
            "namespace": "team-b",
            "labels": labels,
            "annotations": {names.ANNOTATION_NODE: node, names.ANNOTATION_SLICE: node},
            "ownerReferences": [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "evil", "uid": owner, "controller": True}],
        }
        container = {"name": "learner", "image": "i", **({"resources": resources} if resources else {})}
        await cluster.api.create(names.PODS, {"metadata": meta, "spec": {"containers": [container], "nodeName": node}})


NODES = [f"np-{index}-0" for index in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", [{"managedBy": "example.com/other"}, {}], ids=["of another operator", "of this operator"])
@pytest.mark.parametrize("starts_anew", [False, True])
def test_pods_that_request_nothing_take_no_slice_whatever_their_labels_say(spec: dict[str, str], starts_anew: bool) -> None:
    async def scenario(cluster: FakeCluster) -> None:
        await cluster.start()
        await claim(cluster, await evil_job(cluster, **spec), *NODES)
        await cluster.settle()
        if starts_anew:
            await cluster.restart()
        await cluster.apply("lm", max=4)
        await cluster.trains_on("lm", *NODES)
        assert {unit["attempt"] for unit in (await cluster.status("lm"))["units"]} == {1}
        await asyncio.sleep(600)
        await cluster.trains_on("lm", *NODES)
        assert {unit["attempt"] for unit in (await cluster.status("lm"))["units"]} == {1}
        await cluster.stop()

    play_shared(scenario)


def test_cpu_that_such_a_pod_requests_counts_as_that_of_any_pod() -> None:
    """32 of 64 CPU: a unit that needs 40 finds no room beside it."""

    @operated(slices=["np-0", "np-1"], scheduler=True, namespaces=["team-b"])
    async def play(cluster: FakeCluster) -> None:
        for node in ("np-0-0", "np-1-0"):
            found = await cluster.api.get(names.NODES, "", node)
            await cluster.write_status(names.NODES, node, {"allocatable": {**found["status"]["allocatable"], "cpu": "64"}})
        await claim(cluster, await evil_job(cluster), "np-0-0", resources={"requests": {"cpu": "32"}})
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=2)
        pool["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
        await cluster.apply("lm", pool, max=2)
        await cluster.trains_on("lm", "np-1-0")
        await cluster.pool_says("lm", "team-b/evil-v5p-0-a1-0 uses the rest")

    play()


@pytest.mark.slow
def test_pods_of_another_operators_job_count_by_the_accelerators_that_they_request() -> None:
    async def scenario(cluster: FakeCluster) -> None:
        async with cluster.operating():
            tpu = {"requests": {TPU: "4"}, "limits": {TPU: "4"}}
            await claim(cluster, await evil_job(cluster, managedBy="example.com/other"), "np-0-0", resources=tpu)
            await cluster.apply("lm", max=4)
            await cluster.trains_on("lm", *NODES[1:])
            await cluster.pool_says("lm", "1 used by other pods: team-b/evil-v5p-0-a1-0")

    play_shared(scenario)


@pytest.mark.slow
def test_a_pod_in_a_units_place_that_requests_nothing_gets_the_unit_no_slice() -> None:
    """A quota refuses the operator's pods; a tenant writes a pod with the name of one, which the quota does not count."""

    @operated(slices=["np-0"], namespaces=["team-b"])
    async def play(cluster: FakeCluster) -> None:
        cluster.client.rejects = lambda obj: "exceeded quota" if obj["metadata"]["name"].startswith("evil-v6e-") else ""
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=1)
        owner = (await cluster.apply("evil", pool, namespace="team-b"))["metadata"]["uid"]
        await cluster.when("evil", lambda status: any(unit["reason"] == "PodsRefused" for unit in status.get("units", ())), "team-b")
        await claim(cluster, owner, "cpu-0", unit="v6e")
        cluster.client.rejects = lambda _: ""
        await cluster.settle(600)
        [unit] = (await cluster.status("evil", "team-b"))["units"]
        assert (unit["state"], unit["slice"], unit["reason"]) == ("Pending", "", "PodsRefused")
        assert "does not belong to this job" in unit["message"]
        await cluster.apply("lm")
        await cluster.trains_on("lm", "np-0-0")

    play()
