"""[strangers-memory] Memory that the operator keeps for 10,000 pods that belong to none of its jobs: its caches and its account of use.

The pods come as from an API server, page by page as JSON, through the operator's own reflectors. Only memory that stays allocated counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, cast

from builders.nodes import signals
from diloco_operator.api import names
from diloco_operator.fleet import Inventory
from diloco_operator.kube.client import Client, Obj, ObjList, Resource, WatchEvent
from diloco_operator.operator.caches import Caches
from diloco_operator.operator.other_pods import OtherPods

from benchmarks.figure import Figure

LIMIT_MIB = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    pods: int
    per_node: int


FULL = Size(pods=10_000, per_node=10)
SMOKE = Size(pods=100, per_node=10)


def a_pod(index: int, size: Size) -> Obj:
    """A pod such as a Deployment's."""
    return {
        "metadata": {
            "namespace": f"team-{index % 20}",
            "name": f"web-frontend-{index % 97:08x}b-{index:05x}",
            "uid": f"{index:08x}-5b6a-4c0e-9f2d-1234567890ab",
            "resourceVersion": str(1_000_000 + index),
            "labels": {"app": f"web-{index % 97}"},
        },
        "spec": {
            "nodeName": f"gke-cluster-default-pool-{index // size.per_node:08x}",
            "containers": [
                {"name": "main", "resources": {"requests": {"cpu": f"{index % 8 + 1}00m", "memory": f"{2 ** (index % 5)}Gi"}}},
                {"name": "proxy", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}},
            ],
        },
        "status": {"phase": "Running"},
    }


class _Server:
    """A server that lists only the pods, and no other resource. Its watches are silent."""

    def __init__(self, size: Size) -> None:
        self._size = size

    async def list(
        self, resource: Resource, namespace: str = "", *, field_selector: str = "", limit: int = 0, continue_token: str = "", **_: Any
    ) -> ObjList:
        start = int(continue_token or 0)
        count = self._size.pods if resource == names.PODS and field_selector else 0
        end = min(count, start + limit)
        # Through JSON, as from a server, so that no two pods share a string.
        items = [json.loads(json.dumps(a_pod(index, self._size))) for index in range(start, end)]
        return ObjList(items, resource_version="2000000", continue_token=str(end) if end < count else "")

    async def watch(self, resource: Resource, namespace: str = "", **_: Any) -> AsyncIterator[WatchEvent]:
        await asyncio.Event().wait()
        return
        yield


async def kept(size: Size) -> int:
    """Bytes that the operator keeps."""
    inventory = Inventory(signals())
    caches = Caches(cast("Client", _Server(size)), rng=lambda: 0.0)
    OtherPods(caches, inventory, lambda: None, lambda _: None)  # the caches keep it: it registers its callbacks there
    gc.collect()
    tracemalloc.start()
    try:
        tasks = [asyncio.create_task(reflector.run()) for reflector in caches.reflectors]
        await caches.wait_synced()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    seen = sum(len(inventory.uses(f"gke-cluster-default-pool-{index:08x}")) for index in range(size.pods // size.per_node))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if seen != size.pods:
        raise RuntimeError(f"the operator counts {seen} of {size.pods} pods")
    return held


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    value = asyncio.run(kept(size)) / 2**20
    yield Figure("strangers-memory", value, f"MiB for {size.pods} pods", LIMIT_MIB, value <= LIMIT_MIB, 1)
