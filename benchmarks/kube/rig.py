"""A real kube-apiserver with etcd, simulated slices, and the operator as a process of its own, as a chart would start it.

The controller manager and the scheduler are not started: they would take the processor from both sides of every comparison. What the
benchmarks need of them (a namespace's default ServiceAccount, a pod's end) the rig writes itself.
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
from builders.control_plane import ControlPlane, start
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
"""Requests under way at once of the rig and of the bare client: as many as the operator's."""
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
LEARNERS = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}"
"""Label selector of the pods of learners."""
UNITS_OF_A_JOB = 250
TOPOLOGIES = {1: "2x2", 4: "4x4"}
"""Topologies of a v6e slice by its hosts."""


class Rig:
    """One control plane. `client` is the administrator's."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path) -> None:
        self.plane = plane
        self.client = client
        self._folder = folder
        self._operators = 0

    async def namespace(self, name: str) -> str:
        """Return a namespace in which pods may be made."""
        await self.client.create(names.NAMESPACES, {"metadata": {"name": name}})
        await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": name}})
        return name

    async def add_slices(self, count: int, *, hosts: int = 1, prefix: str = POOL) -> None:
        """Add slices of v6e hosts with four chips each, every slice a node pool of its own."""
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
        found = await self.client.list(names.PODS, namespace, label_selector=f"{names.LABEL_COMPONENT}={component}")
        return found.items

    async def mark(self, pods: Iterable[Obj], status: Callable[[Obj], Obj]) -> None:
        """Report of each pod what a kubelet would, all as fast as possible."""
        await mark(self.client, pods, status)

    @contextmanager
    def operator(self, config: Obj | None = None, *, lead: Sequence[str] = ()) -> Iterator[OperatorReplica]:
        """Yield `diloco-operator run`, ready. Ends as a pod does: by SIGTERM. `config`: fields of its configuration. `lead`: options for
        which it takes a lease; none: it needs none."""
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
    """When each pod of a namespace was first seen, on `time.perf_counter`'s clock, and which were deleted."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.added: dict[str, float] = {}
        """Learner pods by name."""
        self.removed: set[str] = set()
        self._changed = asyncio.Event()

    async def follow(self, ready: asyncio.Event) -> None:
        """Follow until cancelled."""
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
    """Yield a control plane that knows DiLoCoJobs; gone with everything in it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="diloco-bench-"))
    try:
        # New nodes get the taint not-ready, which a controller takes away; none runs here.
        untainted = ("--disable-admission-plugins=TaintNodesByCondition",)
        with start(folder, controllers=False, scheduler=False, api_server_args=(*untainted, *api_server_args)) as plane:
            plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
            plane.wait_until_established("dilocojobs.diloco.dev")
            async with RestClient.connect(load_config(str(plane.kubeconfig))) as client:
                await client.create(STORAGE_CLASSES, storage_class())
                yield Rig(plane, client, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def storage_class() -> Obj:
    """Return the cluster's default: no unit starts while its syncer can get no volume. Nothing provisions volumes; the syncers' pods never
    run."""
    meta = {"name": "standard", "annotations": {names.DEFAULT_CLASS: "true"}}
    return {"metadata": meta, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}


async def mark(client: Client, pods: Iterable[Obj], status: Callable[[Obj], Obj]) -> None:
    """Report of each pod what a kubelet would, all as fast as possible."""
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
    """Send all of them, `CONCURRENCY` at once."""
    left = iter(sends)

    async def work() -> None:
        for send in left:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


def job(name: str, namespace: str, units: int, *, hosts: int = 1) -> Obj:
    """Return `units` units. A failed unit starts again without a delay. Its failures are soon forgotten: if the status kept every failure
    of a benchmark, the last measurement would be of a larger job than the first. No scheduler runs, so none may be waited for in vain."""
    made = (
        JobBuilder(name)
        .in_namespace(namespace)
        .with_learners(1, units)
        .with_restarts(min(1000, MAX_FAILURES_ON_RECORD // units), initial="0s", max="0s", window="10s")
        .with_pool(POOL, accelerator="tpu-v6e", topology=TOPOLOGIES[hosts], max=units)
        .with_training(steps=STEPS)
        .build()
    )
    made["spec"]["learners"]["timeouts"] = {"schedule": "24h"}
    return made


def jobs(name: str, namespace: str, units: int) -> list[Obj]:
    """Return `units` units in jobs of at most `UNITS_OF_A_JOB`, as equal as they can be."""
    count = -(-units // UNITS_OF_A_JOB)
    return [job(f"{name}-{index}", namespace, (units + index) // count) for index in range(count)]


def running(pod: Obj) -> Obj:
    """Return status of a pod whose container runs."""
    return running_status(pod, pod["metadata"]["creationTimestamp"])


def failed(pod: Obj) -> Obj:
    """Return status of a pod whose container ended with status 1."""
    return ended_status(pod, 1, pod["metadata"]["creationTimestamp"])


def bare_seconds(plane: ControlPlane, pods: list[Obj], namespace: str) -> float:
    """Return how long a client that does nothing else, a process of its own, needs to POST copies of `pods` into `namespace`."""
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
    """Return what was POSTed when `pod` was made."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("name", "labels", "annotations", "ownerReferences") if key in meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "namespace": namespace}, "spec": pod["spec"]}


def shuffled[T](items: Iterable[T], seed: int) -> list[T]:
    found = list(items)
    random.Random(seed).shuffle(found)
    return found


async def writes_of(operator: OperatorReplica) -> int:
    """Count the operator's requests so far that changed something, or tried to. A text of /metrics is served to all who ask within a while,
    so this waits until none of before is."""
    await asyncio.sleep(ENDPOINTS.page)
    return operator.writes
