"""A real kube-apiserver with etcd, simulated slices, and the operator as a process of its own, as a chart would start it.

The controller manager and the scheduler are not started: they would take the processor from both sides of every comparison. What the
benchmarks need of them (a namespace's default ServiceAccount, a pod's end) the rig writes itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.rules import MAX_FAILURES_ON_RECORD
from diloco_operator.kube.client import ApiError, Client, EventType, Gone, Obj, PatchType, Resource
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.offspring import die_with_parent
from benchmarks.simulated_cluster import node
from tests.builders.control_plane import ControlPlane, start

CONCURRENCY = 64
"""Requests under way at once of the rig and of the bare client: as many as the operator's."""
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
ROOT = Path(__file__).parents[2]


class Rig:
    """One control plane. `client` is the administrator's."""

    def __init__(self, plane: ControlPlane, client: Client) -> None:
        self.plane = plane
        self.client = client

    async def namespace(self, name: str) -> str:
        """A namespace in which pods may be made."""
        await self.client.create(names.NAMESPACES, {"metadata": {"name": name}})
        await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": name}})
        return name

    async def add_slices(self, count: int, *, hosts: int = 1, prefix: str = "v6e") -> None:
        """Slices of v6e hosts with four chips each, every slice a node pool of its own."""
        topology = "2x2" if hosts == 1 else "4x4"
        slices = [f"{prefix}-{index}" for index in range(count)]
        nodes = [node(f"{each}-{host}", each, topology) for each in slices for host in range(hosts)]
        await side_by_side([lambda made=made: self.client.create(names.NODES, made) for made in nodes])

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
        """What a kubelet would report of each pod, all as fast as possible."""
        await mark(self.client, pods, status)

    @contextmanager
    def operator(self, namespaces: Sequence[str] = ()) -> Iterator[OperatorProcess]:
        """`diloco-operator run`, ready."""
        log = Path(tempfile.mkstemp(suffix=".log", prefix="diloco-operator-")[1])
        metrics, health = free_port(), free_port()
        command = [
            str(Path(sys.executable).with_name("diloco-operator")),
            "run",
            f"--kubeconfig={self.plane.kubeconfig}",
            "--no-leader-elect",
            f"--metrics-address=127.0.0.1:{metrics}",
            f"--health-address=127.0.0.1:{health}",
            "--log-level=warning",
            *(f"--watch-namespace={each}" for each in namespaces),
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=die_with_parent)
        running = OperatorProcess(process, log, f"http://127.0.0.1:{metrics}/metrics", f"http://127.0.0.1:{health}/readyz")
        try:
            running.wait_ready()
            yield running
            if process.poll() is not None:
                raise RuntimeError(f"the operator ended early:\n{running.tail()}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.unlink()


class OperatorProcess:
    """The operator as seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, metrics_url: str, ready_url: str) -> None:
        self._process = process
        self._log = log
        self._metrics_url = metrics_url
        self._ready_url = ready_url

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(self._ready_url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the operator did not get ready:\n{self.tail()}")
            time.sleep(0.1)

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    @property
    def resident_bytes(self) -> int:
        """Memory that is the process's, as the kernel counts it."""
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{self._process.pid}/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1]) * 1024

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of `name` that have these labels."""
        with urllib.request.urlopen(self._metrics_url, timeout=30) as answer:
            text = answer.read().decode()
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
            if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
                total += float(found[2])
        return total

    @property
    def writes(self) -> int:
        """Requests that changed something, or tried to."""
        return int(sum(self.metric("rest_client_requests_total", method=method) for method in ("POST", "PUT", "PATCH", "DELETE")))


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
        """Until cancelled."""
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
        selector = f"{names.LABEL_COMPONENT}={names.COMPONENT_LEARNER}"
        async for event in self._client.watch(
            names.PODS, self._namespace, resource_version=version, label_selector=selector, timeout_seconds=300
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
async def rig() -> AsyncIterator[Rig]:
    """A control plane that knows DiLoCoJobs; gone with everything in it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="diloco-bench-"))
    try:
        # New nodes get the taint not-ready, which a controller takes away; none runs here.
        untainted = ("--disable-admission-plugins=TaintNodesByCondition",)
        with start(folder, controllers=False, scheduler=False, api_server_args=untainted) as plane:
            plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
            plane.kubectl("wait", "--for=condition=Established", "crd/dilocojobs.diloco.dev", "--timeout=30s")
            async with RestClient.connect(load_config(str(plane.kubeconfig))) as client:
                yield Rig(plane, client)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def mark(client: Client, pods: Iterable[Obj], status: Callable[[Obj], Obj]) -> None:
    """What a kubelet would report of each pod, all as fast as possible."""
    await side_by_side(
        [
            lambda pod=pod: client.patch(
                names.PODS,
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                {"status": status(pod)},
                type=PatchType.MERGE,
                subresource="status",
            )
            for pod in pods
        ]
    )


async def side_by_side(sends: Sequence[Callable[[], Any]]) -> None:
    """All of them, `CONCURRENCY` at once."""
    left = iter(sends)

    async def work() -> None:
        for send in left:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


def job(name: str, namespace: str, units: int, *, hosts: int = 1) -> Obj:
    """`units` units; a failed one is started again without a pause, and its failures are soon forgotten: a status in which every failure of
    a benchmark is kept grows with each, and what is measured last would be measured on another job."""
    container = {"name": names.LEARNER_CONTAINER, "image": "registry.example/train:1", "command": ["python", "train.py"]}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "learners": {
                "min": 1,
                "max": units,
                "restart": {
                    "limit": min(1000, MAX_FAILURES_ON_RECORD // units),
                    "window": "10s",
                    "backoff": {"initial": "0s", "max": "0s"},
                },
            },
            "pools": [
                {
                    "name": "v6e",
                    "accelerator": "tpu-v6e",
                    "topology": "2x2" if hosts == 1 else "4x4",
                    "learners": {"min": 0, "max": units},
                    "template": {"spec": {"containers": [container]}},
                }
            ],
            "training": {"steps": 100_000},
        },
    }


def running(pod: Obj) -> Obj:
    """Status of a pod whose container runs."""
    state = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
    return _status(pod, "Running", state) | {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}


def failed(pod: Obj) -> Obj:
    """Status of a pod whose container ended with status 1."""
    at = pod["metadata"]["creationTimestamp"]
    return _status(pod, "Failed", {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": at, "finishedAt": at}})


def _status(pod: Obj, phase: str, state: Obj) -> Obj:
    container = pod["spec"]["containers"][0]
    one = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state,
    }
    return {"phase": phase, "containerStatuses": [one]}


def bare_seconds(plane: ControlPlane, pods: list[Obj], namespace: str) -> float:
    """How long a client that does nothing else, a process of its own, needs to POST copies of `pods` into `namespace`."""
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
    """What was POSTed when `pod` was made."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("name", "labels", "annotations", "ownerReferences") if key in meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "namespace": namespace}, "spec": pod["spec"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shuffled[T](items: Iterable[T], seed: int) -> list[T]:
    found = list(items)
    random.Random(seed).shuffle(found)
    return found
