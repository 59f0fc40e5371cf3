"""A cluster for the operator's benchmarks: the in-memory API, many single-host slices, and a kubelet that starts pods at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from builders.jobs import JobBuilder
from builders.nodes import a_tpu_node
from builders.operator_run import an_api, an_operator, running
from builders.pods import running_status
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD
from diloco_operator.kube.cache import CachedObject
from diloco_operator.kube.client import Conflict, NotFound, Obj, Resource
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.report import PartState, Report, ReportFault, UnitPhase, UnitReport
from diloco_operator.telemetry.endpoint import Endpoint

NAMESPACE = "default"
UNITS = 16
POOL = "v6e"
STEPS = 100_000
HOST = {"cpu": "180", "memory": "720Gi", "pods": "110"}


def job(name: str) -> Obj:
    """A job of 16 units on slices of one host. A failed unit starts again without a delay."""
    return (
        JobBuilder(name)
        .in_namespace(NAMESPACE)
        .with_learners(UNITS, UNITS)
        .with_restarts(MAX_FAILURES_ON_RECORD // UNITS, initial="0s", max="0s")
        .with_pool(POOL, accelerator="tpu-v6e", topology="2x2", min=UNITS, max=UNITS)
        .with_training(steps=STEPS)
        .build()
    )


def node(name: str, pool: str = "", topology: str = "2x2") -> Obj:
    """A host with four v6e chips. `pool`: the slice that it is part of; "" means a slice of its own."""
    return a_tpu_node(name, kind="tpu-v6e-slice", topology=topology, chips=4, pool=pool or name, resources=HOST)


async def new_api(nodes: int) -> MemoryApi:
    """An API server that knows DiLoCoJobs and has `nodes` slices."""
    api = await an_api(time.time)
    for index in range(nodes):
        host = node(f"v6e-{index}")
        await api.create(names.NODES, host)
        await api.patch(names.NODES, "", host["metadata"]["name"], {"status": host["status"]}, subresource="status")
    return api


class InstantKubelet:
    """Binds and starts every pod as soon as it sees it, and removes a deleted pod at once."""

    def __init__(self, api: MemoryApi, on_running: Callable[[JobKey], None]) -> None:
        self._api = api
        self._on_running = on_running
        self.running: dict[JobKey, dict[str, tuple[str, int]]] = {}
        """Job -> pod name -> (unit, attempt), for learners that run."""
        self._todo: asyncio.Queue[tuple[str, Obj]] = asyncio.Queue()
        self.pods: Reflector[Obj] = Reflector(api, WatchedResource(names.PODS, lambda obj, _: obj), rng=lambda: 0.0)
        self.pods.on_change(self._on_pod)

    def _on_pod(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        meta = held.value["metadata"]
        key = (held.namespace, meta["labels"][names.LABEL_JOB])
        if new is None or new.value["status"].get("phase") != "Running":
            self.running.get(key, {}).pop(held.name, None)
        else:  # not in `_start`: an event from before the pod ran may still come, and would remove it here
            self._runs(key, meta)
        if new is None:
            return
        if new.deleting:
            self._todo.put_nowait(("remove", new.value))
        elif old is None:
            self._todo.put_nowait(("start", new.value))

    async def work(self) -> None:
        while True:
            what, pod = await self._todo.get()
            meta = pod["metadata"]
            with suppress(NotFound, Conflict):  # the pod may be gone: an ended one goes as soon as its deletion is asked for
                if what == "remove":
                    await self._api.delete(names.PODS, meta["namespace"], meta["name"], grace_seconds=0, uid=meta["uid"])
                else:
                    await self._start(pod)

    async def _start(self, pod: Obj) -> None:
        meta = pod["metadata"]
        await self._api.bind(meta["namespace"], meta["name"], meta.get("annotations", {}).get(names.ANNOTATION_NODE, "v6e-0"))
        status = running_status(pod, meta["creationTimestamp"])
        await self._api.patch(names.PODS, meta["namespace"], meta["name"], {"status": status}, subresource="status")

    def _runs(self, key: JobKey, meta: Obj) -> None:
        if meta["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
            self.running.setdefault(key, {})[meta["name"]] = (meta["labels"][names.LABEL_UNIT], int(meta["labels"][names.LABEL_ATTEMPT]))
        self._on_running(key)


class SimulatedTelemetry:
    """Reports that every running learner contributes."""

    def __init__(self) -> None:
        self.kubelet: InstantKubelet | None = None
        self._notify: list[Callable[[JobKey], None]] = []

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def changed(self, key: JobKey) -> None:
        for notify in self._notify:
            notify(key)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None: ...

    def tell(self, key: JobKey, state: PartState) -> None: ...

    def forget(self, key: JobKey) -> None: ...

    def latest(self, key: JobKey) -> Report | None:
        assert self.kubelet is not None
        units = {
            unit: UnitReport(unit=unit, attempt=attempt, phase=UnitPhase.CONTRIBUTING)
            for unit, attempt in self.kubelet.running.get(key, {}).values()
        }
        return Report(received_at=time.time(), t=1, steps=STEPS, seeded=True, units=units)

    def fault(self, key: JobKey) -> ReportFault | None:
        return None

    async def close(self) -> None: ...


class ObservedApi:
    """A client that reports when the operator creates a pod."""

    def __init__(self, api: MemoryApi, on_create: Callable[[str, float], None]) -> None:
        self._api = api
        self._on_create = on_create

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, resource: Resource, obj: Obj, **how: Any) -> Obj:
        if resource is names.PODS and not how.get("dry_run"):
            self._on_create(obj["metadata"]["name"], time.perf_counter())
        return await self._api.create(resource, obj, **how)


@asynccontextmanager
async def operating(
    api: MemoryApi, *, kubelet: bool, on_create: Callable[[str, float], None] = lambda name, at: None
) -> AsyncIterator[InstantKubelet]:
    """Run the operator on `api`, with or without a kubelet. The context begins when the operator knows all objects."""
    telemetry = SimulatedTelemetry()
    instant = InstantKubelet(api, telemetry.changed)
    telemetry.kubelet = instant
    operator = an_operator(ObservedApi(api, on_create), telemetry, now=time.time)
    tasks = [asyncio.create_task(instant.pods.run()), asyncio.create_task(instant.work())] if kubelet else []
    try:
        async with running(operator):
            while not operator.idle:  # noqa: ASYNC110 -- nothing reports the end of the first synchronization
                await asyncio.sleep(0.01)
            yield instant
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
