"""The life of one pod on its node: address, containers, status, and its end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

from diloco_operator.api.names import PODS
from diloco_operator.kube.backoff import Backoff
from diloco_operator.kube.client import ApiError, Conflict, NotFound, Obj
from diloco_operator.local.containers import Container, first_of
from diloco_operator.local.machine import Machine, PretendNode
from diloco_operator.local.pod_status import initial_states, phase, pod_status
from diloco_operator.local.volumes import PodFolder

log = logging.getLogger(__name__)

_DEFAULT_GRACE = 30.0
_RETRY = Backoff(initial=0.1, ceiling=10.0)


class PodWorker:
    """Runs one pod, known by its uid, until nothing of it is left here and in the API."""

    def __init__(self, machine: Machine, node: PretendNode, pod: Obj) -> None:
        self._machine = machine
        self._node = node
        self._pod: Obj = pod
        self._gone = False
        self._moved = asyncio.Event()
        """Set by every update from the API."""
        self._dirty = asyncio.Event()
        self._folder = PodFolder(machine.state_dir, pod)
        self._init: list[Container] = []
        self._main: list[Container] = []
        self._started_at = machine.now()
        self._address = self._own_address()

    @property
    def node(self) -> PretendNode:
        return self._node

    def update(self, pod: Obj | None) -> None:
        """What the API has of the pod now; None: nothing any more."""
        if pod is None:
            self._gone = True
        else:
            self._pod = pod
        self._moved.set()

    async def signal(self, number: int) -> bool:
        """A signal to every process of the pod, as if from outside. False: none runs."""
        return any([await container.signal(number) for container in self._containers])

    async def power_off(self) -> None:
        """The node went off: everything dies, nothing is told."""
        for container in self._containers:
            await container.kill(for_good=False)

    async def run(self) -> None:
        """Until the pod is gone from the API and from here."""
        if not self._over(self._pod):
            self._prepare()
            async with asyncio.TaskGroup() as group:
                publishing = group.create_task(self._publish(), name=f"status of {self._name}")
                containers = group.create_task(self._run_containers(), name=f"containers of {self._name}")
                await first_of(_ended(containers), self._until_deletion())
                if not containers.done():
                    await self._terminate(containers)
                publishing.cancel()
            await self._node.connected.wait()
            await self._write_status()
        await self._until_deletion()
        await self._finish()

    @property
    def _name(self) -> str:
        metadata = self._pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def _containers(self) -> list[Container]:
        return [*self._init, *self._main]

    @staticmethod
    def _over(pod: Obj) -> bool:
        return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")

    def _own_address(self) -> str:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        if spec.get("hostname") and spec.get("subdomain"):
            return self._machine.addresses.of_name(spec["hostname"], spec["subdomain"], metadata["namespace"])
        return self._machine.addresses.of_owner(metadata["uid"])

    def _prepare(self) -> None:
        spec, status = self._pod["spec"], self._pod.get("status", {})
        policy = spec.get("restartPolicy", "Always")
        now = self._machine.now()

        def containers(specs: Sequence[Mapping[str, Any]], reported: Sequence[Mapping[str, Any]], policy: str) -> list[Container]:
            states = initial_states(specs, reported, now)
            return [
                Container(self._machine, self._node, self._folder, self._own_view, spec, policy, state, self._dirty.set)
                for spec, state in zip(specs, states, strict=True)
            ]

        init_policy = "Never" if policy == "Never" else "OnFailure"
        self._init = containers(spec.get("initContainers") or (), status.get("initContainerStatuses") or (), init_policy)
        self._main = containers(spec["containers"], status.get("containerStatuses") or (), policy)
        self._dirty.set()

    def _own_view(self) -> Obj:
        """The pod with the addresses that its status is going to have."""
        return {**self._pod, "status": {**self._pod.get("status", {}), "podIP": self._address, "hostIP": self._node.address}}

    async def _run_containers(self) -> None:
        await self._node.powered.wait()
        for container in self._init:
            await container.run()
        if phase([container.state for container in self._init], []) != "Failed" and not self._deleted:
            async with asyncio.TaskGroup() as group:
                for container in self._main:
                    group.create_task(container.run())

    @property
    def _deleted(self) -> bool:
        return self._gone or "deletionTimestamp" in self._pod["metadata"]

    async def _until_deletion(self) -> None:
        while True:
            await self._node.connected.wait()
            if self._deleted:
                return
            self._moved.clear()
            await self._moved.wait()

    def _grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL. Nothing in the API any more: none."""
        if self._gone:
            return 0.0
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        return float(metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)))

    async def _terminate(self, containers: asyncio.Task[None]) -> None:
        """SIGTERM, and after the grace period, which may be shortened meanwhile, SIGKILL. Returns when the containers ended."""
        began = asyncio.get_running_loop().time()
        for container in self._containers:
            await container.stop()
        while not containers.done():
            left = began + self._grace() - asyncio.get_running_loop().time()
            if left <= 0:
                for container in self._containers:
                    await container.kill()
                await _ended(containers)
                return
            self._moved.clear()
            try:
                async with asyncio.timeout(left):
                    await first_of(_ended(containers), self._moved.wait())
            except TimeoutError:
                continue

    async def _publish(self) -> None:
        while True:
            await self._dirty.wait()
            await self._node.connected.wait()
            self._dirty.clear()
            await self._write_status()

    async def _write_status(self) -> None:
        """Bring the status in the API up to date; again and again until it is or the pod is gone."""
        failures = 0
        pod = self._pod
        while not self._gone:
            status = pod_status(
                pod.get("status", {}),
                init=[container.state for container in self._init],
                main=[container.state for container in self._main],
                pod_ip=self._address,
                host_ip=self._node.address,
                started_at=self._started_at,
                now=self._machine.now(),
            )
            if status == pod.get("status"):
                return
            try:
                if failures:
                    pod = await self._fresh()
                    failures = 0
                    continue
                await self._machine.client.update(PODS, {**pod, "status": status}, subresource="status", field_manager="kubelet")
                return
            except NotFound:
                self._gone = True
                self._moved.set()
            except Conflict:
                failures += 1  # somebody else wrote: read, then again
            except ApiError as error:
                failures += 1
                log.warning("status of pod %s: %s", self._name, error)
                await self._machine.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - jitter

    async def _fresh(self) -> Obj:
        metadata = self._pod["metadata"]
        pod = await self._machine.client.get(PODS, metadata["namespace"], metadata["name"])
        if pod["metadata"]["uid"] != metadata["uid"]:
            raise NotFound(404, "NotFound", f"pod {self._name} is another one now")
        return pod

    async def _finish(self) -> None:
        """Nothing runs any more: let the API forget the pod, and clear up."""
        metadata = self._pod["metadata"]
        failures = 0
        while not self._gone:
            try:
                await self._machine.client.delete(PODS, metadata["namespace"], metadata["name"], grace_seconds=0, uid=metadata["uid"])
                break
            except (NotFound, Conflict):
                break  # gone, or another pod under this name
            except ApiError as error:
                failures += 1
                log.warning("deletion of pod %s: %s", self._name, error)
                await self._machine.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - jitter
        self._folder.remove()
        self._machine.addresses.release(metadata["uid"])


async def _ended(task: asyncio.Task[None]) -> None:
    """Until the task ended, however."""
    await asyncio.wait([task])
