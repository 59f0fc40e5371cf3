"""The pods of jobs, as if every program started and ended well: a bound pod runs at once, and a pod that is deleted ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from diloco_operator.api import names
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector
from diloco_operator.kube.timestamps import format_timestamp

BY_JOB = "job"
"""Index of `Kubelets.pods` by namespace and job."""
_TERMINATED = 143
"""As shells report SIGTERM: how a learner ends that is asked to."""


class Kubelets:
    """Those of all nodes. `now`: seconds since the epoch. `changed` is called with every change of a pod of a job."""

    def __init__(self, client: Client, now: Callable[[], float], changed: Callable[[tuple[str, str]], None]) -> None:
        self._client = client
        self._now = now
        self._changed = changed
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._addresses = 0
        self.pods: Reflector[Obj] = Reflector(
            client, names.PODS, as_it_is, rng=lambda: 0.0, label_selector=names.LABEL_JOB, indexers={BY_JOB: lambda held: (_job_of(held),)}
        )
        self.pods.on_change(self._on_pod)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pods.run(), name="kubelets' pods")
            while True:
                await self._act(*await self._due.get())

    def _on_pod(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        held = new or old
        assert held is not None
        if new is not None:
            self._due.put_nowait((new.namespace, new.name))
        self._changed(_job_of(held))

    async def _act(self, namespace: str, name: str) -> None:
        held = self.pods.cache.get(namespace, name)
        if held is None:
            return
        pod, phase = held.value, held.value.get("status", {}).get("phase", "Pending")
        try:
            if held.deleting:
                if phase == "Running":
                    await self._write(pod, self._ended(pod))
                await self._client.delete(names.PODS, namespace, name, grace_seconds=0, uid=held.uid)
            elif pod["spec"].get("nodeName") and phase == "Pending":
                await self._write(pod, self._running(pod))
        except (NotFound, Conflict):
            return  # it changed meanwhile: that change comes too

    async def _write(self, pod: Obj, status: Obj) -> None:
        meta = pod["metadata"]
        where = (meta["namespace"], meta["name"])
        await self._client.patch(names.PODS, *where, {"status": status}, subresource="status")

    def _running(self, pod: Obj) -> Obj:
        self._addresses += 1
        at, address = (
            format_timestamp(self._now()),
            f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}",
        )
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        return {
            "phase": "Running",
            "startTime": at,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [*_conditions(pod), ready],
            "containerStatuses": [_container(each, {"running": {"startedAt": at}}) for each in pod["spec"]["containers"]],
        }

    def _ended(self, pod: Obj) -> Obj:
        at = format_timestamp(self._now())
        ended = {"terminated": {"exitCode": _TERMINATED, "reason": "Error", "startedAt": at, "finishedAt": at}}
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": at}
        return {
            "phase": "Failed",
            "conditions": [*_conditions(pod), not_ready],
            "containerStatuses": [_container(each, ended) for each in pod["spec"]["containers"]],
        }


def _job_of(held: CachedObject[Obj]) -> tuple[str, str]:
    return held.namespace, held.value["metadata"]["labels"][names.LABEL_JOB]


def _conditions(pod: Obj) -> list[Obj]:
    """Return all but Ready."""
    return [each for each in pod.get("status", {}).get("conditions") or () if each["type"] != "Ready"]


def _container(container: Obj, state: Obj) -> Obj:
    running = "running" in state
    return {
        "name": container["name"], "image": container.get("image", ""), "imageID": "", "ready": running, "restartCount": 0, "state": state,
    }  # fmt: skip
