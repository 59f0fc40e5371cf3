"""A real kube-apiserver with etcd, simulated slices, and the operator as a separate process, started as the chart does it.

The controller manager and the scheduler are not started: they would take processor time from both sides of every comparison. The rig itself
writes the things that benchmarks need from them: a namespace's default ServiceAccount, the end of a pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from builders.child_processes import die_with_parent
from builders.control_plane import ControlPlane
from builders.jobs import JobBuilder
from builders.operator_process import OperatorReplica, replica
from builders.pods import ended_status, running_status
from diloco_operator.api import names
from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD
from diloco_operator.kube.client import ApiError, Client, EventType, Gone, Obj, Resource
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.timeouts import ENDPOINTS

from benchmarks import ROOT
from benchmarks.simulated_cluster import POOL, STEPS, node

CONCURRENCY = 64
"""Requests that the rig, and the bare client, have under way at once: as many as the operator."""
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
LEARNERS = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}"
"""Label selector of the pods of learners."""
UNITS_OF_A_JOB = 250
TOPOLOGIES = {1: "2x2", 4: "4x4"}
"""Hosts of a v6e slice -> its topology."""


class Rig:
    """One control plane. `client` has the administrator's rights."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path) -> None:
        self.plane = plane
        self.client = client
        self._folder = folder
        self._operators = 0

    async def namespace(self, name: str) -> str:
        """Create a namespace in which pods can be created, and return its name."""
        await self.client.create(names.NAMESPACES, {"metadata": {"name": name}})
        await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": name}})
        return name

    async def add_slices(self, count: int, *, hosts: int = 1, prefix: str = POOL) -> None:
        """Add slices of v6e hosts with four chips each. Every slice is a node pool of its own."""
        slices = [f"{prefix}-{index}" for index in range(count)]
        nodes = [node(f"{each}-{host}", each, TOPOLOGIES[hosts]) for each in slices for host in range(hosts)]
        await side_by_side([partial(self.client.create, names.NODES, made) for made in nodes])

    async def clear(self, namespace: str, settled: Callable[[], bool]) -> None:
        """Delete every job and pod of the namespace, as garbage collection would, and wait until `settled`."""
        for group, plural in ((f"/apis/{names.API_VERSION}", names.DILOCO_JOBS.plural), ("/api/v1", names.PODS.plural)):
            options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            await asyncio.to_thread(self.plane.request, "DELETE", f"{group}/namespaces/{namespace}/{plural}", options)
        while not settled():  # noqa: ASYNC110 -- what is waited for is in another process
            await asyncio.sleep(0.2)

    async def pods(self, namespace: str, *, component: str = names.COMPONENT_LEARNER) -> list[Obj]:
        answer = await self.client.list(names.PODS, namespace, label_selector=f"{names.LABEL_COMPONENT}={component}")
        return answer.items

    async def mark(self, pods: Iterable[Obj], status: Callable[[Obj], Obj]) -> None:
        """See the function `mark`."""
        await mark(self.client, pods, status)

    @contextmanager
    def operator(self, config: Obj | None = None, *, lead: Sequence[str] = ()) -> Iterator[OperatorReplica]:
        """Run `diloco-operator run`, and yield it when it is ready. SIGTERM ends it, as it ends a pod.

        Args:
            config: fields of its configuration
            lead: options of leader election; without any the operator takes no lease
        """
        self._operators += 1
        name = f"operator-{self._operators}"
        options = list(lead) or ["--no-leader-elect"]
        if config:
            kind = {"apiVersion": f"config.{names.API_VERSION}", "kind": "OperatorConfiguration"}
            (self._folder / f"{name}.yaml").write_text(json.dumps(kind | config))
            options += ["--config", str(self._folder / f"{name}.yaml")]
        with replica(self._folder, name, self.plane.kubeconfig, *options) as operator:
            operator.wait_ready()
            yield operator
            if operator.ended:
                raise RuntimeError(f"the operator ended early: {operator.lines()[-30:]}")
            operator.send(signal.SIGTERM)
            operator.wait()


class PodWatch:
    """Notes when each pod of a namespace was first seen, and which pods were deleted."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.added: dict[str, float] = {}
        """Name of a learner pod -> when it was first seen, on `time.perf_counter`'s clock."""
        self.removed: set[str] = set()
        self._changed = asyncio.Event()

    async def follow(self, ready: asyncio.Event) -> None:
        """Follow the pods until cancelled. Sets `ready` once no further pod can be missed."""
        version = (await self._client.list(names.PODS, self._namespace)).resource_version
        ready.set()
        while True:
            try:
                version = await self._watch(version)
            except Gone:
                raise RuntimeError("the API server forgot what the benchmark has not seen yet") from None
            except ApiError:
                await asyncio.sleep(0.2)

    async def _watch(self, version: str) -> str:
        async for event in self._client.watch(
            names.PODS, self._namespace, resource_version=version, label_selector=LEARNERS, timeout_seconds=300
        ):
            meta = event.object["metadata"]
            version = meta["resourceVersion"]
            if event.type is EventType.ADDED:
                self.added[meta["name"]] = time.perf_counter()
            elif event.type is EventType.DELETED or "deletionTimestamp" in meta:
                self.removed.add(meta.get("name", ""))
            self._changed.set()
        return version

    async def until(self, condition: Callable[[], bool], what: str, *, within: float = 240.0) -> None:
        try:
            async with asyncio.timeout(within):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(f"{what}: not within {within:.0f} s ({len(self.added)} pods made, {len(self.removed)} deleted)") from None


@asynccontextmanager
async def watching(client: Client, namespace: str) -> AsyncIterator[PodWatch]:
    watch = PodWatch(client, namespace)
    ready = asyncio.Event()
    task = asyncio.create_task(watch.follow(ready))
    try:
        await ready.wait()
        yield watch
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def rig(*api_server_args: str) -> AsyncIterator[Rig]:
    """Yield a control plane that knows DiLoCoJobs. At the end it is removed with everything in it."""
    folder = Path(tempfile.mkdtemp(prefix="diloco-bench-"))
    try:
        # This admission plugin gives new nodes the taint not-ready, and the controller that would remove the taint does not run.
        untainted = ("--disable-admission-plugins=TaintNodesByCondition",)
        with ControlPlane(folder, controllers=False, scheduler=False, api_server_args=(*untainted, *api_server_args)) as plane:
            plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
            plane.wait_until_established("dilocojobs.diloco.dev")
            async with RestClient.connect(load_config(str(plane.kubeconfig))) as client:
                await client.create(STORAGE_CLASSES, storage_class())
                yield Rig(plane, client, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def storage_class() -> Obj:
    """A default storage class, because no unit starts while its syncer cannot get a volume. Nothing provisions volumes, as the syncers'
    pods never run."""
    meta = {"name": "standard", "annotations": {names.DEFAULT_CLASS: "true"}}
    return {"metadata": meta, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}


async def mark(client: Client, pods: Iterable[Obj], status: Callable[[Obj], Obj]) -> None:
    """Write `status(pod)` for each pod in place of its kubelet, all as fast as possible."""
    await side_by_side(
        [
            partial(
                client.patch,
                names.PODS,
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                {"status": status(pod)},
                subresource="status",
            )
            for pod in pods
        ]
    )


async def side_by_side(sends: Sequence[Callable[[], Any]]) -> None:
    """Send all requests, `CONCURRENCY` at once."""
    left = iter(sends)

    async def work() -> None:
        for send in left:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


def job(name: str, namespace: str, units: int, *, hosts: int = 1) -> Obj:
    """A job of `units` units. A failed unit starts again without a delay, and its failures are soon forgotten: if the status kept every
    failure of a benchmark, the last measurement would be of a larger job than the first."""
    built = (
        JobBuilder(name)
        .in_namespace(namespace)
        .with_learners(1, units)
        .with_restarts(min(1000, MAX_FAILURES_ON_RECORD // units), initial="0s", max="0s", window="10s")
        .with_pool(POOL, accelerator="tpu-v6e", topology=TOPOLOGIES[hosts], max=units)
        .with_training(steps=STEPS)
        .build()
    )
    built["spec"]["learners"]["timeouts"] = {"schedule": "24h"}  # no scheduler runs, so the operator must not give up waiting for it
    return built


def jobs(name: str, namespace: str, units: int) -> list[Obj]:
    """Jobs with `units` units in total, each with at most `UNITS_OF_A_JOB`, of nearly equal size."""
    count = -(-units // UNITS_OF_A_JOB)
    return [job(f"{name}-{index}", namespace, (units + index) // count) for index in range(count)]


def running(pod: Obj) -> Obj:
    """The status of a pod whose container runs."""
    return running_status(pod, pod["metadata"]["creationTimestamp"])


def failed(pod: Obj) -> Obj:
    """The status of a pod whose container ended with exit status 1."""
    return ended_status(pod, 1, pod["metadata"]["creationTimestamp"])


def bare_seconds(plane: ControlPlane, pods: list[Obj], namespace: str) -> float:
    """Seconds in which a separate process that does nothing else POSTs copies of `pods` into `namespace`."""
    bodies = [bare_copy(pod, namespace) for pod in pods]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(bodies, file)
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kube.bare_client", str(plane.kubeconfig), file.name],
            cwd=ROOT,
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=die_with_parent,
        )
    return float(done.stdout)


def bare_copy(pod: Obj, namespace: str) -> Obj:
    """The pod as it was POSTed when it was made, but in `namespace`."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("name", "labels", "annotations", "ownerReferences") if key in meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "namespace": namespace}, "spec": pod["spec"]}


def shuffled[T](items: Iterable[T], seed: int) -> list[T]:
    result = list(items)
    random.Random(seed).shuffle(result)
    return result


async def writes_of(operator: OperatorReplica) -> int:
    """The number of the operator's requests so far that changed something, or tried to. The operator serves one text of /metrics to all who
    ask within `ENDPOINTS.page` seconds, so this first waits until an older text has expired."""
    await asyncio.sleep(ENDPOINTS.page)
    return operator.writes
