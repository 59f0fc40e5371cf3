"""The kubelet of all simulated nodes of a machine: it runs every pod that is bound to one of them as processes of this machine.

It needs only a client, so it can also serve nodes of a real API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
from collections.abc import Sequence
from pathlib import Path

from diloco_operator.api.names import LABEL_COMPONENT, PODS
from diloco_operator.kube.cache import CachedObject, ObjectKey, as_it_is
from diloco_operator.kube.client import Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource

from diloco_local.environment import Command
from diloco_local.kubelet_context import WATCHES, KubeletContext, SimulatedNode
from diloco_local.pod_worker import PodWorker

log = logging.getLogger(__name__)


class NodeFailure(enum.StrEnum):
    """How a simulated node fails. In both cases the API server hears nothing from it."""

    STOPPED = "stopped"
    """The machine is down: its processes are killed."""
    PARTITIONED = "partitioned"
    """The machine is cut from the network: its processes run on."""


class Kubelet:
    def __init__(self, context: KubeletContext) -> None:
        self._context = context
        self._nodes: dict[str, SimulatedNode] = {}
        self._workers: dict[str, PodWorker] = {}
        """By pod uid."""
        self._last: dict[ObjectKey, asyncio.Task[None]] = {}
        """The newest worker's task of each pod name. A new pod of that name starts when this task has ended."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By pod uid."""
        self._failed: asyncio.Future[None] | None = None
        self._reflector = Reflector(context.client, WatchedResource(PODS, as_it_is), rng=random.random, timeouts=WATCHES)
        self._reflector.on_change(self._changed)

    def serve(self, name: str, *, relative_speed: str = "") -> SimulatedNode:
        """Run the pods of this node from now on. `relative_speed`: see `SimulatedNode`."""
        if name not in self._nodes:
            self._nodes[name] = SimulatedNode(name, self._context.addresses.of_owner(f"node/{name}"))
            for pod in self._reflector.cache:
                self._changed(None, pod)
        self._nodes[name].relative_speed = relative_speed
        return self._nodes[name]

    async def run(self) -> None:
        """Run until cancelled. The pods' processes then run on until the supervisor ends."""
        self._failed = asyncio.get_running_loop().create_future()
        following = asyncio.create_task(self._reflector.run(), name="kubelet's pods")
        try:
            await asyncio.wait([following, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for task in (following, self._failed):
                if task.done():
                    task.result()
        finally:
            following.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(following, *self._tasks.values(), return_exceptions=True)
            self._failed.cancel()

    async def fail_node(self, name: str, failure: NodeFailure) -> None:
        """Cut the node off from the API server, and kill its processes if it is stopped."""
        node = self._nodes[name]
        node.connected.clear()
        if failure is NodeFailure.STOPPED:
            node.running.clear()
            for worker in [*self._workers.values()]:
                if worker.node is node:
                    await worker.stop_with_node()

    def recover_node(self, name: str) -> None:
        """Start the node again, and connect it."""
        self._nodes[name].running.set()
        self._nodes[name].connected.set()

    async def signal(self, namespace: str, pod: str, number: int) -> bool:
        """Send a signal to each container of a pod, as `Container.signal` does. False if none runs."""
        cached = self._reflector.cache.get(namespace, pod)
        worker = self._workers.get(cached.uid) if cached else None
        return await worker.signal(number) if worker else False

    def runs(self, namespace: str, pod: str, container: str) -> tuple[list[tuple[Path, int]], bool]:
        """The log file of each run of a container with the position where the run begins in it, oldest first; and whether the container
        runs now. If the pod had ended before this kubelet started, only the last run is known."""
        cached = self._reflector.cache.get(namespace, pod)
        worker = self._workers.get(cached.uid) if cached else None
        if cached is None or worker is None:
            return [], False
        logs, running = worker.logs(container)
        if not logs:
            statuses = cached.value.get("status", {}).get("containerStatuses") or ()
            counts = [status["restartCount"] for status in statuses if status["name"] == container]
            files = [self._context.state_dir / "logs" / namespace / pod / f"{container}-{count}.log" for count in counts]
            logs = [(file, 0) for file in files if file.exists()]
        return logs, running

    def program(self, component: str, namespace: str, pod: str, container: str, words: Sequence[str]) -> Command | None:
        """The command on this machine that runs `words` as if in the container. None if the pod is not of this component, or does not
        run."""
        cached = self._reflector.cache.get(namespace, pod)
        worker = self._workers.get(cached.uid) if cached else None
        if worker is None or (worker.pod["metadata"].get("labels") or {}).get(LABEL_COMPONENT) != component:
            return None
        return worker.inside(container, words)

    def logs(self, namespace: str, pod: str) -> list[Path]:
        """The log files of a pod's containers, oldest first."""
        folder = self._context.state_dir / "logs" / namespace / pod
        return sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)

    def newest_log(self, namespace: str, pod: str) -> tuple[Path, int] | None:
        """The log file that this pod's containers wrote last, and the position where the run begins in it. Unlike `runs` this also serves
        a pod that has gone. None if none has run under this kubelet."""
        files = [file for file in self.logs(namespace, pod) if file in self._context.log_begins]
        return (files[-1], self._context.log_begins[files[-1]]) if files else None

    def _changed(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        if old and (new is None or new.uid != old.uid) and (worker := self._workers.get(old.uid)):
            worker.update(None)
        if new is None:
            return
        if worker := self._workers.get(new.uid):
            worker.update(new.value)
        elif node := self._nodes.get(new.value["spec"].get("nodeName") or ""):
            uid, key = new.uid, new.key
            self._workers[uid] = PodWorker(self._context, node, new.value)
            task = asyncio.create_task(self._work(uid, self._last.get(key)), name=f"pod {'/'.join(key)}")
            self._last[key] = task
            self._tasks[uid] = task
            task.add_done_callback(lambda done: self._worked(uid, key, done))

    async def _work(self, uid: str, predecessor: asyncio.Task[None] | None) -> None:
        if predecessor is not None:
            await asyncio.wait([predecessor])  # the earlier pod still uses the address and ports of this name
        await self._workers[uid].run()

    def _worked(self, uid: str, key: ObjectKey, task: asyncio.Task[None]) -> None:
        self._tasks.pop(uid, None)
        self._workers.pop(uid, None)
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled() and (error := task.exception()) and self._failed and not self._failed.done():
            with contextlib.suppress(asyncio.InvalidStateError):
                self._failed.set_exception(error)
