"""What the node lifecycle controller, the taint manager and the pod garbage collector of a cluster do when a simulated node of the embedded
control plane fails, comes back or goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from diloco_local.kubelet import Kubelet, NodeFailure
from diloco_local.nodes import RegisteredNodes, set_ready
from diloco_local.pod_status import timestamp
from diloco_local.scheduling import tolerates
from diloco_operator.api.names import NODES, PODS
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj

log = logging.getLogger(__name__)

UNREACHABLE = "node.kubernetes.io/unreachable"


class NodeLifecycle:
    """`eviction_seconds`: from a node's failure to the eviction of its pods; 300 in a cluster. `close` ends the evictions that wait."""

    def __init__(self, client: Client, kubelet: Kubelet, nodes: RegisteredNodes, *, eviction_seconds: float) -> None:
        self._client = client
        self._kubelet = kubelet
        self._nodes = nodes
        self._eviction_seconds = eviction_seconds
        self._evictions: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        evictions = [*self._evictions.values()]
        for task in evictions:
            task.cancel()
        await asyncio.gather(*evictions, return_exceptions=True)

    async def fail(self, name: str, failure: NodeFailure = NodeFailure.STOPPED) -> None:
        """Stop the node's answers. Its Ready becomes Unknown, it gets the unreachable taints, and its pods become not ready but stay
        otherwise. After the eviction time its pods are marked for deletion; they stay Terminating until the node comes back."""
        # First: a heartbeat in between would make the node Ready again.
        await self._kubelet.fail_node(name, failure)
        await self._change(
            name, lambda node: set_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now=_now())
        )
        await self.taint(name, UNREACHABLE, "NoSchedule")
        await self.taint(name, UNREACHABLE, "NoExecute")
        for pod in await self._pods_on(name):
            await self._mark_pod(pod, {"type": "Ready", "status": "False"})

    async def recover(self, name: str) -> None:
        """Bring the node back: Ready, without the taints of its failure. Pods that were marked for deletion end now."""
        # First: its time may be over while the taints go, and it would end the pods of a healthy node.
        if eviction := self._evictions.pop(name, None):
            eviction.cancel()
        await self._untaint(name, UNREACHABLE)
        await self._change(name, lambda node: set_ready(node, "True", "KubeletReady", "kubelet is posting ready status", now=_now()))
        self._kubelet.recover_node(name)

    async def remove(self, name: str) -> None:
        """Remove the machine for good: its processes die, its Node object is deleted, and its pods are garbage-collected."""
        await self._kubelet.fail_node(name, NodeFailure.STOPPED)
        if eviction := self._evictions.pop(name, None):
            eviction.cancel()
        await self._client.delete(NODES, "", name)
        for pod in await self._pods_on(name):
            # At once: no kubelet is left that could end the pod within its grace.
            await self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists", grace_seconds=0, phase="Failed")
        self._kubelet.recover_node(name)  # nothing is left to report: its workers see that their pods have gone, and end

    async def restore(self) -> None:
        """Bring the nodes that were removed back as new objects of the same names."""
        await self._nodes.register()

    async def taint(self, name: str, key: str, effect: str, value: str = "") -> None:
        """Add a taint. NoExecute evicts pods that do not tolerate it: at once, or after the eviction time for taints of a failed node."""
        taint = {"key": key, "effect": effect, "timeAdded": _now(), **({"value": value} if value else {})}

        def add(node: Obj) -> None:
            taints = node["spec"].setdefault("taints", [])
            if not any(old["key"] == key and old["effect"] == effect for old in taints):
                taints.append(taint)

        await self._change(name, add, status=False)
        if effect == "NoExecute" and name not in self._evictions:
            delay = self._eviction_seconds if key == UNREACHABLE else 0.0
            self._evictions[name] = asyncio.create_task(self._evict(name, taint, delay), name=f"eviction from {name}")

    async def _untaint(self, name: str, key: str) -> None:
        """Remove every taint with this key."""

        def drop(node: Obj) -> None:
            node["spec"]["taints"] = [taint for taint in node["spec"].get("taints") or () if taint["key"] != key]

        await self._change(name, drop, status=False)

    async def _evict(self, name: str, taint: Mapping[str, Any], delay: float) -> None:
        await asyncio.sleep(delay)
        for pod in await self._pods_on(name):
            if not tolerates(pod["spec"].get("tolerations") or (), taint) and pod.get("status", {}).get("phase") not in (
                "Succeeded",
                "Failed",
            ):
                await self._disrupt(pod, "DeletionByTaintManager", f"Taint manager: deleting due to NoExecute taint {taint['key']}")
        self._evictions.pop(name, None)

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
            fresh = {**old, **condition, "lastTransitionTime": _now() if changed else old["lastTransitionTime"]}
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


def _now() -> str:
    return timestamp(datetime.now(UTC))
