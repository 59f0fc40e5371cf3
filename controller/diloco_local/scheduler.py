"""Binds pending pods to nodes, for an API server without a scheduler. `scheduling` decides."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction

from diloco_operator.api.names import NODES, PODS
from diloco_operator.kube.cache import as_it_is
from diloco_operator.kube.client import ApiError, Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from diloco_local.neighbours import Neighbours
from diloco_local.pod_status import timestamp
from diloco_local.scheduling import choose, labels_of, occupies_node, requests, used_resources

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Scheduler:
    """Binds every pending pod that fits a node, and writes into the status of the others why they do not, as kube-scheduler does."""

    def __init__(self, client: Client, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._client = client
        self._now = now
        self._wake = asyncio.Event()
        self._pods = Reflector(client, WatchedResource(PODS, as_it_is), rng=random.random)
        self._nodes = Reflector(client, WatchedResource(NODES, as_it_is), rng=random.random)
        self._assumed: dict[str, Obj] = {}
        """Pods, by uid, that this scheduler has bound but the cache shows as pending. They use their node's resources already."""
        self._pods.on_change(lambda _old, _new: self._wake.set())
        self._nodes.on_change(lambda _old, _new: self._wake.set())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(), name="scheduler's pods")
            group.create_task(self._nodes.run(), name="scheduler's nodes")
            await self._pods.wait_synced()
            await self._nodes.wait_synced()
            while True:
                await self._wake.wait()
                self._wake.clear()
                if not await self._schedule_pending():
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._wake.set()

    async def _schedule_pending(self) -> bool:
        """Try once to bind every pending pod. False if a request to the API server failed."""
        pods = {held.uid: held.value for held in self._pods.cache}
        for uid in [*self._assumed]:
            if uid not in pods or pods[uid]["spec"].get("nodeName"):
                del self._assumed[uid]
        bound = [*(pod for uid, pod in pods.items() if uid not in self._assumed), *self._assumed.values()]
        taken = used_resources(bound)
        nodes = [held.value for held in self._nodes.cache]
        labels = {node["metadata"]["name"]: labels_of(node) for node in nodes}
        neighbours = Neighbours.of((pod for pod in bound if occupies_node(pod)), labels)
        complete = True
        for uid, pod in pods.items():
            if uid in self._assumed or not _pending(pod):
                continue
            choice = choose(pod, nodes, taken, neighbours)
            try:
                if choice.node is None:
                    await self._explain(pod, choice.message)
                else:
                    await self._client.bind(pod["metadata"]["namespace"], pod["metadata"]["name"], choice.node)
                    self._assumed[uid] = {**pod, "spec": {**pod["spec"], "nodeName": choice.node}}
                    neighbours.add(pod, labels[choice.node])
                    on_node = taken.setdefault(choice.node, {})
                    for name, amount in requests(pod).items():
                        on_node[name] = on_node.get(name, Fraction(0)) + amount
            except (Conflict, NotFound):
                continue  # the pod changed meanwhile: that change wakes the scheduler again
            except ApiError as error:
                log.warning("scheduling pod %s: %s", pod["metadata"]["name"], error)
                complete = False
        return complete

    async def _explain(self, pod: Obj, message: str) -> None:
        conditions = pod.get("status", {}).get("conditions") or []
        old = next((c for c in conditions if c["type"] == "PodScheduled"), None)
        if old and old.get("reason") == "Unschedulable" and old.get("message") == message:
            return
        since = old["lastTransitionTime"] if old and old["status"] == "False" else timestamp(self._now())
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": since}
        status = {
            **pod.get("status", {}),
            "phase": "Pending",
            "conditions": [*(c for c in conditions if c["type"] != "PodScheduled"), condition],
        }
        await self._client.update(PODS, {**pod, "status": status}, subresource="status", field_manager="scheduler")


def _pending(pod: Obj) -> bool:
    spec, metadata = pod["spec"], pod["metadata"]
    return not spec.get("nodeName") and not spec.get("schedulingGates") and "deletionTimestamp" not in metadata
