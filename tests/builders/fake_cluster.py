"""A cluster in miniature for the operator's pods: it binds, starts and ends them, and reports what a syncer would report.

Drives everything through the API, so the operator sees of it what it would see of a real kubelet. A pod needs `START` seconds of
the loop's clock to run and `STOP` to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Self

from builders.pods import ended_status, running_status
from diloco.contract import Result, UnitResult
from diloco_operator.accelerators.labels import GKE_TPU
from diloco_operator.api import names
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj, PatchType
from diloco_operator.kube.reflector import Reflector
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.local.scheduler import Scheduler
from diloco_operator.report import Report, UnitPhase, UnitReport
from diloco_operator.telemetry import Endpoint

START = 0.5
STOP = 0.5
STEPS = 2400

type JobKey = tuple[str, str]


class FakeCluster:
    """A kubelet for all nodes. `now` is the wall clock in seconds since the epoch.

    It binds each pod to the node that the pod is meant for, whether it fits there or not. With `scheduler` the embedded scheduler binds.
    Pods without a component, which are of no job, stay as they are."""

    def __init__(self, client: Client, now: Callable[[], float], *, scheduler: bool = False) -> None:
        self._client = client
        self._now = now
        self._scheduler = Scheduler(client, now=lambda: datetime.fromtimestamp(now(), tz=UTC)) if scheduler else None
        self._pods: Reflector[Obj] = Reflector(client, names.PODS, as_it_is, rng=lambda: 0.0)
        self._pods.on_change(self._on_pod)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deletions: dict[str, asyncio.Event] = {}
        self._addresses = 0
        self._dead_nodes: set[str] = set()
        self.bad_nodes: set[str] = set()
        """Nodes on which every training program crashes."""
        self.t = 0
        self.done: set[JobKey] = set()
        self.listeners: list[Callable[[JobKey], None]] = []

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._pods.run())
        await self._pods.wait_synced()
        self._scheduling = [asyncio.create_task(self._scheduler.run())] if self._scheduler is not None else []
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [self._following, *self._scheduling, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end

    async def add(self, nodes: Iterable[Obj]) -> None:
        """Nodes join."""
        for node in nodes:
            await self._client.create(names.NODES, node)
            await self._client.patch(
                names.NODES, "", node["metadata"]["name"], {"status": node["status"]}, type=PatchType.MERGE, subresource="status"
            )

    # --- faults ------------------------------------------------------------------------------------------------------
    async def crash(self, pod: str, namespace: str = "default", exit_code: int = 1) -> None:
        """The training program of `pod` raises."""
        await self._finish(namespace, pod, exit_code, "Error")

    async def lose_node(self, name: str) -> None:
        """The node stops answering: its kubelet does nothing any more, and the cluster notices."""
        self._dead_nodes.add(name)
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": format_timestamp(self._now()),
        }
        taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        await self._client.patch(names.NODES, "", name, {"spec": {"taints": [taint]}}, type=PatchType.MERGE)
        await self._client.patch(names.NODES, "", name, {"status": {"conditions": [condition]}}, type=PatchType.MERGE, subresource="status")

    async def complete(self, job: JobKey) -> None:
        """Step T: the syncer says done, the learners end, then the syncer leaves its result and ends."""
        self.done.add(job)
        self._report(job)
        for pod in self.running(job):
            if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
                await self._finish(job[0], pod["metadata"]["name"], 0, "Completed")
        units = [UnitResult(unit=unit, tokens=100, steps=10, contributions=5) for unit in sorted(self.units(job))]
        result = Result(step=STEPS, steps=STEPS, tokens=1000, loss=2.0, held_out_loss=2.1, units=units)
        await self._finish(job[0], names.syncer_pod_name(job[1]), 0, "Completed", result.model_dump_json(by_alias=True))

    # --- what there is -----------------------------------------------------------------------------------------------
    def pods(self, job: JobKey) -> list[Obj]:
        """All pods of the job."""
        mine = (held.value for held in self._pods.cache if held.namespace == job[0])
        return [pod for pod in mine if pod["metadata"].get("labels", {}).get(names.LABEL_JOB) == job[1]]

    def running(self, job: JobKey) -> list[Obj]:
        """Those whose containers run, on nodes that answer."""
        return [
            pod
            for pod in self.pods(job)
            if pod.get("status", {}).get("phase") == "Running" and pod["spec"].get("nodeName") not in self._dead_nodes
        ]

    def units(self, job: JobKey) -> dict[str, int]:
        """Unit to attempt, for every unit of which all hosts run."""
        hosts: dict[tuple[str, int], int] = {}
        wanted: dict[tuple[str, int], int] = {}
        for pod in self.running(job):
            labels = pod["metadata"]["labels"]
            attempt = labels.get(names.LABEL_ATTEMPT, "")  # a stranger's pod may have none, or any other
            learner = labels[names.LABEL_COMPONENT] == names.COMPONENT_LEARNER and _hosts_of(pod) > 0 and attempt.isdecimal()
            if learner and "deletionTimestamp" not in pod["metadata"]:
                unit = (labels.get(names.LABEL_UNIT, ""), int(attempt))
                hosts[unit] = hosts.get(unit, 0) + 1
                wanted[unit] = _hosts_of(pod)
        return {unit: attempt for (unit, attempt), count in sorted(hosts.items()) if count == wanted[unit, attempt]}

    def report(self, job: JobKey) -> Report:
        """What the job's syncer would say now."""
        phase = UnitPhase.DONE if job in self.done else UnitPhase.CONTRIBUTING
        return Report(
            received_at=self._now(),
            t=STEPS if job in self.done else self.t,
            steps=STEPS,
            seeded=True,
            done=job in self.done,
            units={
                unit: UnitReport(unit=unit, attempt=attempt, phase=phase, steps=10, tokens=100, weight=0.5, contributions=5)
                for unit, attempt in self.units(job).items()
            },
        )

    # --- the kubelet -------------------------------------------------------------------------------------------------
    def _on_pod(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        if new is None:
            self._deletions.pop(held.uid, None)
            if task := self._tasks.pop(held.uid, None):
                task.cancel()
        elif held.uid not in self._tasks and names.LABEL_COMPONENT in held.value["metadata"].get("labels", {}):
            self._deletions[held.uid] = asyncio.Event()
            self._tasks[held.uid] = asyncio.create_task(self._keep(held.namespace, held.name, held.uid))
        if new is not None and new.deleting and held.uid in self._deletions:
            self._deletions[held.uid].set()
        job = held.value["metadata"].get("labels", {}).get(names.LABEL_JOB)
        if job:
            self._report((held.namespace, job))

    def _report(self, job: JobKey) -> None:
        for listener in self.listeners:
            listener(job)

    async def _keep(self, namespace: str, name: str, uid: str) -> None:
        """The life of one pod."""
        try:
            pod = self._pods.cache.get(namespace, name)
            if pod is None or pod.value.get("status", {}).get("phase", "Pending") == "Pending":
                await self._start(namespace, name)  # a pod that was there before this cluster keeps its state
            await self._deletions[uid].wait()
            pod = self._pods.cache.get(namespace, name)
            if pod is None or pod.value["spec"].get("nodeName") in self._dead_nodes:
                return
            await asyncio.sleep(STOP)
            if pod.value.get("status", {}).get("phase") == "Running":
                await self._finish(namespace, name, 143, "Error")
            await self._client.delete(names.PODS, namespace, name, grace_seconds=0, uid=uid)
        except (NotFound, Conflict):
            return  # it was deleted under our hands

    async def _start(self, namespace: str, name: str) -> None:
        pod = await self._client.get(names.PODS, namespace, name)
        if pod["spec"].get("schedulingGates"):
            return  # no scheduler binds it
        node = pod["spec"].get("nodeName")
        while self._scheduler is not None and not node:
            await asyncio.sleep(START)
            pod = await self._client.get(names.PODS, namespace, name)
            node = pod["spec"].get("nodeName")
        if not node:
            node = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_NODE) or await self._any_node()
            await self._client.bind(namespace, name, node)
        await asyncio.sleep(START)
        if node in self._dead_nodes:
            return
        self._addresses += 1
        now = format_timestamp(self._now())
        ip = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        status = {**running_status(pod, now, ip=ip), "startTime": now}
        await self._client.patch(names.PODS, namespace, name, {"status": status}, type=PatchType.MERGE, subresource="status")
        if node in self.bad_nodes and pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
            await asyncio.sleep(START)
            await self._finish(namespace, name, 1, "Error", "CUDA error: uncorrectable ECC error encountered")

    async def _any_node(self) -> str:
        nodes = await self._client.list(names.NODES)
        workers: Iterator[str] = (
            node["metadata"]["name"]
            for node in nodes.items
            if GKE_TPU.key not in node["metadata"]["labels"] and node["metadata"]["name"] not in self._dead_nodes
        )
        return next(workers)

    async def _finish(self, namespace: str, name: str, exit_code: int, reason: str, message: str = "") -> None:
        pod = await self._client.get(names.PODS, namespace, name)
        now = format_timestamp(self._now())
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": now}
        status = {**ended_status(pod, exit_code, now, reason=reason, message=message), "conditions": [not_ready]}
        await self._client.patch(names.PODS, namespace, name, {"status": status}, type=PatchType.MERGE, subresource="status")


class FakeTelemetry:
    """`Telemetry` that asks the fake cluster instead of syncers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._followed: dict[JobKey, Endpoint] = {}
        self._notify: list[Callable[[JobKey], None]] = []
        cluster.listeners.append(self._report)

    def on_change(self, notify: Callable[[JobKey], None]) -> None:
        self._notify.append(notify)

    def follow(self, key: JobKey, endpoint: Endpoint | None) -> None:
        if endpoint is None:
            self._followed.pop(key, None)
        elif key not in self._followed:
            self._followed[key] = endpoint
            asyncio.get_running_loop().call_soon(self._report, key)

    def forget(self, key: JobKey) -> None:
        self._followed.pop(key, None)

    def latest(self, key: JobKey) -> Report | None:
        return self._cluster.report(key) if key in self._followed else None

    async def close(self) -> None:
        self._followed.clear()
        if self._report in self._cluster.listeners:
            self._cluster.listeners.remove(self._report)

    def _report(self, key: JobKey) -> None:
        if key in self._followed:
            for notify in self._notify:
                notify(key)


def _hosts_of(pod: Obj) -> int:
    environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0].get("env", ())}
    return int(environment.get("DILOCO_HOSTS") or 0)
