"""Units for which a grantor brings nodes, through the API: a scheduler binds their pods, and the running operator learns where they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import FakeCluster, wall_clock
from builders.jobs import gpu_pool, tpu_pool
from builders.kube_objects import eventually
from builders.nodes import a_gpu_node, a_tpu_node, a_tpu_slice
from diloco_cli.kubectl.explain import explained
from diloco_cli.kubectl.explanation_text import explanation_text
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

AUTOSCALER = {"mode": "Autoscaler", "timeout": "10m"}
SLICES = [a_tpu_slice(f"np-{index}", 2) for index in range(3)]


def waits(units: int = 1) -> Callable[[Obj], bool]:
    """Whether so many units of a job, and no others, wait for nodes."""
    return lambda status: [unit["reason"] for unit in status.get("units", ())] == ["WaitingForNodes"] * units


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@operated(scheduler=True)
async def test_each_unit_of_two_hosts_gets_a_slice_of_its_own_in_whatever_order_nodes_come(cluster: FakeCluster, seed: int) -> None:
    for job in ("one", "two", "three"):
        await cluster.apply(job, tpu_pool(provisioning=AUTOSCALER))
    for job in ("one", "two", "three"):
        await cluster.when(job, waits())
    nodes = [node for slice_ in SLICES for node in slice_]
    random.Random(seed).shuffle(nodes)
    for node in nodes:
        await cluster.add([node])
        await asyncio.sleep(random.Random(seed).random() * 20)
    slices = [slice_ for job in ("one", "two", "three") for slice_ in await cluster.trains(job)]
    assert sorted(slices) == ["np-0", "np-1", "np-2"]
    for job, slice_ in zip(("one", "two", "three"), slices, strict=True):
        assert cluster.nodes_of(job) == {f"{slice_}-0", f"{slice_}-1"}


@pytest.mark.slow
@operated(scheduler=True)
async def test_jobs_whose_names_and_pools_read_alike_train_side_by_side(cluster: FakeCluster) -> None:
    for job, pool in (("lm", "v2-v5p"), ("lm-v2", "v5p"), ("asks", "v2-v5p"), ("asks-v2", "v5p")):
        fields: dict[str, Any] = {"provisioning": AUTOSCALER} if job.startswith("asks") else {}
        await cluster.apply(job, tpu_pool(pool, max=1, **fields))
    await cluster.add([node for slice_ in [*SLICES, a_tpu_slice("np-3", 2)] for node in slice_])
    for job in ("lm", "lm-v2", "asks", "asks-v2"):
        await cluster.trains(job)
        (unit,) = (await cluster.status(job))["units"]
        assert (unit["restarts"], unit["failures"]) == (0, [])


@pytest.mark.parametrize(
    ("policy", "gets"), [({}, ""), ({"preemptionPolicy": "PreemptLowerPriority"}, ""), ({"preemptionPolicy": "Never"}, "research")]
)
@operated(scheduler=True, runs=False)
async def test_pods_that_name_no_node_get_only_a_class_that_never_preempts(cluster: FakeCluster, policy: Obj, gets: str) -> None:
    await cluster.api.create(names.PRIORITY_CLASSES, {"metadata": {"name": "research"}, "value": 5, **policy})
    async with cluster.operating():
        await cluster.apply("one", gpu_pool(max=1, provisioning=AUTOSCALER), spec={"priorityClassName": "research"})
        await cluster.when("one", waits())
        classes = {pod["metadata"]["name"]: pod["spec"].get("priorityClassName", "") for pod in cluster.pods(("default", "one"))}
        assert classes == {"one-syncer": "research", "one-h100-0-a1-0": gets}


@pytest.mark.slow
@operated(scheduler=True, runs=False)
async def test_unit_that_waits_outlives_its_operator(cluster: FakeCluster) -> None:
    async with cluster.operating():
        await cluster.apply("one", gpu_pool(hosts=2, max=1, provisioning=AUTOSCALER))
        await cluster.when("one", waits())
    zone = {names.NODE_ZONE: "a"}
    await cluster.add([a_gpu_node("gpu-1", labels=zone), a_gpu_node("gpu-0", labels=zone)])
    async with cluster.operating():
        (slice_,) = await cluster.trains("one")
        assert set(slice_.split("+")) == {"gpu-0", "gpu-1"}
        assert (await cluster.status("one"))["units"][0]["attempt"] == 1


@pytest.mark.slow
@operated(scheduler=True)
async def test_pinned_unit_of_another_job_and_one_that_waits_never_share_a_host(cluster: FakeCluster) -> None:
    await cluster.apply("waits", gpu_pool(max=2, provisioning=AUTOSCALER), min=2, quorum=1)
    await cluster.apply("pinned", gpu_pool(max=1))
    await cluster.when("waits", waits(2))
    for index in range(3):
        await cluster.add([a_gpu_node(f"gpu-{index}")])
    await cluster.trains("waits", 2)
    await cluster.trains("pinned")
    assert len(cluster.nodes_of("waits") | cluster.nodes_of("pinned")) == 3


@pytest.mark.slow
@operated(scheduler=True, runs=False)
async def test_explain_says_of_a_pool_that_is_not_used_what_its_autoscaler_had_said(cluster: FakeCluster) -> None:
    async with cluster.operating():
        await cluster.apply("one", gpu_pool(max=1, provisioning=AUTOSCALER), tpu_pool(topology="2x2x1", max=1))
        await cluster.when("one", lambda status: "the scheduler says" in status.get("units", [{}])[0].get("message", ""))
        await cluster.add([a_tpu_node("tpu-0")])
        await cluster.trains("one")
        await cluster.when("one", lambda status: status["units"][0]["state"] == "Pending")
    told = explanation_text(await explained(cluster.api, "default", "one", wall_clock), wall_clock()).splitlines()
    pool, unit = (next(at for at, line in enumerate(told) if line.startswith(head)) for head in ("POOL h100 ", "UNIT h100-0:"))
    asked = "one-h100-0-a1-0: asked the autoscaler for nodes at "
    assert told[pool + 1].startswith(
        f"  why not more    JobAtMaximum: the job has the 1 unit of learners.max; pool h100 has 0; h100-0 until then: {asked}"
    )
    assert told[unit] == "UNIT h100-0: Pending, ScaledDown"
    assert f"; until then: {asked}" in told[unit + 1]
    assert told[pool + 2] == "  what would help - raise learners.max, or learners.min of the pool, which comes before other pools"
    for line in (told[pool + 1], told[unit + 1]):
        assert line.endswith("; the scheduler says: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.")


@pytest.mark.slow
@operated(scheduler=True)
async def test_nodes_of_two_autoscalers_for_one_unit_cost_the_job_nothing(cluster: FakeCluster) -> None:
    await cluster.apply("one", tpu_pool(max=1, provisioning=AUTOSCALER))
    await cluster.when("one", waits())
    await cluster.add([*SLICES[0], *SLICES[1]])
    (slice_,) = await cluster.trains("one")
    assert cluster.nodes_of("one") == {f"{slice_}-0", f"{slice_}-1"}
    await asyncio.sleep(600)  # the other slice is taken back: nothing of the job is there
    assert len(cluster.pods(("default", "one"))) == 3


async def two_halves(cluster: FakeCluster, *pools: Obj) -> float:
    """Two units of two hosts have one host each, and no more come. Returns until when they were asked for."""
    await cluster.apply("one", gpu_pool(hosts=2, max=2, provisioning=AUTOSCALER), *pools, min=2, quorum=1)
    await cluster.when("one", waits(2))
    asked = wall_clock()
    for index in range(2):  # hosts of a unit are in one zone, so that neither unit can have both
        await cluster.add([a_gpu_node(f"gpu-{index}", labels={names.NODE_ZONE: f"zone-{index}"})])

    async def bound() -> bool:
        return len(bound_units(cluster)) == 2

    await eventually(bound, "both nodes to have a pod")
    return asked + 600


def bound_units(cluster: FakeCluster) -> list[str]:
    """Units of the pool of two hosts with their bound pods, each as often as it has one."""
    pods = [pod for pod in cluster.pods(("default", "one")) if pod["spec"].get("nodeName", "").startswith("gpu-")]
    return sorted(pod["metadata"]["labels"][names.LABEL_UNIT] for pod in pods)


@pytest.mark.slow
@operated(scheduler=True)
async def test_of_two_units_with_half_of_their_hosts_each_one_has_all_once_their_time_is_up(cluster: FakeCluster) -> None:
    due = await two_halves(cluster)
    assert bound_units(cluster) == ["h100-0", "h100-1"]
    same = {"metadata": {"labels": {names.NODE_ZONE: "zone-0"}}}
    await cluster.api.patch(names.NODES, "", "gpu-1", same)  # now they are one group, and both halves are taken
    await asyncio.sleep(due - wall_clock() - 5)
    assert bound_units(cluster) == ["h100-0", "h100-1"]
    (slice_,) = await cluster.trains("one")
    assert set(slice_.split("+")) == {"gpu-0", "gpu-1"}
    assert len(set(bound_units(cluster))) == 1
    assert wall_clock() < due + 30
    assert [unit["failures"] for unit in (await cluster.status("one"))["units"]] == [[], []]


@pytest.mark.slow
@operated(scheduler=True)
async def test_two_units_with_half_of_their_hosts_each_give_them_back_and_train_in_the_next_pool(cluster: FakeCluster) -> None:
    due = await two_halves(cluster, tpu_pool(topology="2x2x1", max=2, provisioning=AUTOSCALER))
    await cluster.when("one", lambda status: [u["pool"] for u in status["units"] if u["reason"] == "WaitingForNodes"] == ["v5p"] * 2)
    await cluster.add([a_tpu_node(f"tpu-{index}") for index in range(2)])
    assert sorted(await cluster.trains("one", 2)) == ["tpu-0", "tpu-1"]
    assert wall_clock() < due + 30
    assert bound_units(cluster) == []
