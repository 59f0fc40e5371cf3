"""Runs one pod on its node: address, containers, status and end.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diloco.protocol.backoff import ExponentialBackoff
from diloco_operator.api.names import ANNOTATION_ADDRESS, PODS
from diloco_operator.kube.client import ApiError, Conflict, NotFound, Obj
from diloco_operator.kube.pods import has_ended

from diloco_local.containers import Container, ContainersPod, first_of, mounted_sources
from diloco_local.environment import Command, ContainerConfigError
from diloco_local.kubelet_context import KubeletContext, SimulatedNode
from diloco_local.pod_status import Running, Waiting, initial_states, phase, pod_status
from diloco_local.volumes import CHANGING, PodFolder

log = logging.getLogger(__name__)

_DEFAULT_GRACE = 30.0
_RETRY = ExponentialBackoff(initial=0.1, ceiling=10.0)


class PodWorker:
    """Runs one pod, identified by its uid, until both this machine and the API have nothing left of it."""

    def __init__(self, context: KubeletContext, node: SimulatedNode, pod: Obj) -> None:
        self._context = context
        self._node = node
        self._pod: Obj = pod
        self._gone = False
        self._updated = asyncio.Event()
        """Set by every update from the API."""
        self._dirty = asyncio.Event()
        self._folder = PodFolder(context.state_dir, pod)
        self._init: list[Container] = []
        self._main: list[Container] = []
        self._started_at = context.now()
        self._admission_error = ""
        self._address = self._choose_address()

    @property
    def node(self) -> SimulatedNode:
        return self._node

    @property
    def pod(self) -> Obj:
        """The newest version from the API."""
        return self._pod

    def update(self, pod: Obj | None) -> None:
        """Take the pod as the API has it now. None if it has gone from the API."""
        if pod is None:
            self._gone = True
        else:
            self._pod = pod
        self._updated.set()

    async def signal(self, number: int) -> bool:
        """Send a signal to each container, as `Container.signal` does. False if none runs."""
        return any([await container.signal(number) for container in self._containers])

    def logs(self, container: str) -> tuple[list[tuple[Path, int]], bool]:
        """The log file of each run of a container with the position where the run begins in it, oldest first; and whether the container
        runs now."""
        match = next((each for each in self._containers if each.state.name == container), None)
        return (match.logs, isinstance(match.state.now, Running)) if match else ([], False)

    def inside(self, container: str, words: Sequence[str]) -> Command | None:
        """The command on this machine that runs `words` as if in a container of the pod. None if no such container runs."""
        match = next((each for each in self._main if each.state.name == container), None)
        return match.inside(words) if match else None

    async def stop_with_node(self) -> None:
        """Kill every process, because the node stopped, and report nothing."""
        for container in self._containers:
            await container.kill(permanently=False)

    async def run(self) -> None:
        """Run until the pod has gone from the API and from this machine."""
        if not has_ended(self._pod):
            self._prepare()
            if self._admission_error:
                await self._write_status()
            else:
                await self._run()
        await self._until_deletion()
        await self._remove()
        self._folder.remove()
        self._context.short_paths.release(self._folder.path)
        self._context.addresses.release(self._pod["metadata"]["uid"])

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._publish(), name=f"status of {self._name}"),
                group.create_task(self._refresh_volumes(), name=f"volumes of {self._name}"),
            ]
            containers = group.create_task(self._run_containers(), name=f"containers of {self._name}")
            await first_of(_ended(containers), self._until_deletion())
            if not containers.done():
                await self._terminate(containers)
            for task in others:
                task.cancel()
        # The publisher may have been cancelled before it wrote the last change, and the API would never show that the pod has ended.
        await self._node.connected.wait()
        await self._write_status()

    @property
    def _name(self) -> str:
        metadata = self._pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def _containers(self) -> list[Container]:
        return [*self._init, *self._main]

    def _choose_address(self) -> str:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        if spec.get("hostname") and spec.get("subdomain"):
            return self._context.addresses.of_name(spec["hostname"], spec["subdomain"], metadata["namespace"])
        return self._context.addresses.of_owner(metadata["uid"])

    def _prepare(self) -> None:
        spec, status = self._pod["spec"], self._pod.get("status", {})
        policy = spec.get("restartPolicy", "Always")
        now = self._context.now()
        pod = ContainersPod(self._context, self._node, self._folder, self._with_addresses)

        def containers(specs: Sequence[Mapping[str, Any]], reported: Sequence[Mapping[str, Any]], policy: str) -> list[Container]:
            states = initial_states(specs, reported, now)
            return [Container(pod, spec, policy, state, self._dirty.set) for spec, state in zip(specs, states, strict=True)]

        self._admission_error = self._context.admission_error(self._pod)
        # Not Always: an init container that succeeds would run again for ever, and the others would never begin.
        init_policy = "Never" if policy == "Never" else "OnFailure"
        self._init = containers(spec.get("initContainers") or (), status.get("initContainerStatuses") or (), init_policy)
        self._main = containers(spec["containers"], status.get("containerStatuses") or (), policy)
        if self._admission_error:
            for container in self._main:
                container.state = replace(container.state, now=Waiting("NotAdmitted", self._admission_error))
        self._dirty.set()

    def _with_addresses(self) -> Obj:
        """The pod with the addresses that its status will have."""
        return {**self._pod, "status": {**self._pod.get("status", {}), "podIP": self._address, "hostIP": self._node.address}}

    async def _run_containers(self) -> None:
        await self._node.running.wait()
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
        """Wait until the pod is deleted, as its node sees it."""
        while True:
            # A node without a connection cannot know of a deletion: its pods run on until it is back, although this process knows.
            await self._node.connected.wait()
            if self._deleted:
                return
            self._updated.clear()
            await self._updated.wait()

    def _grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL. 0 if the pod has gone from the API."""
        if self._gone:
            return 0.0
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        return float(metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)))

    async def _terminate(self, containers: asyncio.Task[None]) -> None:
        """Send SIGTERM, and SIGKILL after the grace period, which the API may shorten meanwhile. Return when the containers have ended."""
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
            self._updated.clear()
            try:
                async with asyncio.timeout(left):
                    await first_of(_ended(containers), self._updated.wait())
            except TimeoutError:
                continue

    async def _publish(self) -> None:
        while True:
            await self._dirty.wait()
            await self._node.connected.wait()
            # Clear before the write: a change during this write then leads to another one.
            self._dirty.clear()
            await self._write_status()

    async def _refresh_volumes(self) -> None:
        """Update the mounted ConfigMaps and Secrets of a running pod."""
        if not any(kind in volume for volume in self._pod["spec"].get("volumes") or () for kind in CHANGING):
            return
        while True:
            await asyncio.sleep(self._context.volume_sync)
            await self._node.connected.wait()
            try:
                self._folder.refresh(self._with_addresses(), await mounted_sources(self._context.client, self._pod))
            except (ApiError, ContainerConfigError, OSError) as error:
                log.warning("volumes of pod %s were not updated: %s", self._name, error)

    async def _write_status(self) -> None:
        """Write the pod's status to the API. Retry until that succeeds or the pod has gone."""
        failures = 0
        pod = self._pod
        while not self._gone:
            status = pod_status(
                pod.get("status", {}),
                init=[container.state for container in self._init],
                main=[container.state for container in self._main],
                # A real API server refuses loopback addresses in Endpoints, and its Warning events would bury the job's.
                pod_ip=None if self._context.address_in_annotation else self._address,
                host_ip=self._node.address,
                started_at=self._started_at,
                now=self._context.now(),
            )
            if status == pod.get("status"):
                return
            try:
                if failures:
                    pod = await self._fresh()
                    failures = 0
                    continue
                await self._context.client.update(
                    PODS, {**self._annotated(pod), "status": status}, subresource="status", field_manager="kubelet"
                )
                return
            except NotFound:
                self._gone = True
                self._updated.set()
            except Conflict:
                failures += 1  # another writer was first: read and try again
            except ApiError as error:
                failures += 1
                log.warning("status of pod %s: %s", self._name, error)
                await self._context.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - jitter

    def _annotated(self, pod: Obj) -> Obj:
        """Add the pod's address to its annotations, if the status does not carry it. A write of the status stores annotations too."""
        if not self._context.address_in_annotation:
            return pod
        annotations = {**(pod["metadata"].get("annotations") or {}), ANNOTATION_ADDRESS: self._address}
        return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}

    async def _fresh(self) -> Obj:
        metadata = self._pod["metadata"]
        pod = await self._context.client.get(PODS, metadata["namespace"], metadata["name"])
        # A pod of the same name may have been created since. This worker must not touch its status.
        if pod["metadata"]["uid"] != metadata["uid"]:
            raise NotFound(404, "NotFound", f"pod {self._name} has another uid now")
        return pod

    async def _remove(self) -> None:
        """Remove the pod from the API. None of its processes runs any more."""
        metadata = self._pod["metadata"]
        failures = 0
        while not self._gone:
            try:
                await self._context.client.delete(PODS, metadata["namespace"], metadata["name"], grace_seconds=0, uid=metadata["uid"])
                return
            except (NotFound, Conflict):
                return  # gone, or another pod of this name
            except ApiError as error:
                failures += 1
                log.warning("deletion of pod %s: %s", self._name, error)
                await self._context.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311 - jitter


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended, and leave its exception in it."""
    await asyncio.wait([task])
