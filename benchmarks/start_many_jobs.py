"""[start-many-jobs] Longest hold of the event loop after an operator starts to lead, with 10,000 jobs of one tenant that want 8 slices.

[start-many-jobs-neighbour] is the time that a job of another tenant waits for its first pod meanwhile, from the moment when the operator
leads. `ratio` is that time over the same without the crowd, in the same run. `later_seconds` is the wait of a second such job, which is
created while the crowd still waits. The hold is measured as in the operator's own metrics, by the watch of the loop. The API server is in
memory and on the same loop, so its work counts as well; each request takes a turn of its own, as with a real server. Only the server's
objects are left out of garbage collections, since in another process they would not slow these down.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from builders.jobs import JobBuilder
from builders.nodes import a_tpu_node
from builders.operator_run import an_operator
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.operator.garbage import Garbage
from diloco_operator.operator.loop_watch import watched_loop

from benchmarks.figure import Figure
from benchmarks.reference import usual_figure
from benchmarks.simulated_cluster import InstantKubelet, SimulatedTelemetry, new_api

HOLD_LIMIT_MS = 250.0
NEIGHBOUR_LIMIT = 5.0
CROWD, QUIET = "crowd", "quiet"
WITHIN = 240.0
"""Seconds after which the benchmark gives up."""


@dataclass(frozen=True, slots=True)
class Size:
    jobs: int
    slices: int


FULL = Size(jobs=10_000, slices=8)
SMOKE = Size(jobs=30, slices=2)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an operator, in seconds."""

    hold: float
    """Longest hold while the operator leads."""
    hold_before: float
    """Longest hold while the operator lists, before it leads. Nothing waits for it then."""
    neighbour: float
    """Time from the beginning of the lead to the first pod of the job that exists already."""
    later: float
    """Time from the creation of another job to its first pod."""


class TurningApi:
    """An API in which each request takes at least one turn of the loop. It notes when the first pod of each job was created."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.first_pod: dict[tuple[str, str], float] = {}
        self.changed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def list(self, *what: Any, **how: Any) -> Any:
        await asyncio.sleep(0)
        return await self._api.list(*what, **how)

    async def patch(self, *what: Any, **how: Any) -> Obj:
        await asyncio.sleep(0)
        return await self._api.patch(*what, **how)

    async def update(self, *what: Any, **how: Any) -> Obj:
        await asyncio.sleep(0)
        return await self._api.update(*what, **how)

    async def create(self, resource: Any, obj: Obj, **how: Any) -> Obj:
        await asyncio.sleep(0)
        created = await self._api.create(resource, obj, **how)
        if resource is names.PODS and not how.get("dry_run"):
            meta = obj["metadata"]
            self.first_pod.setdefault((meta["namespace"], meta["labels"][names.LABEL_JOB]), time.perf_counter())
            self.changed.set()
        return created

    async def pod_of(self, namespace: str, job: str) -> float:
        """Wait for the job's first pod, and return when it was created, on `time.perf_counter`'s clock."""
        async with asyncio.timeout(WITHIN):
            while (namespace, job) not in self.first_pod:
                self.changed.clear()
                await self.changed.wait()
        return self.first_pod[namespace, job]


def a_job(name: str, namespace: str, accelerator: str, topology: str) -> Obj:
    return (
        JobBuilder(name)
        .in_namespace(namespace)
        .with_learners(1, 1)
        .with_pool("pool", accelerator=accelerator, topology=topology, max=1)
        .with_training(steps=1000)
        .build()
    )


async def prepared(crowd: int, slices: int) -> MemoryApi:
    api = await new_api(slices)
    for name in (CROWD, QUIET):
        await api.create(names.NAMESPACES, {"metadata": {"name": name}})
    for name in ("quiet-0", "quiet-1"):
        host = a_tpu_node(name)
        await api.create(names.NODES, host)
        await api.patch(names.NODES, "", name, {"status": host["status"]}, subresource="status")
    for index in range(crowd):
        await api.create(names.DILOCO_JOBS, a_job(f"crowd-{index:05d}", CROWD, "tpu-v6e", "2x2"))
    await api.create(names.DILOCO_JOBS, a_job("first", QUIET, "tpu-v5p", "2x2x1"))
    return api


def start(crowd: int, slices: int) -> Start:
    """Start an operator on a cluster with `crowd` jobs of one tenant, and measure."""
    turns: list[float] = []
    before_lead: list[float] = []
    garbage = Garbage()

    async def run() -> tuple[float, float]:
        api = await prepared(crowd, slices)
        client = TurningApi(api)
        telemetry = SimulatedTelemetry()
        telemetry.kubelet = InstantKubelet(api, telemetry.changed)
        operator = an_operator(client, telemetry, now=time.time)
        led: list[float] = []

        async def lead() -> None:
            garbage.leave_out()  # as the operator's process does
            before_lead.append(max(turns, default=0.0))
            turns.clear()
            led.append(time.perf_counter())

        garbage.leave_out()  # the API server's objects
        await asyncio.sleep(0.1)
        turns.clear()
        running = asyncio.create_task(operator.run(lead=lead))
        try:
            first = await client.pod_of(QUIET, "first") - led[0]
            begun = time.perf_counter()
            await client.create(names.DILOCO_JOBS, a_job("second", QUIET, "tpu-v5p", "2x2x1"))
            return first, await client.pod_of(QUIET, "second") - begun
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    try:
        with garbage.short_collections(), asyncio.Runner(loop_factory=lambda: watched_loop(turns.append)) as runner:
            first, later = runner.run(run())
    finally:
        gc.unfreeze()
    return Start(max(turns), before_lead[0], first, later)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    alone = start(0, size.slices)
    beside = start(size.jobs, size.slices)
    unit = f"ms, {size.jobs} jobs of one namespace, {size.slices} slices"
    yield usual_figure("start-many-jobs", beside.hold * 1e3, unit, HOLD_LIMIT_MS, times={"before_lead_ms": beside.hold_before * 1e3})
    times = {"at_start_seconds": beside.neighbour, "later_seconds": beside.later, "alone_seconds": alone.neighbour}
    yield usual_figure("start-many-jobs-neighbour", max(beside.neighbour, beside.later), "s to the first pod", NEIGHBOUR_LIMIT, times=times)
