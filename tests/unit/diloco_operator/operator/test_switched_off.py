"""A user switches a pool of a running job off by `learners.max: 0`, and on again."""

from __future__ import annotations

import asyncio

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node, a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import PatchType
from diloco_operator.kube.memory import MemoryApi

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


async def set_maximum(api: MemoryApi, maximum: int) -> None:
    """Of the pool of GPUs."""
    pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=1), gpu_pool(max=maximum)]
    await api.patch(names.DILOCO_JOBS, "default", "lm", {"spec": {"pools": pools}}, type=PatchType.MERGE, field_manager="user")


async def until(api: MemoryApi, wanted: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for _ in range(1000):
        status = (await api.get(names.DILOCO_JOBS, "default", "lm")).get("status", {})
        found = {unit["name"]: unit["state"] for unit in status.get("units", ())}
        if found == wanted:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"the units are {found}, not {wanted}")


def test_units_of_a_pool_that_is_switched_off_leave_and_return_when_it_is_switched_on() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0"), *a_tpu_slice("np-a", kind="tpu-v6e-slice", topology="2x2"), a_gpu_node("gpu-0")])
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)) as operating:
                job = a_manifest("lm", namespace="default", min=1, max=2, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=1), gpu_pool(max=1)])
                await api.create(names.DILOCO_JOBS, job)
                await until(api, {"v6e-0": "Training", "h100-0": "Training"})
                await set_maximum(api, 0)
                await until(api, {"v6e-0": "Training", "h100-0": "Pending"})
                await asyncio.sleep(600)  # and so it stays
                await until(api, {"v6e-0": "Training", "h100-0": "Pending"})
                pods = [pod["metadata"]["name"] for pod in (await api.list(names.PODS, "default")).items]
                assert sorted(pods) == ["lm-syncer", "lm-v6e-0-a1-0"]
                scale = await api.get(names.DILOCO_JOBS, "default", "lm", subresource="scale")
                assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 1)
                await set_maximum(api, 1)
                await until(api, {"v6e-0": "Training", "h100-0": "Training"})
                assert not operating.done()

    run_virtual(run())
