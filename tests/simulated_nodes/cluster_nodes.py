"""Simulated nodes in a real cluster. It does what a kubelet does for its Node object; the rest is left to the cluster's controllers.

Registers nodes, renews their Leases, posts their status, and lets them fail when their annotation asks for it. It writes only to nodes
that carry the label of its own state directory: nodes of the cluster and of other commands stay as they are.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from diloco_local.kubelet import Kubelet, NodeFailure
from diloco_local.kubelet_context import WATCHES, KubeletContext, SimulatedNode
from diloco_local.nodes import complete, set_ready
from diloco_local.pod_status import timestamp
from diloco_operator.api.names import ANNOTATION_RELATIVE_SPEED, COMPONENT_LEARNER, LABEL_COMPONENT, NODES, PODS
from diloco_operator.kube.cache import as_it_is
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, Conflict, NotFound, Obj
from diloco_operator.kube.lease import LEASES
from diloco_operator.kube.reflector import Reflector, WatchedResource

from simulated_nodes.names import ANNOTATION_LEAVING, ANNOTATION_SIMULATE, FIELD_MANAGER, LABEL_SERVER

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
_STATUS_SECONDS = 300.0
"""A kubelet without news writes its node's status this often. The Lease keeps the node Ready in between."""
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 0.1
_OVER = ("Succeeded", "Failed")


class ForeignNodes(RuntimeError):
    """Nodes of these names exist and belong to another owner."""


def registration(manifest: Obj, server: str) -> Obj:
    """Return the Node object of a manifest, with this machine's capacity where the manifest has none. Pure but for that.

    Raises BadNode.
    """
    node = complete(manifest)
    node["metadata"]["labels"][LABEL_SERVER] = server
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usual = {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "ephemeral-storage": "100Gi", "pods": "110"}
    for kind in ("capacity", "allocatable"):
        node["status"][kind] = {**usual, **node["status"][kind]}
    return node


class ClusterNodes:
    """`server` is the identity of the command that serves them. `heartbeat` is the time between two renewals of a node's Lease in seconds,
    a quarter of its duration. `listen` starts the kubelet's HTTPS server at an address and gives the port."""

    def __init__(
        self, client: Client, kubelet: Kubelet, context: KubeletContext, manifests: Sequence[Obj], *, server: str, heartbeat: float = 10.0,
        listen: Callable[[str], Awaitable[int]] | None = None,
    ) -> None:  # fmt: skip
        self._client = client
        self._kubelet = kubelet
        self._context = context
        self._manifests = {manifest["metadata"]["name"]: registration(manifest, server) for manifest in manifests}
        self._server = server
        self._heartbeat = heartbeat
        self._listen = listen
        self._ports: dict[str, int] = {}
        self._failures: dict[str, NodeFailure] = {}
        """How each node fails at present; a healthy node is not in it."""
        self._served: dict[str, SimulatedNode] = {}
        self._uids: dict[str, str] = {}
        """The uids of the Node objects that exist and are served here."""
        self._status_written: dict[str, datetime] = {}
        """When each status was last written."""
        self._unreachable = False
        """The API server did not answer the last heartbeat."""
        self._wake = asyncio.Event()
        self._nodes = Reflector(
            client, WatchedResource(NODES, as_it_is, label_selector=f"{LABEL_SERVER}={server}"), rng=random.random, timeouts=WATCHES
        )
        self._nodes.on_change(lambda _old, _new: self._wake.set())

    @property
    def names(self) -> list[str]:
        return [*self._manifests]

    async def register(self) -> None:
        """Create every node in the API, Ready, or take over those that an earlier run left. Raises ForeignNodes, ApiError."""
        # All are looked at before one is made: a refusal leaves the cluster as it was.
        there = {name: await self._find(name) for name in self._manifests}
        foreign = [
            name for name, node in there.items() if node and (node["metadata"].get("labels") or {}).get(LABEL_SERVER) != self._server
        ]
        if foreign:
            raise ForeignNodes(
                f"the cluster already has nodes of these names, and they are not of this state directory: {', '.join(foreign)}. Rename "
                "the nodes in the fleet file. If they are simulated nodes of a command that has ended, delete them (kubectl delete node)"
            )
        for name, manifest in self._manifests.items():
            speed = (manifest["metadata"].get("annotations") or {}).get(ANNOTATION_RELATIVE_SPEED, "")
            self._served[name] = self._kubelet.serve(name, relative_speed=str(speed))
            if self._listen:
                self._ports[name] = await self._listen(self._served[name].address)
            await self._register(manifest, there[name])

    async def run(self) -> None:
        """Send heartbeats and apply the nodes' annotations, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="simulated nodes")
            group.create_task(self._send_heartbeats(), name="heartbeats")
            await self._nodes.wait_synced()
            while True:
                self._wake.clear()
                for name in self.names:
                    await self._apply_annotation(name)
                await self._wake.wait()

    async def leave(self) -> None:
        """Drain the nodes and delete them: cordoned, their learners end while their syncer still listens, then all other pods. `run` must
        go on meanwhile. Raises ApiError."""
        healthy = [name for name in self._uids if name not in self._failures]
        cordon = {"metadata": {"annotations": {ANNOTATION_LEAVING: "true"}}, "spec": {"unschedulable": True}}
        await asyncio.gather(*(self._patch(name, cordon) for name in healthy))
        await self._end_pods(healthy, f"{LABEL_COMPONENT}={COMPONENT_LEARNER}")
        await self._end_pods(healthy, "")
        while self._uids:
            name, uid = self._uids.popitem()
            with contextlib.suppress(NotFound, Conflict):  # it was deleted or replaced meanwhile
                await self._client.delete(NODES, "", name, uid=uid)
            with contextlib.suppress(NotFound):
                await self._client.delete(LEASES, LEASE_NAMESPACE, name)

    async def _end_pods(self, nodes: Sequence[str], labels: str) -> None:
        """Delete the pods that run, each within its grace period, and return when they have gone."""
        found = [pod for pod in await self._pods_on(nodes, labels) if pod["status"].get("phase") not in _OVER]
        for pod in found:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        # Those that have a finalizer stay after their end.
        uids = {pod["metadata"]["uid"] for pod in found if not pod["metadata"].get("finalizers")}
        while uids & {pod["metadata"]["uid"] for pod in await self._pods_on(nodes, labels)}:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _pods_on(self, nodes: Sequence[str], labels: str) -> list[Obj]:
        lists = [await self._client.list(PODS, label_selector=labels, field_selector=f"spec.nodeName={name}") for name in nodes]
        return [pod for each in lists for pod in each.items]

    async def _patch(self, name: str, change: Obj) -> None:
        with contextlib.suppress(NotFound):
            await self._client.patch(NODES, "", name, change, field_manager=FIELD_MANAGER)

    async def _find(self, name: str) -> Obj | None:
        try:
            return await self._client.get(NODES, "", name)
        except NotFound:
            return None

    async def _register(self, manifest: Obj, there: Obj | None) -> None:
        name = manifest["metadata"]["name"]
        if there is None:
            try:
                there = await self._client.create(NODES, {key: manifest[key] for key in ("metadata", "spec")}, field_manager=FIELD_MANAGER)
            except AlreadyExists:
                raise ForeignNodes(f"another client has just created a node {name}; rename it in the fleet file") from None
        else:
            log.info("node %s exists from an earlier run of this state directory", name)
            metadata: dict[str, Obj] = {key: manifest["metadata"].get(key) or {} for key in ("labels", "annotations")}
            if ANNOTATION_LEAVING in (there["metadata"].get("annotations") or {}):  # a run that was killed while it left has cordoned it
                await self._patch(name, {"metadata": {"annotations": {ANNOTATION_LEAVING: None}}, "spec": {"unschedulable": None}})
            there = await self._client.patch(
                NODES, "", name, {"metadata": metadata}, field_manager=FIELD_MANAGER
            )  # fmt: skip
        self._uids[name] = there["metadata"]["uid"]
        await self._renew(name)
        await self._change(name, self._report_ready)

    def _report_ready(self, node: Obj) -> None:
        name = node["metadata"]["name"]
        uname = platform.uname()
        labels = self._manifests[name]["metadata"]["labels"]
        node["status"] = {
            **(node.get("status") or {}),
            **self._manifests[name]["status"],
            "addresses": [{"type": "InternalIP", "address": self._served[name].address}],
            **({"daemonEndpoints": {"kubeletEndpoint": {"Port": self._ports[name]}}} if name in self._ports else {}),
            "nodeInfo": {
                **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
                "kernelVersion": uname.release,
                "osImage": "simulated node of diloco",
                "containerRuntimeVersion": "local://processes",
                "kubeletVersion": "v0.1.0-diloco",
                "operatingSystem": "linux",
                "architecture": labels["kubernetes.io/arch"],
            },
        }
        set_ready(node, "True", "KubeletReady", "kubelet is posting ready status", now=timestamp(self._context.now()))

    async def _change(self, name: str, change: Callable[[Obj], None]) -> None:
        """Read, change and write the node's status, again if another client wrote in between. Does nothing if the node has gone."""
        while True:
            node = await self._find(name)
            if node is None or node["metadata"]["uid"] != self._uids.get(name):
                return
            change(node)
            try:
                await self._client.update(NODES, node, subresource="status", field_manager=FIELD_MANAGER)
            except (Conflict, NotFound):
                continue
            self._status_written[name] = self._context.now()
            return

    async def _renew(self, name: str) -> None:
        now = self._context.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": name, "uid": self._uids[name]}
        lease: Obj = {
            "metadata": {"name": name, "labels": {LABEL_SERVER: self._server}, "ownerReferences": [owner]},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": max(1, round(4 * self._heartbeat)), "renewTime": now},
        }
        try:
            await self._client.patch(LEASES, LEASE_NAMESPACE, name, lease, field_manager=FIELD_MANAGER)
        except NotFound:
            lease["metadata"]["namespace"] = LEASE_NAMESPACE
            await self._client.create(LEASES, lease, field_manager=FIELD_MANAGER)

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(max(self._heartbeat, _RETRY_SECONDS)):
                    await asyncio.gather(*(self._heartbeat_node(name) for name in [*self._uids]))
            except (ApiError, TimeoutError) as error:
                if not self._unreachable:
                    log.warning("heartbeats fail: %s", error or "no answer")
                self._unreachable = True
                await asyncio.sleep(min(_RETRY_SECONDS, self._heartbeat))
                continue
            if self._unreachable:
                log.info("heartbeats succeed again")
            self._unreachable = False
            await asyncio.sleep(self._heartbeat)

    async def _heartbeat_node(self, name: str) -> None:
        """Send one heartbeat of a node. It also writes the status when that is old, or when the control plane has marked the node
        NotReady."""
        if name in self._failures or name not in self._uids:
            return
        await self._renew(name)
        held = self._nodes.cache.get("", name)
        conditions = held.value.get("status", {}).get("conditions") or () if held else ()
        ready = {condition["type"]: condition["status"] for condition in conditions}.get("Ready") == "True"
        written = self._status_written.get(name)
        old = written is None or (self._context.now() - written).total_seconds() >= _STATUS_SECONDS
        if held and (old or not ready):
            await self._change(name, self._report_ready)

    async def _apply_annotation(self, name: str) -> None:
        """Simulate the failure that the node's annotation asks for."""
        held = self._nodes.cache.get("", name)
        if held is None or held.uid != self._uids.get(name):
            if self._uids.pop(name, None):
                log.warning("node %s was deleted; it comes back with the next start of this command", name)
            return
        failure = _simulated_failure(held.value)
        if failure is self._failures.get(name):
            return
        if failure is None:
            log.info("node %s is healthy again", name)
            del self._failures[name]
            self._kubelet.recover_node(name)
            with contextlib.suppress(ApiError):  # the next heartbeat tries again
                await self._heartbeat_node(name)
        else:
            log.info("node %s is %s, as its annotation asks", name, failure)
            self._failures[name] = failure
            await self._kubelet.fail_node(name, failure)


def _simulated_failure(node: Obj) -> NodeFailure | None:
    text = (node["metadata"].get("annotations") or {}).get(ANNOTATION_SIMULATE, "")
    if not text:
        return None
    try:
        return NodeFailure(text)
    except ValueError:
        known = " or ".join(repr(each.value) for each in NodeFailure)
        log.warning("node %s: annotation %s is %r; write %s, or remove it", node["metadata"]["name"], ANNOTATION_SIMULATE, text, known)
        return None
