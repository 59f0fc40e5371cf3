"""Several jobs and too few slices, with the operator running: who gets the slices, and whose units leave theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.placement.request import HELP

type Scenario = Callable[[MemoryApi, FakeCluster], Awaitable[None]]

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def the_job(name: str, max: int, *, min: int = 1, priority_class: str = "", **pool: str) -> Obj:
    spec: Obj = {"syncer": {}, **({"priorityClassName": priority_class} if priority_class else {})}
    pools = [{**tpu_pool("v6e", "tpu-v6e", "2x2", max=max), **pool}]
    return a_manifest(name, namespace="default", min=min, max=max, pools=pools, spec=spec)


async def states(api: MemoryApi, name: str) -> list[str]:
    found = await api.get(names.DILOCO_JOBS, "default", name)
    return sorted(unit["state"] for unit in found.get("status", {}).get("units", ()))


async def pods(api: MemoryApi) -> set[str]:
    return {pod["metadata"]["name"] for pod in (await api.list(names.PODS)).items}


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


def with_slices(*slices: str) -> Callable[[Scenario], None]:
    """Play the scenario on a cluster with these slices, operator included."""

    def play(scenario: Scenario) -> None:
        async def run() -> None:
            api = await an_api(wall_clock)
            async with FakeCluster(api, wall_clock) as cluster:
                await cluster.add([a_node("cpu-0")])
                for slice_ in slices:
                    await cluster.add(a_tpu_slice(slice_, kind="tpu-v6e-slice", topology="2x2"))
                await scenario(api, cluster)

        run_virtual(run())

    return play


async def restarts(api: MemoryApi, name: str) -> int:
    found = await api.get(names.DILOCO_JOBS, "default", name)
    return sum(unit.get("restarts", 0) for unit in found["status"]["units"])


@pytest.mark.parametrize("priority", [0, 1_000_000])
def test_a_younger_job_gets_its_minimum_although_an_older_one_takes_every_slice(priority: int) -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        meta = {"metadata": {"name": "urgent"}, "value": priority}
        await api.create(names.PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta})
        async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
            await api.create(names.DILOCO_JOBS, the_job("old", 10))
            await until(api, "old", ["Training"] * 3)
            await api.create(names.DILOCO_JOBS, the_job("young", 1, priority_class="urgent"))
            await until(api, "young", ["Training"])
            assert (await states(api, "old")).count("Training") == 2
            assert await restarts(api, "old") == 0
            await asyncio.sleep(600)
            assert ((await states(api, "old")).count("Training"), await states(api, "young")) == (2, ["Training"])

    with_slices("a", "b", "c")(scenario)


def test_a_new_slice_goes_to_the_job_that_waits_for_its_minimum() -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
            await api.create(names.DILOCO_JOBS, the_job("old", 10))
            await until(api, "old", ["Training"])
            await api.create(names.DILOCO_JOBS, the_job("young", 1))
            await until(api, "young", ["Pending"])
            await cluster.add(a_tpu_slice("b", kind="tpu-v6e-slice", topology="2x2"))
            await until(api, "young", ["Training"])
            assert await states(api, "old") == ["Training"]

    with_slices("a")(scenario)


def test_jobs_of_equal_priority_share_what_is_beyond_their_minima() -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
            await api.create(names.DILOCO_JOBS, the_job("first", 10))
            await until(api, "first", ["Training"] * 4)
            await api.create(names.DILOCO_JOBS, the_job("second", 10))
            await until(api, "second", ["Training"] * 2)
            assert (await states(api, "first")).count("Training") == 2
            before = await pods(api)
            await asyncio.sleep(600)
            assert await pods(api) == before, "the jobs exchange slices"

    with_slices("a", "b", "c", "d")(scenario)


def test_an_operator_that_restarts_keeps_a_slice_for_the_job_that_waits_for_its_minimum() -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        telemetry = FakeTelemetry(cluster)
        async with running(an_operator(api, telemetry, now=wall_clock)):
            await api.create(names.DILOCO_JOBS, the_job("old", 10))
            await until(api, "old", ["Training"])
            await api.create(names.DILOCO_JOBS, the_job("young", 1))
            await until(api, "young", ["Pending"])
        await cluster.add(a_tpu_slice("b", kind="tpu-v6e-slice", topology="2x2"))
        async with running(an_operator(api, telemetry, now=wall_clock)):
            await until(api, "young", ["Training"])
            assert await states(api, "old") == ["Training"]

    with_slices("a")(scenario)


async def until_said(api: MemoryApi, name: str, text: str) -> Obj:
    """The status of the job once its first pool says this."""
    for _ in range(1000):
        found: Obj = (await api.get(names.DILOCO_JOBS, "default", name)).get("status", {})
        causes = str(found.get("pools", [{}])[0].get("message", "")).partition(HELP)[0]
        if causes.endswith(text):
            return found
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} says {found['pools'][0]['message']!r}, not {text!r}")


def test_pool_that_waits_names_the_job_that_holds_the_slices_and_what_of_them_is_surplus() -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        meta = {"metadata": {"name": "urgent"}, "value": 1000}
        await api.create(names.PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta})
        async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
            await api.create(names.DILOCO_JOBS, the_job("llama", 10, priority_class="urgent"))
            await until(api, "llama", ["Training"] * 3)
            await api.create(names.DILOCO_JOBS, the_job("gemma", 3))
            held = "1 of this job; 2 held by job default/llama (1 of them surplus, beyond its minimum; its priority is 1000, this job's 0)"
            await until_said(api, "gemma", held)
            await until_said(api, "llama", "2 of this job; 1 held by job default/gemma (none surplus)")
            await api.create(names.DILOCO_JOBS, the_job("late", 2, min=2))
            await until_said(
                api,
                "late",
                "the fleet has 3: 1 of this job; 2 held by 2 jobs: 1 by default/gemma (none surplus), 1 by default/llama (none surplus)",
            )

    with_slices("a", "b", "c")(scenario)


def test_status_explains_once_why_slices_are_lacking() -> None:
    async def scenario(api: MemoryApi, cluster: FakeCluster) -> None:
        manifest = the_job("lm", 3, min=6)
        pools = manifest["spec"]["pools"]
        pools.append({**pools[0], "name": "more"})
        manifest["spec"]["learners"]["max"] = 6
        async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
            await api.create(names.DILOCO_JOBS, manifest)
            status = await until_said(api, "lm", "the fleet has 1: 1 of this job")
        said = {each["type"]: each.get("message", "") for each in status["conditions"]}
        assert [kind for kind, message in said.items() if "the fleet has" in message] == ["Placed"]
        assert said["Placed"] == (
            "1 of 6 units have hardware, learners.min is 6; pool v6e needs 2 more slices of tpu-v6e 2x2, pool more needs 3 more slices of "
            "tpu-v6e 2x2; the fleet has 1: 1 of this job. Add nodes, or lower learners.min or pools[].learners.min"
        )
        assert said["Degraded"].endswith("v6e-1, v6e-2, more-0, more-1 and 1 more wait for slices, see Placed")
        assert all("fleet" not in unit["message"] for unit in status["units"])

    with_slices("a")(scenario)
