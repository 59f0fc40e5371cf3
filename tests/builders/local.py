"""A control plane on this machine for tests: start it, apply jobs, break things, wait for conditions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.node_lifecycle import NodeLifecycle
from builders.nodes import a_fleet_node
from diloco_local.addresses import Addresses, Network
from diloco_local.control_plane import LocalControlPlane, LocalTiming
from diloco_local.kubelet import Kubelet, NodeFailure
from diloco_local.kubelet_context import KubeletContext
from diloco_local.memory import MemoryApi
from diloco_local.nodes import RegisteredNodes
from diloco_local.processes import Supervisor
from diloco_local.scheduler import Scheduler
from diloco_operator.api import names
from diloco_operator.api.names import DILOCO_JOBS, EVENTS, NODES, PODS
from diloco_operator.kube.client import Client, EventType, Gone, NotFound, Obj, Resource
from diloco_operator.reconcile import OperatorConfig

WAIT_SECONDS = 180.0
"""How long a condition may take before a test gives up. A limit for defects, not an expectation."""


type Holds = Callable[[Any], object]
"""Whether an object is as a test waits for it; called with None while there is no object."""


# --- waiting ----------------------------------------------------------------------------------------------------------
async def wait_for(
    client: Client, resource: Resource, namespace: str, name: str, holds: Holds, *, timeout: float = WAIT_SECONDS
) -> Obj | None:
    """The object (None: there is none) as soon as `holds` says so of it. Follows a watch; fails with the object's last state."""
    last: Obj | None = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                listed = await client.list(resource, namespace, field_selector=f"metadata.name={name}")
                last = listed.items[0] if listed.items else None
                if holds(last):
                    return last
                with contextlib.suppress(Gone):
                    async for event in client.watch(
                        resource, namespace, resource_version=listed.resource_version,
                        field_selector=f"metadata.name={name}", timeout_seconds=timeout,
                    ):  # fmt: skip
                        if event.type is not EventType.BOOKMARK:
                            last = None if event.type is EventType.DELETED else event.object
                            if holds(last):
                                return last
    except TimeoutError:
        raise AssertionError(f"{resource.kind} {name} did not come to what was waited for within {timeout} s; it is now {last}") from None


def condition(obj: Obj | None, type: str) -> Obj:
    """A condition of an object's status; empty if it is not there."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type), {})


def is_true(type: str, reason: str = "") -> Callable[[Obj | None], bool]:
    """For `wait_for`: the condition is True (for this reason)."""
    return lambda obj: condition(obj, type).get("status") == "True" and reason in ("", condition(obj, type).get("reason"))


def has_phase(*phases: str) -> Callable[[Obj | None], bool]:
    """For `wait_for`: the pod's phase is one of these."""
    return lambda obj: ((obj or {}).get("status") or {}).get("phase") in phases


def is_gone(obj: Obj | None) -> bool:
    return obj is None


def is_gone_after(seen: list[Obj]) -> Holds:
    """For `wait_for`: there is no object; `seen` gets every state that it had before."""

    def holds(obj: Obj | None) -> bool:
        if obj is not None:
            seen.append(obj)
        return obj is None

    return holds


def unit_of(job: Obj | None, unit: str) -> Obj:
    """A unit in the job's status; empty if it is not there."""
    units = ((job or {}).get("status") or {}).get("units") or ()
    return next((u for u in units if u["name"] == unit), {})


# --- a kubelet without an operator ------------------------------------------------------------------------------------
class LocalNodes:
    """In-memory API, scheduler, kubelet and nodes: what runs pods. No operator."""

    def __init__(self, client: MemoryApi, context: KubeletContext, kubelet: Kubelet, nodes: NodeLifecycle) -> None:
        self.client, self.context, self.kubelet, self.nodes = client, context, kubelet, nodes

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        return await self.client.create(resource, obj)

    async def pod(self, name: str, holds: Holds, *, timeout: float = WAIT_SECONDS) -> Obj:
        """The pod, as soon as it is so; empty once it is gone."""
        return await wait_for(self.client, PODS, "default", name, holds, timeout=timeout) or {}

    async def run(self, pod: Obj) -> Obj:
        """Create a pod and wait for its end; gives the pod."""
        await self.client.create(PODS, pod)
        return await self.pod(pod["metadata"]["name"], has_phase("Succeeded", "Failed"))

    def log(self, name: str) -> str:
        """What the pod has written, all containers and restarts."""
        return "".join(path.read_text() for path in self.kubelet.logs("default", name))


@contextlib.asynccontextmanager
async def local_nodes(
    state_dir: Path, *nodes: Obj, sleep: Callable[[float], Any] = asyncio.sleep, eviction_seconds: float = 0.0,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalNodes]:  # fmt: skip
    """`sleep` is what waits between restarts; evictions follow at once unless told otherwise. Without nodes: one called `node`."""
    client = MemoryApi()
    network = Network.reserve(random.Random())
    async with Supervisor() as supervisor:
        context = KubeletContext(
            client, supervisor, Addresses(network.second), state_dir, state_dir,
            chosen_environment=environment or {}, sleep=sleep,
        )  # fmt: skip
        kubelet = Kubelet(context)
        registered = RegisteredNodes(client, kubelet, context, nodes or [a_fleet_node("node")])
        await registered.register()
        lifecycle = NodeLifecycle(client, kubelet, registered, eviction_seconds=eviction_seconds)
        parts = [asyncio.create_task(part) for part in (kubelet.run(), Scheduler(client).run(), registered.run())]
        try:
            yield LocalNodes(client, context, kubelet, lifecycle)
        finally:
            await lifecycle.close()
            for part in parts:
                part.cancel()
            ended = await asyncio.gather(*parts, return_exceptions=True)
            network.close()
            context.short_paths.close()
        failures = [error for error in ended if isinstance(error, Exception)]
        assert not failures, failures


# --- the whole control plane ------------------------------------------------------------------------------------------
class Cluster:
    """A running `LocalControlPlane` with the words of a test."""

    def __init__(self, plane: LocalControlPlane, lifecycle: NodeLifecycle) -> None:
        self.plane = plane
        self.client = plane.client
        self._lifecycle = lifecycle

    async def apply(self, job: Obj) -> Obj:
        """Create a job."""
        metadata = {"namespace": "default", **job["metadata"]}
        return await self.client.create(DILOCO_JOBS, {**job, "metadata": metadata})

    async def change(self, name: str, spec: Obj) -> Obj:
        """Merge into a job's spec."""
        return await self.client.patch(DILOCO_JOBS, "default", name, {"spec": spec})

    async def job(self, name: str, holds: Holds = lambda job: job is not None, *, timeout: float = WAIT_SECONDS) -> Obj:
        """The job, as soon as it is so."""
        found: Obj | None = await self._unless_failed(wait_for(self.client, DILOCO_JOBS, "default", name, holds, timeout=timeout))
        assert found is not None
        return found

    async def unit(self, job: str, unit: str, holds: Callable[[Obj], bool], *, timeout: float = WAIT_SECONDS) -> Obj:
        """A unit of the job's status, as soon as it is so. An empty one stands for a unit that is not there."""
        return unit_of(await self.job(job, lambda obj: holds(unit_of(obj, unit)), timeout=timeout), unit)

    async def step(self, job: str, step: int, *, timeout: float = WAIT_SECONDS) -> Obj:
        """The job, as soon as it reached an outer step."""
        return await self.job(
            job, lambda obj: (((obj or {}).get("status") or {}).get("progress") or {}).get("step", 0) >= step, timeout=timeout
        )

    async def events(self, reason: str, *, timeout: float = WAIT_SECONDS) -> list[Obj]:
        """All Events of this reason, as soon as there is one."""
        return await self._unless_failed(self._events(reason, timeout))  # type: ignore[no-any-return]

    async def _events(self, reason: str, timeout: float) -> list[Obj]:
        async with asyncio.timeout(timeout):
            while True:
                listed = await self.client.list(EVENTS, "default")
                if found := [event for event in listed.items if event["reason"] == reason]:
                    return found
                with contextlib.suppress(Gone):
                    async for _ in self.client.watch(EVENTS, "default", resource_version=listed.resource_version, timeout_seconds=timeout):
                        break

    async def pods(self, job: str) -> list[Obj]:
        return (await self.client.list(PODS, "default", label_selector=f"{names.LABEL_JOB}={job}")).items

    async def pod_of(self, job: str, unit: str) -> Obj:
        """The newest pod of a unit, or of `syncer`."""
        labels = f"{names.LABEL_COMPONENT}={names.COMPONENT_SYNCER}" if unit == names.COMPONENT_SYNCER else f"{names.LABEL_UNIT}={unit}"
        found = (await self.client.list(PODS, "default", label_selector=f"{names.LABEL_JOB}={job},{labels}")).items
        assert found, f"job {job} has no pod for {unit}"
        return max(found, key=lambda pod: int(pod["metadata"]["labels"].get(names.LABEL_ATTEMPT, "0")))

    async def signal(self, job: str, unit: str, number: int) -> Obj:
        """A signal to every process of a unit's newest pod; gives the pod."""
        pod = await self.pod_of(job, unit)
        assert await self.plane.kubelet.signal("default", pod["metadata"]["name"], number), f"{unit} does not run"
        return pod

    async def kill(self, job: str, unit: str) -> Obj:
        return await self.signal(job, unit, signal.SIGKILL)

    async def stop(self, job: str, unit: str) -> Obj:
        return await self.signal(job, unit, signal.SIGSTOP)

    async def node_of(self, job: str, unit: str) -> str:
        return str((await self.pod_of(job, unit))["spec"]["nodeName"])

    async def fail_node(self, node: str, failure: NodeFailure = NodeFailure.STOPPED) -> None:
        """The node turns NotReady and does not answer; its processes die with it, or live on if it is partitioned."""
        await self._lifecycle.fail(node, failure)

    async def recover_node(self, node: str) -> None:
        await self._lifecycle.recover(node)

    async def remove_node(self, node: str) -> None:
        await self._lifecycle.remove(node)

    async def restore_nodes(self) -> None:
        await self._lifecycle.restore()

    async def delete(self, name: str) -> None:
        await self.client.delete(DILOCO_JOBS, "default", name)

    async def delete_and_wait(self, name: str) -> None:
        """Delete the job and wait until nothing with its label is left."""
        await self.delete(name)
        for pod in await self.pods(name):
            await wait_for(self.client, PODS, "default", pod["metadata"]["name"], is_gone)
        with contextlib.suppress(NotFound):
            await wait_for(self.client, DILOCO_JOBS, "default", name, is_gone)

    def log(self, pod: str) -> str:
        return "".join(path.read_text() for path in self.plane.kubelet.logs("default", pod))

    async def _unless_failed(self, wanted: Any) -> Any:
        """Wait, and fail at once when a part of the control plane does."""
        task = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait([task, self.plane.failed], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.plane.failed.result()
            return await task
        finally:
            task.cancel()


@contextlib.asynccontextmanager
async def local_control_plane(
    state_dir: Path,
    nodes: Sequence[Obj],
    *,
    config: OperatorConfig | None = None,
    timing: LocalTiming | None = None,
    eviction_seconds: float = 300.0,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """The whole embedded control plane, operator included. `options` go to LocalControlPlane."""
    async with LocalControlPlane(state_dir, nodes, operator_config=config, timing=timing, **options) as plane:
        lifecycle = NodeLifecycle(plane.client, plane.kubelet, plane.nodes, eviction_seconds=eviction_seconds)
        try:
            yield Cluster(plane, lifecycle)
        finally:
            await lifecycle.close()


__all__ = ["NODES", "Cluster", "LocalNodes", "NodeFailure", "condition", "has_phase", "is_gone"]
__all__ += ["is_true", "local_control_plane", "local_nodes", "unit_of", "wait_for"]
