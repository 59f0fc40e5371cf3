"""What the syncer measures in each pool reaches the job's status, and stays there."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import Obj, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node

POOLS = [tpu_pool("v6e", "tpu-v6e", "2x2", max=1), gpu_pool(max=1)]


async def reports(cluster: FakeCluster, seconds: float) -> None:
    """The job's syncer reports every 10 s, for so long."""
    for _ in range(round(seconds / 10)):
        await asyncio.sleep(10)
        for listener in cluster.listeners:
            listener((NS, "lm"))
    await cluster.settle()


async def measured(cluster: FakeCluster) -> dict[str, Obj]:
    """Pool -> what status says of its throughput."""
    found = (await cluster.status("lm"))["pools"]
    return {pool["name"]: {key: pool[key] for key in ("tokensPerSecond", "value") if key in pool} for pool in found}


@operated(a_gpu_node("gpu-0"), slices=["np-a"])
async def test_two_pools_show_what_was_measured_in_each(cluster: FakeCluster) -> None:
    cluster.rates = {"v6e": 300.0, "h100": 900.0}
    await cluster.apply("lm", *POOLS, max=2)
    await cluster.trains("lm", 2)
    await reports(cluster, 300)
    assert await measured(cluster) == {"v6e": {"tokensPerSecond": 300.0, "value": 0.5}, "h100": {"tokensPerSecond": 900.0, "value": 1.5}}


@operated(a_gpu_node("gpu-0"), slices=["np-a"])
async def test_a_pool_keeps_what_was_measured_when_its_units_are_gone(cluster: FakeCluster) -> None:
    cluster.rates = {"v6e": 300.0, "h100": 900.0}
    await cluster.apply("lm", *POOLS, max=2)
    await cluster.trains("lm", 2)
    await reports(cluster, 300)
    known = await measured(cluster)
    await cluster.lose_node("gpu-0")
    await cluster.trains("lm", 1)
    await reports(cluster, 300)
    assert cluster.nodes_of("lm") == {"np-a-0"}
    assert await measured(cluster) == known


@operated(a_gpu_node("gpu-0"), slices=["np-a"], runs=False)
async def test_another_operator_and_the_next_attempt_go_on_with_what_was_measured(cluster: FakeCluster) -> None:
    cluster.rates = {"v6e": 300.0, "h100": 900.0}
    await cluster.start()
    await cluster.apply("lm", *POOLS, max=2)
    await cluster.trains("lm", 2)
    await reports(cluster, 700)
    known = await measured(cluster)
    await cluster.restart()
    assert await measured(cluster) == known
    await cluster.crash("lm-h100-0-a1-0")
    await cluster.when("lm", lambda status: any(unit["attempt"] == 2 for unit in status["units"]))
    await cluster.trains("lm", 2)
    cluster.rates = {"v6e": 300.0, "h100": 600.0}
    await reports(cluster, 20)
    # Some 20 s of 600 in an average over 600 s.
    assert (await measured(cluster))["h100"]["tokensPerSecond"] == pytest.approx(890.0, abs=8.0)
    await cluster.stop()
