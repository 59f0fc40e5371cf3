"""The objects that an operator leaves in a cluster, made by a scenario. The operator that follows restores them and goes on from there.

See docs/decisions/0136-upgrades-restart-nothing.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import Obj, a_manifest, cpu_pool, gpu_pool, template, tpu_pool
from builders.nodes import a_gpu_node, a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco.contract import Exit
from diloco_local.memory import MemoryApi
from diloco_operator.api import names

NAMESPACE = "default"
EPOCH = 1_763_672_400.0
"""The wall clock when the scenario begins, in seconds since the epoch."""
_LEFT_OUT = ("CustomResourceDefinition", "Event")
"""Whoever restores brings the CRD; an Event changes nothing."""


# --- the scenario -----------------------------------------------------------------------------------------------------
def the_fleet() -> list[Obj]:
    return [
        *(a_node(f"cpu-{index}") for index in range(4)),
        *(node for slice_ in ("np-a", "np-b", "np-c") for node in a_tpu_slice(slice_, 2, topology="2x2x2")),
        *(a_tpu_slice("np-one", kind="tpu-v6e-slice", topology="2x2")),
        *(a_gpu_node(f"gpu-{index}") for index in range(4)),
    ]


def the_jobs() -> list[Obj]:
    """`mixed` trains on three kinds of hardware, `own-syncer` has a template for everything, `paused` is suspended, `done` is complete."""
    mixed = a_manifest(
        "mixed",
        namespace=NAMESPACE,
        min=2,
        max=6,
        pools=[tpu_pool("v5p", max=2), gpu_pool("h100", hosts=2, max=2), cpu_pool("cpu", max=2)],
        steps=2400,
        syncInterval=48,
        merge={"method": "Average"},
        grace={"safetyFactor": 0.5},
    )
    mixed["spec"]["learners"]["restart"] = {"limit": 2, "window": "2h", "backoff": {"initial": "10m", "max": "10m"}}
    torch = template(command=("torchrun", "train.py"), env={"SEED": 3, "NCCL_DEBUG": "INFO"}, terminationGracePeriodSeconds=20)
    torch["metadata"] = {"labels": {"team": "a"}, "annotations": {"example.org/cost": "b"}}
    syncer = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [{"name": "syncer", "resources": {"requests": {"cpu": 2, "memory": "4Gi"}}}]},
    }
    own = a_manifest(
        "own-syncer",
        namespace=NAMESPACE,
        min=1,
        max=1,
        pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=1, template=torch)],
        spec={"syncer": {"template": syncer}, "priorityClassName": "research"},
        compression="Int4",
    )
    paused = a_manifest("paused", namespace=NAMESPACE, min=1, max=1, pools=[cpu_pool("cpu", max=1)])
    done = a_manifest("done", namespace=NAMESPACE, min=1, max=1, pools=[tpu_pool("v5p", max=1)])
    return [mixed, own, paused, done]


async def play(api: MemoryApi, cluster: FakeCluster) -> None:
    """Wait until `mixed` has four units that train, one that backs off and one given up, and the other jobs are as their names say."""
    await cluster.add(the_fleet())
    priority = {"metadata": {"name": "research"}, "value": 1000}
    await api.create(names.PRIORITY_CLASSES, priority)
    async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
        mixed, own, paused, done = the_jobs()
        await api.create(names.DILOCO_JOBS, done)
        await until(api, "done", {"v5p-0": "Training"})
        await cluster.complete((NAMESPACE, "done"))
        await until(api, "done", {"v5p-0": "Completed"})
        await api.create(names.DILOCO_JOBS, paused)
        await until(api, "paused", {"cpu-0": "Training"})
        suspend = {"spec": {"suspend": True}}
        await api.patch(names.DILOCO_JOBS, NAMESPACE, "paused", suspend, field_manager="user")
        await until(api, "paused", {"cpu-0": "Pending"})
        await api.create(names.DILOCO_JOBS, own)
        await api.create(names.DILOCO_JOBS, mixed)
        await until(api, "own-syncer", {"v6e-0": "Training"})
        everyone = dict.fromkeys(("v5p-0", "v5p-1", "h100-0", "h100-1", "cpu-0", "cpu-1"), "Training")
        await until(api, "mixed", everyone)
        await cluster.crash("mixed-cpu-1-a1-0")
        await until_it_trains_again(api, "cpu-1")
        await cluster.crash("mixed-cpu-1-a2-0", exit_code=Exit.REFUSED_LAYOUT)
        await until(api, "mixed", everyone | {"cpu-1": "Failed"})
        await cluster.crash("mixed-h100-1-a1-1")  # the first failure has no pause
        await until_it_trains_again(api, "h100-1")
        await cluster.crash("mixed-h100-1-a2-0")
        await until(api, "mixed", everyone | {"cpu-1": "Failed", "h100-1": "BackingOff"})
        await asyncio.sleep(60)  # what is still due: pods that end, figures


async def until_it_trains_again(api: MemoryApi, unit: str) -> None:
    """Wait until the second attempt of a unit of `mixed` trains."""
    for _ in range(4000):
        found = await api.get(names.DILOCO_JOBS, NAMESPACE, "mixed")
        if any((each["name"], each["attempt"], each["state"]) == (unit, 2, "Training") for each in found["status"]["units"]):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{unit} does not train again: {found['status']}")


async def until(api: MemoryApi, name: str, wanted: Mapping[str, str]) -> None:
    """Wait until the units of the job are in these states."""
    for _ in range(4000):
        if await states(api, name) == wanted:
            return
        await asyncio.sleep(0.5)
    found = await api.get(names.DILOCO_JOBS, NAMESPACE, name)
    raise AssertionError(f"{name} is not {wanted}: {found.get('status')}")


async def states(api: MemoryApi, name: str) -> dict[str, str]:
    """Unit -> state, of one job."""
    found = await api.get(names.DILOCO_JOBS, NAMESPACE, name)
    return {unit["name"]: unit["state"] for unit in found.get("status", {}).get("units", ())}


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


# --- made and restored ------------------------------------------------------------------------------------------------
def make() -> dict[str, Any]:
    """All objects at the end of the scenario, and when that was."""

    async def scenario() -> dict[str, Any]:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await play(api, cluster)
            dump = api.dump()
        objects = [obj for obj in dump["objects"] if obj["kind"] not in _LEFT_OUT]
        return {"takenAt": wall_clock(), **dump, "objects": objects}

    return run_virtual(scenario())


async def restore(state: Mapping[str, Any], now: Callable[[], float]) -> MemoryApi:
    """An API server that holds what `make` returned and the CRD. `now`: the wall clock in seconds since the epoch."""
    [crd] = [obj for obj in (await an_api(now)).dump()["objects"] if obj["kind"] == names.CUSTOM_RESOURCES.kind]
    everything = {**state, "objects": [crd, *state["objects"]]}
    return MemoryApi.restore(everything, clock=lambda: datetime.fromtimestamp(now(), tz=UTC), random=random.Random(5))
