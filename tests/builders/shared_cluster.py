"""A cluster that several operators and strangers share: an API server in memory, a scheduler that counts requests, and kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.pods import a_pod
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.fleet import SliceState
from diloco_operator.kube.client import Obj
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator import RunConfig
from diloco_operator.operator.metrics import Metrics

EPOCH = 1_763_672_400.0
TPU = "google.com/tpu"
OPERATOR = RunConfig(stop_grace=0)


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class Scene:
    """An API server, its scheduler and kubelets."""

    def __init__(self, api: MemoryApi, cluster: FakeCluster) -> None:
        self.api = api
        self.cluster = cluster

    def operator(self, run: RunConfig = OPERATOR) -> Any:
        self.metrics = Metrics()
        return running(an_operator(self.api, FakeTelemetry(self.cluster), now=wall_clock, run=run, metrics=self.metrics))

    def slice_states(self) -> dict[str, float | None]:
        """As the newest operator's /metrics reports them."""
        kind = {"accelerator": "tpu-v6e", "topology": "2x2"}
        return {state: self.metrics.registry.get_sample_value("diloco_fleet_slices", {**kind, "state": state}) for state in SliceState}

    @property
    def sees_other_pods(self) -> float | None:
        return self.metrics.registry.get_sample_value("diloco_operator_sees_other_pods")

    async def slices(self, count: int) -> None:
        for index in range(count):
            await self.cluster.add(a_tpu_slice(f"np-{index}", kind="tpu-v6e-slice", topology="2x2"))

    async def train(self, name: str, max: int, *, min: int = 1, namespace: str = "default", pool: Obj | None = None) -> None:
        pools = [pool] if pool else [tpu_pool("v6e", "tpu-v6e", "2x2", max=max)]
        manifest = a_manifest(name, namespace=namespace, min=min, max=max, pools=pools, spec={"syncer": {}})
        await self.api.create(names.DILOCO_JOBS, manifest)

    async def occupy(self, name: str, node: str, **requests: str) -> Obj:
        """Another pod runs on the node."""
        amounts = {TPU if key == "tpu" else key: amount for key, amount in requests.items()}
        pod = a_pod(name, node=node, container={"resources": {"requests": amounts, "limits": amounts}}, metadata={"namespace": "team-a"})
        return await self.api.create(names.PODS, pod)

    async def free(self, *pods: str) -> None:
        for pod in pods:
            await self.api.delete(names.PODS, "team-a", pod, grace_seconds=0)

    async def status(self, name: str, namespace: str = "default") -> Obj:
        found: Obj = (await self.api.get(names.DILOCO_JOBS, namespace, name)).get("status", {})
        return found

    async def units(self, name: str, namespace: str = "default") -> dict[str, tuple[str, str]]:
        """Slice and state of each unit."""
        units = (await self.status(name, namespace)).get("units", ())
        return {unit["name"]: (unit.get("slice", ""), unit["state"]) for unit in units}

    async def message(self, name: str) -> str:
        return str((await self.status(name)).get("pools", [{}])[0].get("message", ""))

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
        for _ in range(600):
            if await holds():
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"never: {what}")

    async def until_training(self, name: str, *slices: str, namespace: str = "default") -> None:
        async def holds() -> bool:
            return sorted((await self.units(name, namespace)).values()) == [(each, "Training") for each in sorted(slices)]

        try:
            await self.until(holds, "")
        except AssertionError:
            raise AssertionError(f"{name} is {await self.units(name, namespace)}, not training on {slices}") from None

    async def until_said(self, name: str, text: str) -> None:
        async def holds() -> bool:
            return text in await self.message(name)

        try:
            await self.until(holds, text)
        except AssertionError:
            raise AssertionError(f"{name} says {await self.message(name)!r}, not {text!r}") from None


@asynccontextmanager
async def a_scene(slices: int) -> AsyncIterator[Scene]:
    api = await an_api(wall_clock)
    for namespace in ("team-a", "team-b"):
        await api.create(names.NAMESPACES, {"metadata": {"name": namespace}})
    async with FakeCluster(api, wall_clock, scheduler=True) as cluster:
        scene = Scene(api, cluster)
        await cluster.add([a_node("cpu-0", resources={"cpu": "64"})])
        await scene.slices(slices)
        yield scene


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]], slices: int = 4) -> None:
    async def run() -> None:
        async with a_scene(slices) as scene:
            await scenario(scene)

    run_virtual(run())
