"""A user switches a pool of a running job off by `learners.max: 0`, and on again."""

from __future__ import annotations

import asyncio

from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import Obj, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node
from diloco_operator.api import names


def pools(maximum: int) -> list[Obj]:
    """`maximum`: of the pool of GPUs."""
    return [tpu_pool("v6e", "tpu-v6e", "2x2", max=1), gpu_pool(max=maximum)]


async def until(cluster: FakeCluster, wanted: dict[str, str]) -> None:
    await cluster.when("lm", lambda status: {unit["name"]: unit["state"] for unit in status.get("units", ())} == wanted, what=str(wanted))


@operated(a_gpu_node("gpu-0"), slices=["np-a"])
async def test_units_of_a_pool_that_is_switched_off_leave_and_return_when_it_is_switched_on(cluster: FakeCluster) -> None:
    await cluster.apply("lm", *pools(1), max=2)
    await until(cluster, {"v6e-0": "Training", "h100-0": "Training"})
    await cluster.edit(pools=pools(0))
    await until(cluster, {"v6e-0": "Training", "h100-0": "Pending"})
    await asyncio.sleep(600)  # and so it stays
    await until(cluster, {"v6e-0": "Training", "h100-0": "Pending"})
    assert await cluster.names_of(names.PODS, NS) == ["lm-syncer", "lm-v6e-0-a1-0"]
    job = await cluster.api.get(names.DILOCO_JOBS, NS, "lm")
    assert (job["spec"]["learners"]["max"], job["status"]["learners"]["contributing"]) == (2, 1)
    await cluster.edit(pools=pools(1))
    await until(cluster, {"v6e-0": "Training", "h100-0": "Training"})
