"""Simulated nodes of the embedded control plane: registration and heartbeats, as a kubelet does them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED, NODE_HOSTNAME, NODES
from diloco_operator.kube.client import AlreadyExists, Client, Conflict, NotFound, Obj
from diloco_operator.kube.quantities import quantity

from diloco_local.kubelet import Kubelet
from diloco_local.kubelet_context import KubeletContext, SimulatedNode
from diloco_local.pod_status import timestamp

log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 300.0
"""A kubelet without news writes its node's status this often."""
_CPU_NODES = 8


class BadNode(ValueError):
    """A node manifest that cannot be used; the message names the node and the field."""


def this_machine() -> list[Obj]:
    """The built-in fleet: this machine as cpu nodes, each for one learner."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "pods": "110"}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"cpu-{index}"}, "status": {"capacity": capacity}}
        for index in range(_CPU_NODES)
    ]


def complete(manifest: Obj) -> Obj:
    """Add to a node manifest what a kubelet adds when it registers: host name label, allocatable, system labels. Raises BadNode."""
    metadata = manifest.get("metadata") or {}
    name = metadata.get("name")
    if not name:
        raise BadNode("a Node without metadata.name")
    status = _object(name, manifest, "status")
    for parent, keys in ((metadata, ("labels", "annotations")), (manifest, ("spec",)), (status, ("capacity", "allocatable"))):
        for key in keys:
            _object(name, parent, key)
    speed = (metadata.get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED)
    if speed is not None:
        check_speed(name, speed)
    labels = {
        NODE_HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        **{key: str(value) for key, value in (metadata.get("labels") or {}).items()},
    }
    capacity = {key: str(value) for key, value in (status.get("capacity") or status.get("allocatable") or {}).items()}
    allocatable = {key: str(value) for key, value in (status.get("allocatable") or capacity).items()}
    for resource, amount in (*capacity.items(), *allocatable.items()):
        _check_amount(name, resource, amount)
    # Drop the rest: nodes may be copied from a cluster, and an object with a resourceVersion cannot be created.
    kept = {key: value for key, value in metadata.items() if key in ("name", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**kept, "labels": labels},
        "spec": dict(manifest.get("spec") or {}),
        "status": {"capacity": capacity, "allocatable": allocatable},
    }


def _object(node: str, parent: Obj, key: str) -> Obj:
    content: Any = parent.get(key) or {}
    if not isinstance(content, dict):
        raise BadNode(f"node {node}: {key} must be an object, not {content!r}")
    return content


def _check_amount(node: str, resource: str, text: str) -> None:
    try:
        below_zero = quantity(text) < 0
    except ValueError as error:
        raise BadNode(f"node {node}: {resource}: {error}") from error
    if below_zero:
        raise BadNode(f"node {node}: {resource}: {text} is below 0")


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
        cause = (reason, message) if kind == "Ready" else ("KubeletHasSufficientResources", "")
        before[kind] = {
            "type": kind, "status": value, "reason": cause[0], "message": cause[1],
            "lastHeartbeatTime": now if ready == "True" or not old else old.get("lastHeartbeatTime", now), "lastTransitionTime": since,
        }  # fmt: skip
    status["conditions"] = [*before.values()]


class RegisteredNodes:
    """Registers nodes, gives them to the kubelet, and keeps them Ready."""

    def __init__(self, client: Client, kubelet: Kubelet, context: KubeletContext, manifests: Sequence[Obj]) -> None:
        self._client = client
        self._kubelet = kubelet
        self._context = context
        self._manifests = [complete(manifest) for manifest in manifests]
        self._served: dict[str, SimulatedNode] = {}

    async def register(self) -> None:
        """Create every node that is not in the API, and make all of them Ready."""
        for manifest in self._manifests:
            await self._register(manifest)

    async def run(self) -> None:
        """Send the heartbeats of connected nodes until cancelled."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            for name, served in self._served.items():
                if served.connected.is_set():
                    await self._change_status(name, self._set_ready)

    async def _register(self, manifest: Obj) -> None:
        metadata = manifest["metadata"]
        name = metadata["name"]
        served = self._kubelet.serve(name, relative_speed=str((metadata.get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED, "")))
        self._served[name] = served
        addresses = [{"type": "InternalIP", "address": served.address}, {"type": "Hostname", "address": name}]

        def fill(node: Obj) -> None:
            node["status"] = {**(node.get("status") or {}), **manifest["status"], "addresses": addresses}
            self._set_ready(node)

        try:
            await self._client.create(NODES, manifest, field_manager="kubelet")
        except AlreadyExists:
            log.info("node %s is registered already", name)
        await self._change_status(name, fill)

    def _set_ready(self, node: Obj) -> None:
        set_ready(node, "True", "KubeletReady", "kubelet is posting ready status", now=timestamp(self._context.now()))

    async def _change_status(self, name: str, change: Callable[[Obj], None]) -> None:
        """Read, change and write the node's status. Start over if another client wrote in between; do nothing if the node has gone."""
        while True:
            try:
                node = await self._client.get(NODES, "", name)
                change(node)
                await self._client.update(NODES, node, subresource="status", field_manager="kubelet")
            except Conflict:
                continue
            except NotFound:
                return
            return
