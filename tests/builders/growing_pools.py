"""A stand-in for what no open program does here: node pools of GKE that grow from no host to all, and ProvisioningRequests.

It follows what is documented: a node pool of a multi-host TPU slice is made as a whole for pods that select its type and topology, and goes
as a whole; a request gets the condition Accepted, then Provisioned or Failed, and later BookingExpired or CapacityRevoked; its nodes come
all or not at all. A real cluster autoscaler simulates the scheduler; this one counts the pods that want to be together. It sees one
request after the other, knows no quota and no zones, and its machines start at once. See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from builders.control_plane import PROGRAMS, ControlPlane, provide_programs
from builders.karpenter import a_machine
from builders.nodes import a_node
from diloco_local.scheduling import unschedulable_reason
from diloco_operator.api.names import NODE_POOL, NODES, PODS
from diloco_operator.kube.client import AlreadyExists, ApiError, Client, NotFound, Obj, PatchType, Resource

REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "ProvisioningRequest", "provisioningrequests")
POD_TEMPLATES = Resource("", "v1", "PodTemplate", "podtemplates")
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
"""Annotation of a pod: the request whose nodes it takes."""
GROWN = "stand-in.diloco.dev/grown"
"""Label of the nodes that are made here."""
_HAS = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_POLL_SECONDS = 0.1


@dataclass
class Pool:
    """A node pool with all its hosts, or none."""

    name: str
    hosts: int
    labels: Mapping[str, str]
    devices: Mapping[str, str]
    taints: Sequence[Obj]
    in_stock: bool = True
    """False: the cloud has no such machines at present."""
    queued: bool = False
    """It grows for ProvisioningRequests only."""

    @property
    def nodes(self) -> list[Obj]:
        """Its nodes, Ready, as they come up."""
        labels = {NODE_POOL: self.name, GROWN: "true", **self.labels}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = [
            a_node(f"{self.name}-{index}", labels=labels, devices=self.devices, taints=self.taints, resources=_HAS, ready_since=now)
            for index in range(self.hosts)
        ]
        for node in made:
            del node["metadata"]["uid"]
        return made


def a_pool(name: str, accelerator: str, *, hosts: int = 1, topology: str = "", per_host: int = 0, **fields: Any) -> Pool:
    """A pool of a kind of the catalogue, labelled and tainted as GKE does it: `a_pool("np-0", "tpu-v5p", topology="2x2x2", hosts=2)`."""
    machine = a_machine(name, accelerator, topology=topology, per_host=per_host)
    return Pool(name, hosts, machine.labels, machine.devices, machine.taints, **fields)


class Answer(enum.StrEnum):
    """What a ProvisioningRequest gets."""

    PROVISION = "Provision"
    """The nodes, as soon as a pool has them."""
    ACCEPT = "Accept"
    """Accepted, and then nothing more."""
    FAIL = "Fail"
    SILENCE = "Silence"
    """Nothing at all."""
    NONSENSE = "Nonsense"
    """Conditions that contradict each other and name what does not exist, and details of no meaning."""
    LIE = "Lie"
    """Provisioned, and no node comes."""


@dataclass
class GrowingPools:
    """`idle`: seconds after which the nodes of a pool without pods are given back. `answer`: what a request gets, by its name.
    `fail_message`: what the autoscaler says when it fails, or has no machines. `poll`: seconds between two looks at the cluster."""

    client: Client
    pools: Sequence[Pool]
    idle: float = 1.0
    answer: Callable[[str], Answer] = lambda _: Answer.PROVISION
    fail_message: str = "max node group size reached"
    poll: float = _POLL_SECONDS
    booked: dict[str, str] = field(default_factory=dict)
    """Pool by the request whose nodes it has, as namespace/name."""
    _idle_since: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Wait until cancelled."""
        while True:
            with contextlib.suppress(ApiError):  # another client wrote at the same time: look again
                await self.step()
            await asyncio.sleep(self.poll)

    async def step(self) -> None:
        """One look at the cluster, and what follows from it."""
        pods = [pod for pod in (await self.client.list(PODS)).items if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        nodes = (await self.client.list(NODES, label_selector=f"{GROWN}=true")).items
        pool_of = {node["metadata"]["name"]: node["metadata"]["labels"][NODE_POOL] for node in nodes}
        up = [pool for pool in self.pools if pool.name in pool_of.values()]
        free = [pool for pool in self.pools if pool not in up and pool.in_stock]
        at_will = [pool for pool in free if not pool.queued]
        for pool in growth(pods, [pool for pool in up if not pool.queued], at_will, pool_of):
            await self._grow(pool)
        await self._answer_requests(free)
        await self._shrink(pods, nodes)

    async def condition(self, request: str, kind: str, *, namespace: str = "default", reason: str = "", message: str = "") -> None:
        """Set a condition of a request to True: `BookingExpired`, `CapacityRevoked` or any other."""
        found = await self.client.get(REQUESTS, namespace, request)
        await self._set(found, {kind: "True"}, reason or kind, message)

    # --- what it does ---
    async def _grow(self, pool: Pool) -> None:
        for node in pool.nodes:
            with contextlib.suppress(AlreadyExists):
                await self.client.create(NODES, node)

    async def _shrink(self, pods: Iterable[Obj], nodes: Sequence[Obj]) -> None:
        """Pools whose nodes all stand empty go, unless a request holds them."""
        used = {pod["spec"].get("nodeName") for pod in pods}
        now = asyncio.get_running_loop().time()
        for pool in self.pools:
            has = [node["metadata"]["name"] for node in nodes if node["metadata"]["labels"][NODE_POOL] == pool.name]
            if not has or used & set(has) or pool.name in self.booked.values():
                self._idle_since.pop(pool.name, None)
            elif now - self._idle_since.setdefault(pool.name, now) >= self.idle:
                for name in has:
                    with contextlib.suppress(NotFound):
                        await self.client.delete(NODES, "", name)

    async def _answer_requests(self, free: Sequence[Pool]) -> None:
        try:
            requests = (await self.client.list(REQUESTS)).items
        except NotFound:
            return  # no such resource in this cluster
        there = {_key(request) for request in requests}
        self.booked = {key: pool for key, pool in self.booked.items() if key in there}
        left = [pool for pool in free if pool.name not in self.booked.values()]
        for request in requests:
            answer = self.answer(request["metadata"]["name"])
            has = {each["type"] for each in request.get("status", {}).get("conditions", ()) if each.get("status") == "True"}
            if answer is Answer.SILENCE or has & {"Provisioned", "Failed", "BookingExpired", "CapacityRevoked"}:
                if has & {"BookingExpired", "CapacityRevoked"}:
                    self.booked.pop(_key(request), None)
            elif "Accepted" not in has:
                await self._set(request, {"Accepted": "True", "Provisioned": "False"}, "Accepted", "the request is in the queue")
            elif answer is Answer.FAIL:
                await self._set(request, {"Failed": "True"}, "OutOfResources", self.fail_message)
            elif answer is Answer.NONSENSE:
                await self._set(
                    request, {"Provisioned": "True", "Failed": "True", "Sideways": "Unknown"}, "Nonsense", "\u0000" * 3 + "x" * 999
                )
            elif answer is Answer.LIE:
                await self._set(request, {"Provisioned": "True"}, "Provisioned", "all nodes are there")
            elif answer is Answer.PROVISION and (pool := await self._pool_for(request, left)):
                left.remove(pool)
                self.booked[_key(request)] = pool.name
                await self._grow(pool)
                await self._set(request, {"Provisioned": "True"}, "Provisioned", f"node pool {pool.name} is there")

    async def _pool_for(self, request: Obj, free: Iterable[Pool]) -> Pool | None:
        [pods] = request["spec"]["podSets"]
        template = await self.client.get(POD_TEMPLATES, request["metadata"]["namespace"], pods["podTemplateRef"]["name"])
        return next((pool for pool in free if pool.hosts == pods["count"] and fits(template["template"], pool)), None)

    async def _set(self, request: Obj, conditions: Mapping[str, str], reason: str, message: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = [each for each in request.get("status", {}).get("conditions", ()) if each["type"] not in conditions]
        new = [
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
            for kind, status in conditions.items()
        ]
        meta = request["metadata"]
        patch = {"status": {"conditions": kept + new}}
        await self.client.patch(REQUESTS, meta["namespace"], meta["name"], patch, type=PatchType.MERGE, subresource="status")


def growth(pods: Iterable[Obj], up: Iterable[Pool], free: Sequence[Pool], pool_of: Mapping[str, str]) -> list[Pool]:
    """The pools that grow for pods: one for each set of pods that want to share a node pool, have none yet, and fit it. Pods that consume a
    request, are gated or have a node make nothing grow. `pool_of`: the pool of each node. Pure."""
    sets: dict[str, list[Obj]] = {}
    for pod in pods:
        if not (pod["spec"].get("schedulingGates") or CONSUMES in (pod["metadata"].get("annotations") or {})):
            sets.setdefault(together(pod), []).append(pod)
    used = {pool_of.get(pod["spec"].get("nodeName") or "") for pod in pods}
    empty, left, grown = [pool for pool in up if pool.name not in used], list(free), []
    for members in sets.values():
        if any(pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] for pod in members):
            continue
        for offers in (empty, left):
            pool = next((pool for pool in offers if pool.hosts >= len(members) and fits(members[0], pool)), None)
            if pool is not None:
                offers.remove(pool)
                grown += [pool] if offers is left else []
                break
    return grown


def together(pod: Obj) -> str:
    """What pods have in common that must share a node pool: the term of their pod affinity. A pod without one is alone."""
    terms = (pod["spec"].get("affinity") or {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", ())
    shared = [term["labelSelector"] for term in terms if term["topologyKey"] == NODE_POOL]
    return json.dumps(shared, sort_keys=True) if shared else str(pod["metadata"].get("name"))


def fits(pod: Obj, pool: Pool) -> bool:
    """Whether the pod may run on a host of the pool."""
    return unschedulable_reason(pod, pool.nodes[0], {}) is None


def _key(request: Obj) -> str:
    return f"{request['metadata']['namespace']}/{request['metadata']['name']}"


def install_requests(plane: ControlPlane) -> None:
    """Let a real control plane know ProvisioningRequests, by the definition that Kueue's build brings."""
    provide_programs(("kueue",))
    name = "autoscaling.x-k8s.io_provisioningrequests.yaml"
    plane.kubectl("apply", "--server-side", "-f", str(PROGRAMS / "kueue-manifests" / name))
    plane.wait_until_established(f"{REQUESTS.plural}.{REQUESTS.group}")


@contextlib.asynccontextmanager
async def growing_pools(client: Client, pools: Sequence[Pool], **fields: Any) -> AsyncIterator[GrowingPools]:
    """Pools that grow and shrink for as long as the context is open. Works on any `Client`, in memory too."""
    found = GrowingPools(client, pools, **fields)
    task = asyncio.create_task(found.run())
    try:
        yield found
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for node in (await client.list(NODES, label_selector=f"{GROWN}=true")).items:
            await client.delete(NODES, "", node["metadata"]["name"])
