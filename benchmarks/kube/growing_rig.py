"""A complete control plane with nodes that Karpenter makes, a kubelet that starts and ends pods at once, and the operator as a process."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from builders.control_plane import ControlPlane
from builders.grown_nodes import grown_nodes, in_background
from builders.karpenter import MADE_BY_KARPENTER, Karpenter, Machine, karpenter
from diloco_operator.api import names
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource
from diloco_operator.kube.rest import RestClient, load_config
from diloco_operator.timeouts import WatchTimeouts

from benchmarks.kube.rig import Rig, running


class InstantKubelet:
    """The kubelet of every node: a bound pod runs at once, and a deleted one is gone at once. `simulated_syncer` marks the syncers' pods as
    running instead."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pods = Reflector(client, WatchedResource(names.PODS, as_it_is), rng=lambda: 0.5, timeouts=WatchTimeouts())
        self._pods.on_change(self._changed)
        self._due: asyncio.Queue[Obj] = asyncio.Queue()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            for _ in range(8):
                group.create_task(self._work())

    def _changed(self, _old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        if new is not None and (new.deleting or new.value["spec"].get("nodeName")):
            self._due.put_nowait(new.value)

    async def _work(self) -> None:
        while True:
            pod = await self._due.get()
            meta = pod["metadata"]
            with suppress(NotFound, Conflict):
                if "deletionTimestamp" in meta:
                    await self._client.delete(names.PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_seconds=0)
                elif pod["status"].get("phase") == "Pending" and not _is_syncer(pod):
                    status = {"status": running(pod)}
                    await self._client.patch(
                        names.PODS, meta["namespace"], meta["name"], status, subresource="status"
                    )  # fmt: skip


def _is_syncer(pod: Obj) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == names.COMPONENT_SYNCER)


class GrowingRig(Rig):
    """One control plane with Karpenter. `client` is the administrator's."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path, autoscaler: Karpenter) -> None:
        super().__init__(plane, client, folder)
        self.autoscaler = autoscaler

    async def until(self, holds: Callable[[], bool], what: str, *, within: float = 120.0) -> None:
        """Wait until `holds()`, which asks the API server. It is called again and again. Raises RuntimeError after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                while not await asyncio.to_thread(holds):  # noqa: ASYNC110 -- what is waited for is in another process
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeError(f"{what}: not within {within:.0f} s\n{self.autoscaler.process.said[-3000:]}") from None

    def runs(self, namespace: str) -> int:
        """The number of learner pods, or of copies of them, that run."""
        query = f"labelSelector={names.LABEL_COMPONENT}%3D{names.COMPONENT_LEARNER}&fieldSelector=status.phase%3DRunning"
        return len(self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")["items"])


@asynccontextmanager
async def growing_rig(machines: Sequence[Machine], *, volumes: int) -> AsyncIterator[GrowingRig]:
    """Yield a control plane with one node, for syncers, and with `volumes` volumes for them. At the end it is removed with everything in
    it."""
    folder = Path(tempfile.mkdtemp(prefix="diloco-bench-"))
    try:
        with ControlPlane(folder / "plane") as plane, karpenter(plane, folder / "karpenter", machines) as autoscaler:
            plane.install_crd()
            plane.add_node("cpu-0")
            plane.provide_volumes(folder / "volumes", volumes, size="1Ti")
            async with (
                RestClient.connect(load_config(str(plane.kubeconfig))) as client,
                grown_nodes(client, None, MADE_BY_KARPENTER),
                in_background(InstantKubelet(client).run()),
            ):
                yield GrowingRig(plane, client, folder, autoscaler)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
