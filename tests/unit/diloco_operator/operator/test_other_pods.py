"""Jobs on a cluster where other pods use some of the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, cpu_pool, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.pods import a_pod
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Forbidden, Obj, PatchType, Resource
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator import RunConfig
from diloco_operator.timeouts import WatchTimeouts

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
        return running(an_operator(self.api, FakeTelemetry(self.cluster), now=wall_clock, run=run))

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


def all_of(count: int, *but: int) -> list[str]:
    return [f"np-{index}-0" for index in range(count) if index not in but]


def test_units_take_the_slices_that_others_leave_and_fail_on_none() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("train-0", "np-0-0", tpu="4")
        await scene.occupy("train-1", "np-1-0", tpu="1")
        async with scene.operator():
            await scene.train("lm", 10)
            await scene.until_training("lm", *all_of(10, 0, 1))
            assert {unit["attempt"] for unit in (await scene.status("lm"))["units"]} == {1}
            await scene.until_said("lm", "8 of this job; 2 of 10 slices are used by other pods: team-a/train-0 and 1 more")
            await scene.free("train-0", "train-1")
            await scene.until_training("lm", *all_of(10))
            assert {unit["attempt"] for unit in (await scene.status("lm"))["units"]} == {1}

    play(scenario, 10)


def test_job_that_waits_is_woken_when_another_pod_ends() -> None:
    async def scenario(scene: Scene) -> None:
        pod = await scene.occupy("train-0", "np-0-0", tpu="4")
        async with scene.operator():
            await scene.train("lm", 1)
            await scene.until_said("lm", "the fleet has 1: 1 of 1 slices is used by other pods: team-a/train-0")
            await scene.api.patch(
                names.PODS, "team-a", "train-0", {"status": {"phase": "Succeeded"}}, type=PatchType.MERGE, subresource="status"
            )
            begun = asyncio.get_running_loop().time()
            await scene.until_training("lm", "np-0-0")
            assert asyncio.get_running_loop().time() - begun < 5  # far less than the time between two tries
            assert (await scene.api.get(names.PODS, "team-a", "train-0"))["metadata"]["uid"] == pod["metadata"]["uid"]

    play(scenario, 1)


def test_pod_that_comes_beside_a_unit_evicts_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.operator():
            await scene.train("lm", 1)
            await scene.until_training("lm", "np-0-0")
            await scene.occupy("train-0", "np-0-0", tpu="4")
            await asyncio.sleep(600)
            assert await scene.units("lm") == {"v6e-0": ("np-0-0", "Training")}
            assert (await scene.status("lm"))["units"][0]["attempt"] == 1
            await scene.cluster.crash("lm-v6e-0-a1-0")
            await scene.until_training("lm", "np-1-0")  # no pod may return beside the other

    play(scenario, 2)


def test_pods_that_use_no_accelerators_leave_a_slice_to_units_that_fit_beside_them() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("agent", "np-0-0", cpu="2")
        async with scene.operator():
            await scene.train("lm", 1)
            await scene.until_training("lm", "np-0-0")

    play(scenario, 1)


def test_unit_that_needs_more_than_a_node_has_left_says_what_and_who_has_it() -> None:
    async def scenario(scene: Scene) -> None:
        for index in range(3):
            await scene.occupy(f"web-{index}", "cpu-0", cpu="10")
        pool = cpu_pool(max=1)
        pool["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
        async with scene.operator():
            await scene.train("lm", 1, pool=pool)
            await scene.until_said("lm", "needs 40 CPU, node cpu-0 has ")
            assert "CPU left: team-a/web-0 and " in await scene.message("lm")
            assert await scene.units("lm") == {"cpu-0": ("", "Pending")}
            await scene.free("web-0")
            await scene.until_training("lm", "cpu-0")

    play(scenario, 0)


def test_node_is_taken_only_once_its_device_plugin_reports() -> None:
    async def scenario(scene: Scene) -> None:
        silent = {"status": {"allocatable": {TPU: "0"}}}
        await scene.api.patch(names.NODES, "", "np-0-0", silent, type=PatchType.MERGE, subresource="status")
        async with scene.operator():
            await scene.train("lm", 1)
            await scene.until_said("lm", "1 unusable: node np-0-0 offers no google.com/tpu now: its device plugin has not reported any")
            ready = {"status": {"allocatable": {TPU: "4"}}}
            await scene.api.patch(names.NODES, "", "np-0-0", ready, type=PatchType.MERGE, subresource="status")
            await scene.until_training("lm", "np-0-0")

    play(scenario, 1)


def test_pod_that_only_carries_the_label_of_a_job_is_another_pod() -> None:
    async def scenario(scene: Scene) -> None:
        pod = a_pod("mine", node="np-0-0", container={"resources": {"limits": {TPU: "4"}}}, metadata={"labels": {names.LABEL_JOB: "lm"}})
        await scene.api.create(names.PODS, pod)
        async with scene.operator():
            await scene.train("lm", 2)
            await scene.until_training("lm", "np-1-0")
            assert (await scene.status("lm"))["units"][0]["attempt"] == 1

    play(scenario, 2)


def test_operators_of_two_namespaces_take_different_slices() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = (RunConfig(stop_grace=0, namespaces=(namespace,)) for namespace in ("team-a", "team-b"))
        async with scene.operator(first):
            await scene.train("lm", 2, namespace="team-a")
            await scene.until_training("lm", "np-0-0", "np-1-0", namespace="team-a")
            async with scene.operator(second):
                await scene.train("lm", 3, namespace="team-b")
                await scene.until_training("lm", "np-2-0", "np-3-0", namespace="team-b")
                assert {unit["attempt"] for unit in (await scene.status("lm", "team-b"))["units"]} == {1}
                message = (await scene.status("lm", "team-b"))["pools"][0]["message"]
                assert "2 of 4 slices are used by other pods: team-a/lm-v6e-0-a1-0 and 1 more" in message
                await scene.api.delete(names.DILOCO_JOBS, "team-a", "lm")
                await scene.until_training("lm", "np-0-0", "np-2-0", "np-3-0", namespace="team-b")

    play(scenario)


@pytest.mark.parametrize("namespaces", [(), ("default", "team-b")])
def test_operator_that_may_not_see_other_pods_says_so_and_works_on(namespaces: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        forbidden = True

        def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
            task = asyncio.current_task()
            if forbidden and verb == "list" and task is not None and task.get_name().startswith("watching pods with "):
                raise Forbidden(403, "Forbidden", "pods is forbidden at the cluster scope")

        scene.api.before = reject
        await scene.occupy("train-0", "np-1-0", tpu="4")
        run = RunConfig(stop_grace=0, namespaces=namespaces, watches=WatchTimeouts())
        async with scene.operator(run):
            await scene.train("lm", 1)
            await scene.until_training("lm", "np-0-0")
            assert "Without this right the operator does not see which nodes other pods use" in caplog.text
            assert caplog.text.count("Without this right") == (2 if namespaces else 1)  # once for each watch, not at each try
            forbidden = False
            await asyncio.sleep(300)
            await scene.train("next", 3)
            await scene.until_training("next", "np-2-0", "np-3-0")

    play(scenario)


def test_operator_that_starts_anew_sees_the_same() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.occupy("train-0", "np-0-0", tpu="4")
        async with scene.operator():
            await scene.train("lm", 2)
            await scene.until_training("lm", "np-1-0", "np-2-0")
        async with scene.operator():
            await scene.train("next", 4)
            await scene.until_training("next", "np-3-0")
            await asyncio.sleep(60)
            await scene.until_training("lm", "np-1-0", "np-2-0")

    play(scenario)
