"""An operator whose writes are rejected: by a quota, or by a namespace that is being deleted."""

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
from diloco_operator.kube.client import Forbidden, Obj
from diloco_operator.kube.memory import MemoryApi

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class Guarded:
    """The API server behind an admission that `rejects` objects with a message. Counts the operator's creates."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.rejects: Callable[[Obj], str] = lambda _: ""
        self.tried: list[str] = []
        self.emitted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, resource: Any, obj: Obj, **options: Any) -> Obj:
        if resource == names.EVENTS:
            self.emitted.append(obj["reason"])
        else:
            self.tried.append(obj["metadata"]["name"])
        if message := self.rejects(obj):
            raise Forbidden(403, "Forbidden", message)
        return await self._api.create(resource, obj, **options)


def play(scenario: Callable[[MemoryApi, Guarded], Awaitable[None]]) -> Guarded:
    """An operator with a small fleet."""

    async def run() -> Guarded:
        api = await an_api(wall_clock)
        guarded: Any = Guarded(api)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add([a_node("cpu-0")])
            await cluster.add(a_tpu_slice("np-v5p-a", 2, topology="2x2x2"))
            await cluster.add(a_tpu_slice("np-v6e-a", kind="tpu-v6e-slice", topology="2x2"))
            async with running(an_operator(guarded, FakeTelemetry(cluster), now=wall_clock)) as operating:
                playing = asyncio.ensure_future(scenario(api, guarded))
                await asyncio.wait([operating, playing], return_when=asyncio.FIRST_COMPLETED)
                if operating.done():
                    operating.result()
                await playing
        return guarded  # type: ignore[no-any-return]

    return run_virtual(run())


def the_job(namespace: str = "default") -> Obj:
    manifest = a_manifest("lm", min=1, max=2, pools=[tpu_pool("v5p", max=1), tpu_pool("v6e", "tpu-v6e", "2x2", max=1)], spec={"syncer": {}})
    manifest["metadata"]["namespace"] = namespace
    return manifest


async def until(api: MemoryApi, condition: Callable[[Obj], bool], namespace: str = "default") -> None:
    for _ in range(2000):
        found = await api.get(names.DILOCO_JOBS, namespace, "lm")
        if condition(found.get("status", {})):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"it never came to that; status: {found.get('status')}")


def units(status: Obj) -> dict[str, Obj]:
    return {unit["name"]: unit for unit in status.get("units", ())}


def test_pool_with_rejected_pods_does_not_delay_the_other_and_starts_when_it_may() -> None:
    async def scenario(api: MemoryApi, guarded: Guarded) -> None:
        # only the second host of the v5p slice, so that half of a gang is created again and again
        guarded.rejects = lambda obj: (
            "exceeded quota: pods" if obj["metadata"]["name"].startswith("lm-v5p") and obj["metadata"]["name"].endswith("-1") else ""
        )
        await api.create(names.DILOCO_JOBS, the_job())
        await until(api, lambda s: units(s).get("v6e-0", {}).get("state") == "Training")
        await until(api, lambda s: units(s).get("v5p-0", {}).get("reason") == "PodsRefused")
        begun = len(guarded.tried)
        await asyncio.sleep(3600)
        # Two pods and their list for each try, with pauses of 5, 10, … 160 s and then 300 s: at most 6 + 12 tries in an hour.
        assert len(guarded.tried) - begun <= 3 * 18
        found = units((await api.get(names.DILOCO_JOBS, "default", "lm"))["status"])
        assert (found["v6e-0"]["state"], found["v6e-0"]["attempt"]) == ("Training", 1)
        assert found["v5p-0"]["restarts"] == 0
        guarded.rejects = lambda _: ""
        await until(api, lambda s: units(s)["v5p-0"]["state"] == "Training")

    play(scenario)


def test_unit_whose_list_of_hosts_is_rejected_does_not_delay_the_other_and_starts_when_it_may() -> None:
    async def scenario(api: MemoryApi, guarded: Guarded) -> None:
        guarded.rejects = lambda obj: "exceeded quota: configmaps" if "-hosts-" in obj["metadata"]["name"] else ""
        await api.create(names.DILOCO_JOBS, the_job())
        await until(api, lambda s: units(s).get("v6e-0", {}).get("state") == "Training")
        await until(api, lambda s: units(s).get("v5p-0", {}).get("reason") == "PodsRefused")
        assert "exceeded quota: configmaps" in units((await api.get(names.DILOCO_JOBS, "default", "lm"))["status"])["v5p-0"]["message"]
        guarded.rejects = lambda _: ""
        await until(api, lambda s: units(s)["v5p-0"]["state"] == "Training")
        lists = [each["metadata"]["name"] for each in (await api.list(names.CONFIG_MAPS, "default")).items]
        assert sorted(lists) == ["lm-job", "lm-v5p-0-a1-hosts-2"]

    play(scenario)


def test_namespace_that_is_being_deleted_is_left_alone() -> None:
    async def scenario(api: MemoryApi, guarded: Guarded) -> None:
        await api.create(names.DILOCO_JOBS, the_job())
        await until(api, lambda s: {unit["state"] for unit in units(s).values()} == {"Training"})
        # As a namespace is deleted: nothing new may be created in it, and its pods are deleted before the job.
        guarded.rejects = lambda obj: (
            "unable to create new content in namespace default because it is being terminated" if obj["kind"] != "Node" else ""
        )
        for pod in (await api.list(names.PODS, "default")).items:
            await api.delete(names.PODS, "default", pod["metadata"]["name"], grace_seconds=0)
        begun, emitted = len(guarded.tried), len(guarded.emitted)
        await asyncio.sleep(600)
        # Tries of the syncer, without which no learner is created: 5, 15, 35, 75, 155, 315 s after the first one, 600 s at the latest.
        assert 1 <= len(guarded.tried) - begun <= 12
        assert guarded.emitted[emitted:].count("WriteRefused") == 1  # for the changed condition, not for every try
        await api.delete(names.DILOCO_JOBS, "default", "lm")
        begun = len(guarded.tried)
        await asyncio.sleep(600)
        assert len(guarded.tried) == begun

    play(scenario)


def test_namespace_that_goes_under_a_running_job_costs_a_bounded_number_of_requests() -> None:
    """Deleted as by kubectl, with an API server that rejects new objects. A finalizer keeps the job, and so the namespace."""

    async def scenario(api: MemoryApi, guarded: Guarded) -> None:
        await api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
        manifest = the_job("team")
        manifest["metadata"]["finalizers"] = ["example.com/audit"]
        await api.create(names.DILOCO_JOBS, manifest)

        await until(api, lambda s: {unit["state"] for unit in units(s).values()} == {"Training"}, namespace="team")
        writes = api.writes
        await api.delete(names.NAMESPACES, "", "team")
        await asyncio.sleep(60)
        quiet = api.writes
        # The namespace, 4 pods that end (syncer, two hosts, one) and 7 other objects. The rest is room for events of the job.
        assert quiet - writes <= 2 * 12
        tried = len(guarded.tried)
        await asyncio.sleep(3600)
        assert (api.writes, len(guarded.tried)) == (quiet, tried)

    play(scenario)
