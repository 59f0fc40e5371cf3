"""A cluster on virtual time: an API server in memory, a scheduler, kubelets that only write statuses, and the operator."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.operator import DecisionOptions, Operator, RunConfig
from diloco_operator.reconcile import OperatorConfig

from diloco_local.memory import MemoryApi
from diloco_local.preview.changes import Changes
from diloco_local.preview.contents import Contents, as_dump, ready
from diloco_local.preview.reports import Reports
from diloco_local.preview.speeds import known_of
from diloco_local.scheduler import Scheduler

_CONFIG = OperatorConfig()
_QUIET = 2 * _CONFIG.minimum_hold
"""After this many virtual seconds without a change the cluster counts as settled. It is longer than a unit certainly keeps a slice, and
than each pause between two attempts to place."""
_LONGEST = 3600.0
"""A preview ends after this many virtual seconds, even if units still come and go."""
_SEEN = 1.0
"""Virtual seconds in which every watch has delivered a change."""
_SEED = 0


class PreviewFailed(Exception):
    """The operator met a defect."""


class VirtualCluster:
    """An async context manager. It runs in a `VirtualLoop`. `begin`: its first moment, in seconds since the epoch."""

    def __init__(self, contents: Contents, begin: float) -> None:
        self._begin = begin
        self.api = MemoryApi.restore(as_dump(contents, begin), clock=self._clock, random=random.Random(_SEED))  # noqa: S311 - no secret
        self._last_change = 0.0
        self._kubelets = Kubelets(self.api, self.now, self._on_pod)
        self._reports = Reports(self._pods_of, self.now)
        for job in contents.jobs:
            self._reports.know((job["metadata"]["namespace"], job["metadata"]["name"]), known_of(job))
        self._jobs: Reflector[Any] = Reflector(self.api, WatchedResource(names.DILOCO_JOBS, lambda obj, _: _essence(obj)), rng=lambda: 0.0)
        self._jobs.on_change(self._on_job)
        self._operator = Operator(
            self.api,
            telemetry=self._reports,
            now=self.now,
            rng=lambda: 0.5,
            decisions=DecisionOptions(_CONFIG),
            run=RunConfig(stop_grace=0),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        runs = (self._kubelets.run(), self._jobs.run(), Scheduler(self.api, now=self._clock).run(), self._operator.run())
        self._tasks = [asyncio.create_task(each) for each in runs]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def now(self) -> float:
        """The virtual wall clock, seconds since the epoch."""
        return self._begin + asyncio.get_running_loop().time()

    async def settle(self) -> bool:
        """Wait until nothing changes any more. False if units still came and went after `_LONGEST`. Raises `PreviewFailed`."""
        loop = asyncio.get_running_loop()
        begun = self._last_change = loop.time()
        while (left := self._last_change + _QUIET - loop.time()) > 0 and loop.time() < begun + _LONGEST:
            ended, _ = await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
            if self._operator.counters.defects:
                raise PreviewFailed("the operator met a defect while it planned; please report it, with the files")
        return left <= 0

    async def jobs(self) -> list[Obj]:
        """The jobs as they are now, sorted by namespace and name."""
        return (await self.api.list(names.DILOCO_JOBS)).items

    def spares(self, key: JobKey) -> dict[str, list[str]]:
        """Pool -> the names of the slices that are kept free for it."""
        return self._operator.spares(key)

    async def apply(self, job: Obj) -> None:
        """Apply a job as `kubectl apply` does. Raises `ApiError` for a change that is not allowed."""
        meta = job["metadata"]
        with contextlib.suppress(NotFound):
            while True:
                stored = await self.api.get(names.DILOCO_JOBS, meta["namespace"], meta["name"])
                try:
                    await self.api.update(names.DILOCO_JOBS, {**stored, "spec": job["spec"]})
                except Conflict:
                    continue
                return
        try:
            await self.api.get(names.NAMESPACES, "", meta["namespace"])
        except NotFound:
            await self.api.create(names.NAMESPACES, {"metadata": {"name": meta["namespace"]}})
        await self.api.create(names.DILOCO_JOBS, job)

    async def change(self, changes: Changes) -> None:
        """Apply all changes of the fleet as one: nodes that go are cordoned first, so that no unit moves to one of them."""
        for name in (*changes.removed, *changes.drained):
            await self.api.patch(names.NODES, "", name, {"spec": {"unschedulable": True}})
        await asyncio.sleep(_SEEN)
        await self._add(changes.added)
        await asyncio.sleep(_SEEN)
        await self._remove(changes.removed)
        await self._evict(changes.drained)

    async def _add(self, nodes: Sequence[Obj]) -> None:
        for node in nodes:
            await self.api.create(names.NODES, node)
            status = {"status": ready(node, self.now())["status"]}
            await self.api.patch(names.NODES, "", node["metadata"]["name"], status, subresource="status")

    async def _remove(self, gone: Sequence[str]) -> None:
        """Remove nodes and their pods."""
        for name in gone:
            await self.api.delete(names.NODES, "", name)
        for pod in await self._pods_on(gone):
            target = {
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
                "lastTransitionTime": format_timestamp(self.now()),
            }  # fmt: skip
            where = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            status = {"phase": "Failed", "conditions": [*(pod.get("status", {}).get("conditions") or ()), target]}
            with contextlib.suppress(NotFound, Conflict):
                await self.api.patch(names.PODS, *where, {"status": status}, subresource="status")
                await self.api.delete(names.PODS, *where, grace_seconds=0, uid=pod["metadata"]["uid"])

    async def _evict(self, drained: Sequence[str]) -> None:
        """Evict the pods of jobs as `kubectl drain` does."""
        for pod in await self._pods_on(drained):
            if names.LABEL_JOB in (pod["metadata"].get("labels") or {}):
                with contextlib.suppress(NotFound, Conflict):
                    await self.api.evict(pod["metadata"]["namespace"], pod["metadata"]["name"], uid=pod["metadata"]["uid"])

    async def _pods_on(self, nodes: Sequence[str]) -> list[Obj]:
        return [pod for pod in (await self.api.list(names.PODS)).items if pod["spec"].get("nodeName") in nodes]

    def _clock(self) -> datetime:
        return datetime.fromtimestamp(self.now(), tz=UTC)

    def _pods_of(self, key: JobKey) -> list[Obj]:
        return [held.value for held in self._kubelets.pods.cache.by_index(BY_JOB, key)]

    def _on_pod(self, key: JobKey) -> None:
        self._last_change = asyncio.get_running_loop().time()
        self._reports.changed(key)

    def _on_job(self, old: CachedObject[Any] | None, new: CachedObject[Any] | None) -> None:
        if (old and old.value) != (new and new.value):
            self._last_change = asyncio.get_running_loop().time()


def _essence(job: Obj) -> tuple[Any, ...]:
    """The parts of a job whose change means that something happens to it. Figures and times are left out: they change all the time."""
    status = job.get("status") or {}
    units = [
        (unit["name"], unit.get("slice"), unit["state"], unit.get("reason"), unit.get("attempt")) for unit in status.get("units") or ()
    ]
    pools = [(pool["name"], pool.get("placed"), pool.get("spares"), pool.get("reason")) for pool in status.get("pools") or ()]
    return job["metadata"].get("generation"), status.get("state"), status.get("reason"), units, pools


# ----------------------------------------------------------------------------------------------------------------------
# The pods of jobs, as if every program started and ended well: a bound pod runs at once, and a pod that is deleted ends at once.
BY_JOB = "job"
"""Index of `Kubelets.pods` by namespace and job."""
_TERMINATED = 143
"""128 + SIGTERM: the exit status of a learner that is asked to end."""


class Kubelets:
    """The kubelets of all nodes. `now`: seconds since the epoch. `changed` is called with the job at every change of one of its pods."""

    def __init__(self, client: Client, now: Callable[[], float], changed: Callable[[tuple[str, str]], None]) -> None:
        self._client = client
        self._now = now
        self._changed = changed
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._addresses = 0
        self.pods: Reflector[Obj] = Reflector(
            client,
            WatchedResource(names.PODS, as_it_is, label_selector=names.LABEL_JOB),
            rng=lambda: 0.0,
            indexers={BY_JOB: lambda held: (_job_of(held),)},
        )
        self.pods.on_change(self._on_pod)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run(), name="kubelets' pods")
            while True:
                await self._act(*await self._due.get())

    def _on_pod(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        if new is not None:
            self._due.put_nowait((new.namespace, new.name))
        self._changed(_job_of(held))

    async def _act(self, namespace: str, name: str) -> None:
        held = self.pods.cache.get(namespace, name)
        if held is None:
            return
        pod, phase = held.value, held.value.get("status", {}).get("phase", "Pending")
        try:
            if held.deleting:
                if phase == "Running":
                    await self._write(pod, self._ended(pod))
                await self._client.delete(names.PODS, namespace, name, grace_seconds=0, uid=held.uid)
            elif pod["spec"].get("nodeName") and phase == "Pending":
                await self._write(pod, self._running(pod))
        except (NotFound, Conflict):
            return  # the pod changed meanwhile: that change is in the queue, too

    async def _write(self, pod: Obj, status: Obj) -> None:
        meta = pod["metadata"]
        where = (meta["namespace"], meta["name"])
        await self._client.patch(names.PODS, *where, {"status": status}, subresource="status")

    def _running(self, pod: Obj) -> Obj:
        self._addresses += 1
        at, address = (
            format_timestamp(self._now()),
            f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}",
        )
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        return {
            "phase": "Running",
            "startTime": at,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [*_conditions(pod), ready],
            "containerStatuses": [_container(each, {"running": {"startedAt": at}}) for each in pod["spec"]["containers"]],
        }

    def _ended(self, pod: Obj) -> Obj:
        at = format_timestamp(self._now())
        ended = {"terminated": {"exitCode": _TERMINATED, "reason": "Error", "startedAt": at, "finishedAt": at}}
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": at}
        return {
            "phase": "Failed",
            "conditions": [*_conditions(pod), not_ready],
            "containerStatuses": [_container(each, ended) for each in pod["spec"]["containers"]],
        }


def _job_of(held: CachedObject[Obj]) -> tuple[str, str]:
    return held.namespace, held.value["metadata"]["labels"][names.LABEL_JOB]


def _conditions(pod: Obj) -> list[Obj]:
    """All conditions but Ready."""
    return [each for each in pod.get("status", {}).get("conditions") or () if each["type"] != "Ready"]


def _container(container: Obj, state: Obj) -> Obj:
    running = "running" in state
    return {
        "name": container["name"], "image": container.get("image", ""), "imageID": "", "ready": running, "restartCount": 0, "state": state,
    }  # fmt: skip
