"""A cluster in miniature: an API server in memory, kubelets that bind, start and end the operator's pods, and operators.

Everything goes through the API, so an operator sees of it what it would see of a real cluster; its reports are those that a syncer would
send. A pod needs `START` seconds of the loop's clock to run and `STOP` to end. builders.cluster_scenes has clusters with something in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self

from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_tpu_slice
from builders.operator_run import an_operator, running
from builders.operators_api import OperatorsApi
from builders.pods import ended_status, running_status
from diloco.contract import Result, UnitResult
from diloco_local.memory import MemoryApi
from diloco_local.scheduler import Scheduler
from diloco_operator.accelerators.labels import GKE_TPU
from diloco_operator.api import names
from diloco_operator.api.names import JobKey
from diloco_operator.fleet import Shape
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Conflict, NotFound, Obj, Resource
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.operator import Operator, RunConfig
from diloco_operator.operator.metrics import Metrics
from diloco_operator.report import PartState, Report, ReportFault, UnitPhase, UnitReport
from diloco_operator.telemetry.endpoint import Endpoint

START = 0.5
STOP = 0.5
STEPS = 2400
EPOCH = 1_763_672_400.0
PATIENCE = 1000.0
"""Seconds of the loop's clock without a change of a job after which a test gives up to wait for it."""
LONGEST_WAIT = 2000.0
"""The same with changes."""
NS = "default"
SLICE = Shape("tpu-v6e", "2x2", chips_per_host=4)
"""What `apply` asks for by default."""
AT_ONCE = RunConfig(stop_grace=0)
"""An operator that stops at once."""


def wall_clock() -> float:
    """Seconds since the epoch: the loop begins at `EPOCH`."""
    return EPOCH + asyncio.get_running_loop().time()


class FakeCluster:
    """A cluster around the API server `api`; `now` is the wall clock in seconds since the epoch.

    Its kubelets bind each pod to the node that the pod is meant for, whether it fits there or not. With `scheduler` the embedded scheduler
    binds, which counts requests; without `kubelets` pods stay as they are, as pods without a component do, which are of no job."""

    def __init__(self, api: MemoryApi, now: Callable[[], float] = wall_clock, *, scheduler: bool = False, kubelets: bool = True) -> None:
        self.api = api
        self.client = OperatorsApi(api)
        """For operators."""
        self._now = now
        self._scheduler = Scheduler(api, now=lambda: datetime.fromtimestamp(now(), tz=UTC)) if scheduler else None
        self._kubelets = kubelets
        self._pods: Reflector[Obj] = Reflector(api, WatchedResource(names.PODS, as_it_is), rng=lambda: 0.0)
        self._pods.on_change(self._on_pod)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deletions: dict[str, asyncio.Event] = {}
        self._addresses = 0
        self._dead_nodes: set[str] = set()
        self.bad_nodes: set[str] = set()
        """Nodes on which every training program crashes."""
        self.stuck: set[str] = set()
        """Pods whose processes do not end, whatever their kubelets do: they wait for a device or a file system."""
        self.report_faults: dict[JobKey, ReportFault] = {}
        """Faults of the jobs whose syncers answer with what no operator can read."""
        self._last_reports: dict[JobKey, Report] = {}
        self.t = 0
        self.rates: dict[str, float] = {}
        """Pool -> tokens/s of each of its units, as syncers measure them."""
        self.done: set[JobKey] = set()
        self.listeners: list[Callable[[JobKey], None]] = []
        self.lines: list[str] = []
        """What operators log as warning or error, in scenes that record it."""
        self.said: list[str] = []
        """What commands of `kubectl diloco` print, in tests of them."""

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
            await self.api.create(names.NODES, node)
            await self.api.patch(names.NODES, "", node["metadata"]["name"], {"status": node["status"]}, subresource="status")

    async def add_slices(self, *node_pools: str) -> None:
        """TPU slices of one host each, of the kind that `apply` asks for by default."""
        for name in node_pools:
            await self.add(a_tpu_slice(name, kind="tpu-v6e-slice", topology="2x2"))

    # --- operators ---------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def operating(self, run: RunConfig = AT_ONCE, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
        """Another operator runs while the context is open, and is `operator`. It knows only what the API server has."""
        self.metrics = Metrics()
        options = {"run": run, "metrics": self.metrics, "now": self._now, **options}
        self.operator: Operator = an_operator(self.client, FakeTelemetry(self), **options)
        async with running(self.operator) as task:
            yield task

    async def start(self) -> None:
        """Start an operator, which runs until `stop`."""
        self._operating = self.operating()
        await self._operating.__aenter__()

    async def stop(self) -> None:
        """Stop it. Raises what ended it earlier, and fails after a defect."""
        await self._operating.__aexit__(None, None, None)

    async def restart(self) -> None:
        """Stop the operator, and start another one."""
        await self.stop()
        await self.start()
        await self.settle()

    async def settle(self, seconds: float = 5.0) -> None:
        """Give operators time to act on everything, and to write their events."""
        await asyncio.sleep(seconds)

    def free_slices(self, shape: Shape = SLICE) -> list[str]:
        """As the newest operator sees them."""
        return [slice_.name for slice_ in self.operator.inventory.free(shape)]

    # --- jobs --------------------------------------------------------------------------------------------------------
    async def apply(
        self,
        name: str = "lm",
        *pools: Obj,
        min: int = 1,
        max: int = 0,
        namespace: str = NS,
        spec: Obj | None = None,
        metadata: Obj | None = None,
        learners: Obj | None = None,
        **training: Any,
    ) -> Obj:
        """A job of `min` to `max` learners (as many as `min` if there is no `max`), in one pool of small TPU slices unless `pools` are
        given. `learners` are further fields of spec.learners."""
        most = max or min
        chosen = pools or (tpu_pool("v6e", "tpu-v6e", "2x2", max=most),)
        manifest = a_manifest(name, namespace=namespace, min=min, max=most, pools=chosen, spec=spec, **training)
        manifest["metadata"] |= metadata or {}
        manifest["spec"]["learners"] |= learners or {}
        return await self.api.create(names.DILOCO_JOBS, manifest)

    async def edit(self, name: str = "lm", *, namespace: str = NS, **spec: Any) -> None:
        """A user changes these fields of the job's spec, and the ones in them that are given."""
        await self.api.patch(names.DILOCO_JOBS, namespace, name, {"spec": spec})

    async def write_status(self, resource: Resource, name: str, status: Any, *, namespace: str = NS) -> None:
        """Somebody writes these fields of the object's status."""
        where = namespace if resource.namespaced else ""
        await self.api.patch(resource, where, name, {"status": status}, subresource="status")

    async def touch(self, resource: Resource, namespace: str, name: str) -> None:
        """Change an object, so that its watchers hear of it."""
        now = str(asyncio.get_running_loop().time())
        await self.api.patch(resource, namespace, name, {"metadata": {"annotations": {"touched": now}}})

    async def status(self, job: str = "lm", namespace: str = NS) -> Obj:
        found: Obj = (await self.api.get(names.DILOCO_JOBS, namespace, job)).get("status", {})
        return found

    async def units(self, job: str = "lm", namespace: str = NS) -> dict[str, tuple[str, str]]:
        """Slice and state of each unit."""
        units = (await self.status(job, namespace)).get("units", ())
        return {unit["name"]: (unit.get("slice", ""), unit["state"]) for unit in units}

    async def when(self, job: str, holds: Callable[[Obj], bool], namespace: str = NS, what: str = "") -> Obj:
        """The status of the job, once it holds. Fails when the job stands still for `PATIENCE`, or has not come to it in `LONGEST_WAIT`."""
        loop = asyncio.get_running_loop()
        begun = changed = loop.time()
        version = ""
        while True:
            found = await self.api.get(names.DILOCO_JOBS, namespace, job)
            status: Obj = found.get("status", {})
            if holds(status):
                return status
            now = loop.time()
            if found["metadata"]["resourceVersion"] != version:
                version, changed = found["metadata"]["resourceVersion"], now
            if now - changed >= PATIENCE or now - begun >= LONGEST_WAIT:
                still = f"nothing of it changed for {now - changed:.0f} s"
                raise AssertionError(f"{job} did not come to {what or 'it'} in {now - begun:.0f} s, and {still}: {found}")
            await asyncio.sleep(0.5)

    async def trains(self, job: str = "lm", units: int = 1, namespace: str = NS) -> list[str]:
        """Wait until so many units of the job train. Return their slices."""

        def holds(status: Obj) -> bool:
            return [unit["state"] for unit in status.get("units", ())].count("Training") == units

        status = await self.when(job, holds, namespace, f"{units} units that train")
        return [unit["slice"] for unit in status["units"] if unit["state"] == "Training"]

    async def trains_on(self, job: str, *slices: str, namespace: str = NS) -> None:
        """Waits until the job's units train on these slices, and there is no other unit."""
        wanted = sorted((slice_, "Training") for slice_ in slices)

        def holds(status: Obj) -> bool:
            return sorted((unit.get("slice", ""), unit["state"]) for unit in status.get("units", ())) == wanted

        await self.when(job, holds, namespace, f"training on {slices}")

    async def pool_says(self, job: str, text: str, namespace: str = NS) -> str:
        """Waits until the message of the job's first pool has this text. Returns the message."""
        status = await self.when(job, lambda status: text in status.get("pools", [{}])[0].get("message", ""), namespace, repr(text))
        return str(status["pools"][0]["message"])

    async def pod_phases(self, job: str = "", namespace: str = NS) -> dict[str, str]:
        """Phase of each pod by its name, of one job or of all, as the API server has them now."""
        selector = f"{names.LABEL_JOB}={job}" if job else ""
        items = (await self.api.list(names.PODS, namespace, label_selector=selector)).items
        return {pod["metadata"]["name"]: pod.get("status", {}).get("phase", "Pending") for pod in items}

    async def names_of(self, resource: Resource, namespace: str = "") -> list[str]:
        """Return the names of all objects of the kind, in order."""
        return sorted(obj["metadata"]["name"] for obj in (await self.api.list(resource, namespace)).items)

    async def events(self, reason: str, job: str = "") -> list[Obj]:
        """With this reason, about the job if it is given."""
        found = (await self.api.list(names.EVENTS)).items
        return [each for each in found if each["reason"] == reason and job in ("", each["involvedObject"]["name"])]

    async def event_messages(self, reason: str, job: str = "") -> list[str]:
        return [each["message"] for each in await self.events(reason, job)]

    def metric(self, name: str, **labels: str) -> float | None:
        """As the newest operator's /metrics reports it."""
        return self.metrics.registry.get_sample_value(name, labels)

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
        await self.api.patch(names.NODES, "", name, {"spec": {"taints": [taint]}})
        await self.api.patch(names.NODES, "", name, {"status": {"conditions": [condition]}}, subresource="status")

    async def complete(self, job: JobKey) -> None:
        """Step T: the syncer says done, the learners end, then the syncer leaves its result and ends."""
        self.done.add(job)
        self._report(job)
        for pod in self.running(job):
            if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
                await self._finish(job[0], pod["metadata"]["name"], 0, "Completed")
        units = [UnitResult(unit=unit, tokens=100, steps=10, contributions=5) for unit in sorted(self.attempts(job))]
        result = Result(step=STEPS, steps=STEPS, tokens=1000, loss=2.0, held_out_loss=2.1, units=units)
        await self._finish(job[0], names.syncer_pod_name(job[1]), 0, "Completed", result.model_dump_json(by_alias=True))

    def answer_nonsense(self, job: JobKey, fault: ReportFault) -> None:
        """From now on the job's syncer does."""
        self.report_faults[job] = fault
        self._last_reports[job] = self.report(job)
        self._report(job)

    def answer_again(self, job: JobKey) -> None:
        """The job's syncer does as before."""
        del self.report_faults[job]
        self._report(job)

    def latest_report(self, job: JobKey) -> Report:
        """The newest that can be read."""
        return self._last_reports[job] if job in self.report_faults else self.report(job)

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

    def attempts(self, job: JobKey) -> dict[str, int]:
        """The attempt of each unit of which all hosts run."""
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
                unit: UnitReport(
                    unit=unit,
                    attempt=attempt,
                    phase=phase,
                    steps=10,
                    tokens=100,
                    tokens_per_second=self.rates.get(unit.rpartition("-")[0], 0.0),
                    weight=0.5,
                    contributions=5,
                )
                for unit, attempt in self.attempts(job).items()
            },
        )

    def nodes_of(self, job: str, namespace: str = NS) -> set[str]:
        """Where its learners run."""
        pods = self.running((namespace, job))
        return {pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER}

    # --- the kubelet -------------------------------------------------------------------------------------------------
    def _on_pod(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        if new is None:
            self._deletions.pop(held.uid, None)
            if task := self._tasks.pop(held.uid, None):
                task.cancel()
        elif self._kubelets and held.uid not in self._tasks and names.LABEL_COMPONENT in held.value["metadata"].get("labels", {}):
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
            if pod is None or name in self.stuck or pod.value["spec"].get("nodeName") in self._dead_nodes:
                return
            await asyncio.sleep(STOP)
            if pod.value.get("status", {}).get("phase") == "Running":
                await self._finish(namespace, name, 143, "Error")
            await self.api.delete(names.PODS, namespace, name, grace_seconds=0, uid=uid)
        except (NotFound, Conflict):
            return  # it was deleted under our hands

    async def _start(self, namespace: str, name: str) -> None:
        pod = await self.api.get(names.PODS, namespace, name)
        if pod["spec"].get("schedulingGates"):
            return  # no scheduler binds it
        node = pod["spec"].get("nodeName")
        while self._scheduler is not None and not node:
            await asyncio.sleep(START)
            held = self._pods.cache.get(namespace, name)  # to ask the API server costs a copy of the whole pod each time
            if held is None:
                return
            pod = held.value
            node = pod["spec"].get("nodeName")
        if not node:
            node = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_NODE) or await self._any_node()
            await self.api.bind(namespace, name, node)
        await asyncio.sleep(START)
        if node in self._dead_nodes:
            return
        self._addresses += 1
        now = format_timestamp(self._now())
        ip = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        status = {**running_status(pod, now, ip=ip), "startTime": now}
        await self.api.patch(names.PODS, namespace, name, {"status": status}, subresource="status")
        if node in self.bad_nodes and pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_LEARNER:
            await asyncio.sleep(START)
            await self._finish(namespace, name, 1, "Error", "CUDA error: uncorrectable ECC error encountered")

    async def _any_node(self) -> str:
        nodes = await self.api.list(names.NODES)
        workers: Iterator[str] = (
            node["metadata"]["name"]
            for node in nodes.items
            if GKE_TPU.key not in node["metadata"]["labels"] and node["metadata"]["name"] not in self._dead_nodes
        )
        return next(workers)

    async def _finish(self, namespace: str, name: str, exit_code: int, reason: str, message: str = "") -> None:
        pod = await self.api.get(names.PODS, namespace, name)
        now = format_timestamp(self._now())
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": now}
        status = {**ended_status(pod, exit_code, now, reason=reason, message=message), "conditions": [not_ready]}
        await self.api.patch(names.PODS, namespace, name, {"status": status}, subresource="status")


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

    def tell(self, key: JobKey, state: PartState) -> None: ...

    def forget(self, key: JobKey) -> None:
        self._followed.pop(key, None)

    def latest(self, key: JobKey) -> Report | None:
        return self._cluster.latest_report(key) if key in self._followed else None

    def fault(self, key: JobKey) -> ReportFault | None:
        return self._cluster.report_faults.get(key) if key in self._followed else None

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
