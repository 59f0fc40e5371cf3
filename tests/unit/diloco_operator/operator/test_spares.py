"""Slices that a job keeps free beside its units, with the operator running."""

from __future__ import annotations

import asyncio

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import tpu_pool
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

pytestmark = pytest.mark.slow


async def apply(cluster: FakeCluster, name: str, max: int, *, min: int = 1, spares: int = 0) -> None:
    await cluster.apply(name, {**tpu_pool("v6e", "tpu-v6e", "2x2", max=max), "spares": spares}, min=min, max=max)


async def until_training(cluster: FakeCluster, name: str, units: int) -> None:
    def holds(status: Obj) -> bool:
        return [unit["state"] for unit in status.get("units", ())].count("Training") == units

    await cluster.when(name, holds, what=f"{units} units train")


async def until_spares(cluster: FakeCluster, name: str, count: int) -> None:
    await cluster.when(name, lambda status: status.get("pools", [{}])[0].get("spares", 0) == count, what=f"{count} spares")


async def states(cluster: FakeCluster, name: str) -> list[str]:
    return sorted(state for _, state in (await cluster.units(name)).values())


@operated(slices=["a", "b", "c", "d", "e"])
async def test_unit_that_loses_its_slice_takes_the_spare_that_another_job_would_have_got(cluster: FakeCluster) -> None:
    await apply(cluster, "lm", 2, spares=1)
    await until_training(cluster, "lm", 2)
    await until_spares(cluster, "lm", 1)
    await apply(cluster, "rival", 10)  # equal shares: one unit beyond the minimum each, and the fifth slice is the older job's spare
    await until_training(cluster, "rival", 2)
    await asyncio.sleep(600)
    assert await states(cluster, "rival") == ["Training", "Training"]
    node = min(cluster.nodes_of("lm"))
    await cluster.lose_node(node)
    await until_spares(cluster, "lm", 0)
    await until_training(cluster, "lm", 2)
    assert await states(cluster, "rival") == ["Training", "Training"]
    assert node not in cluster.nodes_of("lm")
    assert max(unit.get("recoverSeconds", 0.0) for unit in (await cluster.status("lm"))["units"]) < 10


@operated(slices=["a", "b", "c"])
async def test_spare_goes_to_a_job_that_waits_for_its_minimum(cluster: FakeCluster) -> None:
    await apply(cluster, "lm", 2, spares=1)
    await until_spares(cluster, "lm", 1)
    await apply(cluster, "young", 1)
    await until_training(cluster, "young", 1)
    await until_spares(cluster, "lm", 0)
    assert await states(cluster, "lm") == ["Training", "Training"]


@operated(slices=["a", "b", "c"])
async def test_no_unit_of_another_job_leaves_for_a_spare(cluster: FakeCluster) -> None:
    await apply(cluster, "old", 10)
    await until_training(cluster, "old", 3)
    await apply(cluster, "lm", 1, spares=2)
    await until_training(cluster, "lm", 1)
    await asyncio.sleep(600)
    assert (await states(cluster, "old")).count("Training") == 2
    assert "spares" not in (await cluster.status("lm"))["pools"][0]
    await cluster.api.delete(names.DILOCO_JOBS, NS, "old")
    await until_spares(cluster, "lm", 2)


@operated(slices=["a", "b", "c"])
async def test_units_come_before_spares(cluster: FakeCluster) -> None:
    await apply(cluster, "lm", 2, spares=2)
    await until_spares(cluster, "lm", 1)
    await cluster.edit("lm", learners={"min": 1, "max": 3}, pools=[{**tpu_pool("v6e", "tpu-v6e", "2x2", max=3), "spares": 2}])
    await until_training(cluster, "lm", 3)
    await until_spares(cluster, "lm", 0)


@operated(slices=["a", "b", "c"], runs=False)
async def test_operator_that_restarts_keeps_the_spares(cluster: FakeCluster) -> None:
    async with cluster.operating():
        await apply(cluster, "lm", 2, spares=1)
        await until_spares(cluster, "lm", 1)
    async with cluster.operating():
        await apply(cluster, "rival", 10)
        await asyncio.sleep(600)
        assert (await states(cluster, "rival")).count("Training") == 1  # its minimum
        assert await states(cluster, "lm") == ["Training", "Training"]


async def attempts(cluster: FakeCluster, name: str) -> list[int]:
    return [unit["attempt"] for unit in (await cluster.status(name))["units"]]


@operated(slices=["a", "b", "c"], kubelets=False)
async def test_units_that_only_start_take_no_spare(cluster: FakeCluster) -> None:
    await apply(cluster, "lm", 2, spares=1)
    await until_spares(cluster, "lm", 1)
    await asyncio.sleep(20)
    assert await states(cluster, "lm") == ["Starting", "Starting"]
    assert await attempts(cluster, "lm") == [1, 1]
    await until_spares(cluster, "lm", 1)


@operated(slices=["a", "b", "c"])
async def test_unit_that_fails_and_keeps_its_slice_takes_no_spare(cluster: FakeCluster) -> None:
    await apply(cluster, "lm", 2, spares=1)
    await until_spares(cluster, "lm", 1)
    await until_training(cluster, "lm", 2)
    nodes = cluster.nodes_of("lm")
    await cluster.crash("lm-v6e-0-a1-0")
    await cluster.when("lm", lambda status: status["units"][0]["attempt"] == 2, what="the unit starts again")
    await until_training(cluster, "lm", 2)
    assert cluster.nodes_of("lm") == nodes
    await until_spares(cluster, "lm", 1)
