"""Units of several hosts through the API: an operator runs, and zones have more or less room."""

from __future__ import annotations

import asyncio
from typing import Any

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, gpu_pool
from builders.nodes import a_gpu_node, a_node
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.memory import MemoryApi

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def hosts(zone: str, count: int) -> list[Obj]:
    return [a_gpu_node(f"{zone}-{i}", labels={names.NODE_ZONE: zone}) for i in range(count)]


def the_job(**pool: Any) -> Obj:
    return a_manifest(namespace="default", min=1, max=1, pools=[gpu_pool(hosts=2, max=1, **pool)])


async def status_when(api: MemoryApi, holds: Any) -> Obj:
    for _ in range(400):
        status: Obj = (await api.get(names.DILOCO_JOBS, "default", "bytes-lm")).get("status", {})
        if holds(status):
            return status
        await asyncio.sleep(0.5)
    raise AssertionError(status)


def trains(status: Obj) -> bool:
    return [unit["state"] for unit in status.get("units", ())] == ["Training"]


def waits(status: Obj) -> bool:
    return bool(status.get("pools")) and status["pools"][0]["reason"] == "NoFreeSlice"


def test_unit_of_two_hosts_waits_for_a_zone_with_room_and_says_so() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0"), *hosts("z1", 1), *hosts("z2", 1)])
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job())
                status = await status_when(api, waits)
                assert "2 free, but a unit needs 2 in one zone (zone z1: 1, zone z2: 1)" in status["pools"][0]["message"]
                await cluster.add(hosts("z3", 2))
                status = await status_when(api, trains)
                assert status["units"][0]["slice"] == "z3-0+z3-1"

    run_virtual(run())


def test_pool_of_any_locality_takes_hosts_of_two_zones() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0"), *hosts("z1", 1), *hosts("z2", 1)])
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job(locality="Any"))
                assert (await status_when(api, trains))["units"][0]["slice"] == "z1-0+z2-0"

    run_virtual(run())
