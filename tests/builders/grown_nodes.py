"""Nodes that another program makes, taken on by a kubelet here: they get Ready, and their pods are processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any

from diloco_local.kubelet import Kubelet, NodeFailure
from diloco_local.kubelet_context import WATCHES
from diloco_local.nodes import set_ready
from diloco_operator.api.names import NODES
from diloco_operator.kube.cache import CachedObject, as_it_is
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj
from diloco_operator.kube.reflector import Reflector, WatchedResource


class GrownNodes:
    """Every node that `selector` (of labels) selects. Without a kubelet they get Ready, and another program runs their pods."""

    def __init__(self, client: Client, kubelet: Kubelet | None, selector: str) -> None:
        self._client, self._kubelet = client, kubelet
        self._reflector = Reflector(client, WatchedResource(NODES, as_it_is, label_selector=selector), rng=random.random, timeouts=WATCHES)
        self._reflector.on_change(self._changed)
        self._new: asyncio.Queue[Obj] = asyncio.Queue()
        self._gone: asyncio.Queue[str] = asyncio.Queue()
        self._uids: dict[str, str] = {}
        """By name, of those that were taken on and are there."""

    async def run(self) -> None:
        """Wait until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._take_on())
            group.create_task(self._stop())

    def _changed(self, old: CachedObject[Obj] | None, new: CachedObject[Obj] | None) -> None:
        if new is None:
            if old is not None and self._uids.pop(old.name, "") == old.uid:
                self._gone.put_nowait(old.name)
        elif self._uids.get(new.name) != new.uid:
            self._uids[new.name] = new.uid
            self._new.put_nowait(new.value)

    async def _take_on(self) -> None:
        while True:
            node = await self._new.get()
            name = node["metadata"]["name"]
            address = "127.0.0.1"
            if self._kubelet:
                address = self._kubelet.serve(name).address
                self._kubelet.recover_node(name)  # if one of this name was there before
            made: Obj = {"metadata": node["metadata"], "status": {"conditions": []}}
            set_ready(made, "True", "KubeletReady", "kubelet is posting ready status", now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            status = {
                **made["status"],
                "capacity": node["status"]["allocatable"],
                "addresses": [{"type": "InternalIP", "address": address}],
                "nodeInfo": {"kubeletVersion": "v1.36.3", "operatingSystem": "linux", "architecture": "amd64"},
            }
            with contextlib.suppress(NotFound, Conflict):  # it has gone already
                await self._client.patch(NODES, "", name, {"status": status}, subresource="status")

    async def _stop(self) -> None:
        """The machine of a node that is deleted is gone, with all that ran there."""
        while True:
            name = await self._gone.get()
            if self._kubelet and name not in self._uids:
                await self._kubelet.fail_node(name, NodeFailure.STOPPED)


@contextlib.asynccontextmanager
async def grown_nodes(client: Client, kubelet: Kubelet | None, selector: str) -> AsyncIterator[None]:
    """For as long as the context is open."""
    async with in_background(GrownNodes(client, kubelet, selector).run()):
        yield


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """It goes on while the context is open; raises what ended it before."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
