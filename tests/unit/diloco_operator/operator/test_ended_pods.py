"""Pods that ended by themselves stay for their logs, hold nothing, and go with their job: through the operator, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator import Operator

EPOCH = 1_763_672_400.0
KEY = ("default", "lm")


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class World:
    """One TPU slice, and the job `lm` on it."""

    def __init__(self, api: MemoryApi, cluster: FakeCluster) -> None:
        self.api, self.cluster = api, cluster

    def operator(self) -> Operator:
        return an_operator(self.api, FakeTelemetry(self.cluster), now=wall_clock)

    async def apply(self, name: str, **spec: Any) -> None:
        pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=1)]
        await self.api.create(names.DILOCO_JOBS, a_manifest(name, namespace="default", min=1, max=1, pools=pools, spec=spec))

    async def job(self, name: str = "lm") -> Obj:
        return await self.api.get(names.DILOCO_JOBS, "default", name)

    async def trains(self, name: str = "lm", attempt: int = 1) -> None:
        await self.until(
            f"attempt {attempt} of {name} trains", lambda unit: (unit["state"], unit["attempt"]) == ("Training", attempt), name
        )

    async def until(self, what: str, holds: Callable[[Obj], bool], name: str = "lm") -> None:
        for _ in range(1000):
            units = (await self.job(name)).get("status", {}).get("units")
            if units and holds(units[0]):
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"it never came to: {what}: {units}")

    async def pods(self, job: str = "lm") -> dict[str, str]:
        """Name -> phase."""
        items = (await self.api.list(names.PODS, "default", label_selector=f"{names.LABEL_JOB}={job}")).items
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in items}


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0"), *a_tpu_slice("np-a", kind="tpu-v6e-slice", topology="2x2")])
            await scenario(World(api, cluster))

    run_virtual(run())


def test_a_job_fails_recovers_completes_and_leaves_its_logs_and_its_slice() -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm", ttlSecondsAfterFinished=3600)
            await world.trains()
            for attempt in (1, 2):
                await world.cluster.crash(f"lm-v6e-0-a{attempt}-0")
                await world.trains(attempt=attempt + 1)
                assert await world.pods() == {
                    "lm-syncer": "Running",
                    f"lm-v6e-0-a{attempt}-0": "Failed",
                    f"lm-v6e-0-a{attempt + 1}-0": "Running",
                }
            await world.cluster.complete(KEY)
            await world.until("it is complete", lambda unit: unit["state"] == "Completed")
            await asyncio.sleep(600)
        ended = {"lm-syncer": "Succeeded", "lm-v6e-0-a2-0": "Failed", "lm-v6e-0-a3-0": "Succeeded"}
        assert await world.pods() == ended
        async with running(world.operator()):  # a new one decides from the objects alone
            await world.apply("next")
            await world.trains("next")
            assert await world.pods() == ended
            await asyncio.sleep(3600)
            assert await world.pods() == {}, "the time to live has passed"
            for resource in (names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.VOLUME_CLAIMS):
                left = [obj["metadata"]["name"] for obj in (await world.api.list(resource, "default")).items]
                assert [name for name in left if not name.startswith("next")] == []

    play(scenario)


def test_an_ended_pod_that_others_delete_costs_no_write_and_no_event() -> None:
    """As `kubectl drain` does it, and kube-controller-manager where there are too many."""

    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm")
            await world.trains()
            await world.cluster.crash("lm-v6e-0-a1-0")
            await world.trains(attempt=2)
            await asyncio.sleep(120)
            before, events = await world.job(), (await world.api.list(names.EVENTS, "default")).items
            await world.api.delete(names.PODS, "default", "lm-v6e-0-a1-0")
            await asyncio.sleep(120)
            after = await world.job()
            assert after["status"]["units"] == before["status"]["units"]
            assert after["status"]["conditions"] == before["status"]["conditions"]
            assert (await world.api.list(names.EVENTS, "default")).items == events
            assert await world.pods() == {"lm-syncer": "Running", "lm-v6e-0-a2-0": "Running"}

    play(scenario)


def test_a_learner_that_does_not_end_with_the_job_is_ended() -> None:
    async def scenario(world: World) -> None:
        async with running(world.operator()):
            await world.apply("lm")
            await world.trains()
            await world.cluster.crash("lm-syncer", exit_code=0)
            await world.until("it is complete", lambda unit: unit["state"] == "Completed")
            assert await world.pods() == {"lm-syncer": "Succeeded", "lm-v6e-0-a1-0": "Running"}
            await asyncio.sleep(60)
            assert await world.pods() == {"lm-syncer": "Succeeded"}

    play(scenario)
