"""Two jobs and too few slices: the Scavenged job is preempted, and returns when the other is done."""

from __future__ import annotations

import asyncio

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.memory import MemoryApi

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def the_job(name: str, max: int, **pool: str) -> Obj:
    return a_manifest(
        name, namespace="default", min=1, max=max, pools=[{**tpu_pool("v6e", "tpu-v6e", "2x2", max=max), **pool}], spec={"syncer": {}}
    )


async def states(api: MemoryApi, name: str) -> list[str]:
    found = await api.get(names.DILOCO_JOBS, "default", name)
    return sorted(unit["state"] for unit in found.get("status", {}).get("units", ()))


async def until(api: MemoryApi, name: str, wanted: list[str]) -> None:
    for _ in range(1000):
        if await states(api, name) == wanted:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} is {await states(api, name)}, not {wanted}")


def test_scavenged_job_gives_one_slice_back_for_one_missing_slice_and_takes_it_again_later() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0")])
            for slice_ in ("a", "b", "c"):
                await cluster.add(a_tpu_slice(f"np-{slice_}", kind="tpu-v6e-slice", topology="2x2"))
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job("scavenger", 3, capacity="Scavenged"))
                await until(api, "scavenger", ["Training"] * 3)
                await api.create(names.DILOCO_JOBS, the_job("paid", 1))
                await until(api, "paid", ["Training"])
                assert await states(api, "scavenger") == ["Pending", "Training", "Training"]
                await asyncio.sleep(600)
                assert await states(api, "scavenger") == ["Pending", "Training", "Training"]
                await api.delete(names.DILOCO_JOBS, "default", "paid")
                await until(api, "scavenger", ["Training"] * 3)

    run_virtual(run())
