"""Simulated nodes of the embedded control plane: registration, heartbeats and failures, as the node lifecycle controller, the taint manager
and the pod garbage collector of a cluster handle them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED, NODE_HOSTNAME, NODES, PODS
from diloco_operator.kube.client import AlreadyExists, Client, Conflict, NotFound, Obj

from diloco_local.kubelet import Kubelet, NodeFailure
from diloco_local.kubelet_context import KubeletContext
from diloco_local.pod_status import timestamp
from diloco_local.scheduling import tolerates

log = logging.getLogger(__name__)

UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"

_HEARTBEAT_SECONDS = 300.0
"""A kubelet without news writes its node's status this often."""
_EVICTION_SECONDS = 300.0
"""tolerationSeconds for not-ready and unreachable that a cluster adds to every pod."""
_CPU_NODES = 8


class BadNode(ValueError):
    """A node manifest that cannot be used; the message names the node and the field."""


def this_machine() -> list[Obj]:
    """Return the built-in fleet: this machine as cpu nodes, each for one learner."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "pods": "110"}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"cpu-{index}"}, "status": {"capacity": capacity}}
        for index in range(_CPU_NODES)
    ]


def complete(manifest: Obj) -> Obj:
    """Return a node manifest with what a kubelet adds when it registers: host name label, allocatable, system labels. Raises BadNode."""
    metadata = manifest.get("metadata") or {}
    name = metadata.get("name")
    if not name:
        raise BadNode("a Node without metadata.name")
    speed = (metadata.get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED)
    if speed is not None:
        check_speed(name, speed)
    labels = {
        NODE_HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        **{key: str(value) for key, value in (metadata.get("labels") or {}).items()},
    }
    status = manifest.get("status") or {}
    capacity = {key: str(value) for key, value in (status.get("capacity") or status.get("allocatable") or {}).items()}
    allocatable = {key: str(value) for key, value in (status.get("allocatable") or capacity).items()}
    # Nodes may be copied from a cluster: an object with a resourceVersion cannot be created.
    kept = {key: value for key, value in metadata.items() if key in ("name", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**kept, "labels": labels},
        "spec": dict(manifest.get("spec") or {}),
        "status": {"capacity": capacity, "allocatable": allocatable},
    }


def check_speed(node: str, text: object) -> None:
    """Raise BadNode unless `text` is a number in (0, 1]."""
    try:
        good = 0 < float(str(text)) <= 1
    except ValueError:
        good = False
    if not good:
        raise BadNode(
            f"node {node}: metadata.annotations[{ANNOTATION_RELATIVE_SPEED}] is {text!r}; it must be the node's speed relative to "
            'this machine, a number above 0 and at most 1 in quotes, such as "0.6"'
        )


def set_ready(node: Obj, ready: str, reason: str, message: str, *, now: str) -> None:
    """Write the conditions of a node's status as a kubelet does. `ready` is True, False or Unknown."""
    status = node.setdefault("status", {})
    before: dict[str, Obj] = {condition["type"]: condition for condition in status.get("conditions") or ()}
    pressures = dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False") if ready == "True" else {}
    for kind, value in {**pressures, "Ready": ready}.items():
        old = before.get(kind)
        since = old["lastTransitionTime"] if old and old["status"] == value else now
        said = (reason, message) if kind == "Ready" else ("KubeletHasSufficientResources", "")
        before[kind] = {
            "type": kind, "status": value, "reason": said[0], "message": said[1],
            "lastHeartbeatTime": now if ready == "True" or not old else old.get("lastHeartbeatTime", now), "lastTransitionTime": since,
        }  # fmt: skip
    status["conditions"] = [*before.values()]


class NodeLifecycle:
    """Registers nodes, keeps them Ready, and simulates their failures."""

    def __init__(
        self, client: Client, kubelet: Kubelet, context: KubeletContext, manifests: Sequence[Obj], *,
        eviction_seconds: float = _EVICTION_SECONDS, heartbeat_seconds: float = _HEARTBEAT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._client = client
        self._kubelet = kubelet
        self._context = context
        self._manifests = [complete(manifest) for manifest in manifests]
        self._eviction_seconds = eviction_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._sleep = sleep
        self._failed: set[str] = set()
        self._evictions: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> list[str]:
        return [manifest["metadata"]["name"] for manifest in self._manifests]

    async def register(self) -> None:
        """Create every node in the API, Ready, and give it to the kubelet."""
        for manifest in self._manifests:
            await self._register(manifest)

    async def run(self) -> None:
        """Send heartbeats until cancelled; pending evictions are cancelled too."""
        try:
            while True:
                await self._sleep(self._heartbeat_seconds)
                for name in self.names:
                    if name not in self._failed:
                        await self._change(name, lambda node: self._set_ready(node, "True"))
        finally:
            for task in self._evictions.values():
                task.cancel()
            await asyncio.gather(*self._evictions.values(), return_exceptions=True)

    async def fail(self, name: str, failure: NodeFailure = NodeFailure.STOPPED) -> None:
        """Stop the node's answers. Its Ready becomes Unknown, it gets the unreachable taints, and its pods become not ready but stay
        otherwise. After the eviction time its pods are marked for deletion; they stay Terminating until the node comes back."""
        # First: a heartbeat in between would make the node Ready again.
        self._failed.add(name)
        await self._kubelet.fail_node(name, failure)
        await self._change(name, lambda node: self._set_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
        await self.taint(name, UNREACHABLE, "NoSchedule")
        await self.taint(name, UNREACHABLE, "NoExecute")
        for pod in await self._pods_on(name):
            await self._mark_pod(pod, {"type": "Ready", "status": "False"})

    async def not_ready(self, name: str) -> None:
        """Report as the kubelet that it is not ready, as when its container runtime is down. Its processes run on."""
        self._failed.add(name)
        await self._change(name, lambda node: self._set_ready(node, "False", "KubeletNotReady", "container runtime is down"))
        await self.taint(name, NOT_READY, "NoSchedule")
        await self.taint(name, NOT_READY, "NoExecute")

    async def recover(self, name: str) -> None:
        """Bring the node back: Ready, without the taints of its failure. Pods that were marked for deletion end now."""
        # First: its time may be over while the taints go, and it would end the pods of a healthy node.
        if eviction := self._evictions.pop(name, None):
            eviction.cancel()
        await self.untaint(name, UNREACHABLE)
        await self.untaint(name, NOT_READY)
        await self._change(name, lambda node: self._set_ready(node, "True"))
        self._failed.discard(name)
        self._kubelet.recover_node(name)

    async def remove(self, name: str) -> None:
        """Remove the machine for good: its processes die, its Node object is deleted, and its pods are garbage-collected."""
        self._failed.add(name)
        await self._kubelet.fail_node(name, NodeFailure.STOPPED)
        if eviction := self._evictions.pop(name, None):
            eviction.cancel()
        await self._client.delete(NODES, "", name)
        for pod in await self._pods_on(name):
            # At once: no kubelet is left that could end the pod within its grace.
            await self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists", grace_seconds=0, phase="Failed")
        self._kubelet.recover_node(name)  # nothing is left to report: its workers see that their pods have gone, and end

    async def restore(self, name: str) -> None:
        """Bring a node that was removed back as a new object of the same name."""
        self._failed.discard(name)
        await self._register(next(manifest for manifest in self._manifests if manifest["metadata"]["name"] == name))

    async def taint(self, name: str, key: str, effect: str, value: str = "") -> None:
        """Add a taint. NoExecute evicts pods that do not tolerate it: at once, or after the eviction time for taints of a failed node."""
        taint = {"key": key, "effect": effect, "timeAdded": timestamp(self._context.now()), **({"value": value} if value else {})}

        def add(node: Obj) -> None:
            taints = node["spec"].setdefault("taints", [])
            if not any(old["key"] == key and old["effect"] == effect for old in taints):
                taints.append(taint)

        await self._change(name, add, status=False)
        if effect == "NoExecute" and name not in self._evictions:
            delay = self._eviction_seconds if key in (UNREACHABLE, NOT_READY) else 0.0
            self._evictions[name] = asyncio.create_task(self._evict(name, taint, delay), name=f"eviction from {name}")

    async def untaint(self, name: str, key: str) -> None:
        """Remove every taint with this key."""

        def drop(node: Obj) -> None:
            node["spec"]["taints"] = [taint for taint in node["spec"].get("taints") or () if taint["key"] != key]

        await self._change(name, drop, status=False)

    async def _evict(self, name: str, taint: Mapping[str, Any], delay: float) -> None:
        await self._sleep(delay)
        for pod in await self._pods_on(name):
            if not tolerates(pod["spec"].get("tolerations") or (), taint) and pod.get("status", {}).get("phase") not in (
                "Succeeded",
                "Failed",
            ):
                await self._disrupt(pod, "DeletionByTaintManager", f"Taint manager: deleting due to NoExecute taint {taint['key']}")
        self._evictions.pop(name, None)

    async def _register(self, manifest: Obj) -> None:
        name = manifest["metadata"]["name"]
        served = self._kubelet.serve(
            name, relative_speed=str((manifest["metadata"].get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED, ""))
        )
        addresses = [{"type": "InternalIP", "address": served.address}, {"type": "Hostname", "address": name}]

        def fill(node: Obj) -> None:
            node["status"] = {**(node.get("status") or {}), **manifest["status"], "addresses": addresses}
            self._set_ready(node, "True")

        try:
            await self._client.create(NODES, manifest, field_manager="kubelet")
        except AlreadyExists:
            log.info("node %s is registered already", name)
        await self._change(name, fill)

    def _set_ready(self, node: Obj, ready: str, reason: str = "KubeletReady", message: str = "kubelet is posting ready status") -> None:
        set_ready(node, ready, reason, message, now=timestamp(self._context.now()))

    async def _change(self, name: str, change: Callable[[Obj], None], *, status: bool = True) -> None:
        """Read, change and write the node, again if another client wrote in between. Does nothing if the node has gone."""
        while True:
            try:
                node = await self._client.get(NODES, "", name)
                change(node)
                await self._client.update(NODES, node, subresource="status" if status else "", field_manager="node-lifecycle")
            except Conflict:
                continue
            except NotFound:
                return
            return

    async def _pods_on(self, name: str) -> list[Obj]:
        return (await self._client.list(PODS, field_selector=f"spec.nodeName={name}")).items

    async def _mark_pod(self, pod: Obj, condition: Mapping[str, str], phase: str = "") -> None:
        metadata = pod["metadata"]
        while True:
            status = pod.get("status") or {}
            old: Obj = next((c for c in status.get("conditions") or () if c["type"] == condition["type"]), {})
            changed = old.get("status") != condition["status"]
            fresh = {**old, **condition, "lastTransitionTime": timestamp(self._context.now()) if changed else old["lastTransitionTime"]}
            status = {**status, "conditions": [*(c for c in status.get("conditions") or () if c["type"] != condition["type"]), fresh]}
            if phase:
                status["phase"] = phase
            try:
                await self._client.update(PODS, {**pod, "status": status}, subresource="status", field_manager="node-lifecycle")
                return
            except Conflict:
                pod = await self._client.get(PODS, metadata["namespace"], metadata["name"])
                if pod["metadata"]["uid"] != metadata["uid"]:
                    raise NotFound(404, "NotFound", f"pod {metadata['name']} has another uid now") from None

    async def _disrupt(self, pod: Obj, reason: str, message: str, *, grace_seconds: int | None = None, phase: str = "") -> None:
        metadata = pod["metadata"]
        try:
            await self._mark_pod(pod, {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}, phase)
            await self._client.delete(PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace_seconds=grace_seconds)
        except (NotFound, Conflict):
            log.info("pod %s/%s had gone before its eviction", metadata["namespace"], metadata["name"])
