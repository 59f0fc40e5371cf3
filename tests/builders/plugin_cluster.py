"""A cluster with one job for the functions behind `kubectl diloco`: the in-memory API on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from builders.jobs import a_job
from builders.virtual_time import run_virtual
from diloco_operator.api.crd import build_crd
from diloco_operator.api.names import CUSTOM_RESOURCES, DILOCO_JOBS, NAMESPACES, NODES, PODS
from diloco_operator.cli.drain import drain
from diloco_operator.kube.client import Obj, PatchType
from diloco_operator.kube.memory import MemoryApi

SINCE = "2026-11-20T21:00:00Z"
NOW = 1_795_208_460.0  # 2026-11-20T21:01:00Z, a minute later


def conditions(**status: str) -> list[Obj]:
    return [
        {
            "type": each,
            "status": value,
            "reason": f"{each}Reason",
            "message": f"about {each}",
            "lastTransitionTime": SINCE,
            "observedGeneration": 1,
        }
        for each, value in status.items()
    ]


def unit(name: str = "v5p-0", state: str = "Training", attempt: int = 1, **fields: Any) -> Obj:
    return {"name": name, "pool": name.rpartition("-")[0], "state": state, "attempt": attempt, "since": SINCE, **fields}


class Cluster:
    """The in-memory API with one job in namespace `team`, and what the command printed."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.said: list[str] = []

    async def begin(self, *units: Obj, pods: list[Obj] | None = None, **status: str) -> None:
        await self.api.create(CUSTOM_RESOURCES, build_crd())
        await self.api.create(NAMESPACES, {"metadata": {"name": "team"}})
        await self.api.create(NODES, {"metadata": {"name": "tpu-0"}})
        await self.api.create(DILOCO_JOBS, {**a_job().with_pool().build()})
        await self.set_status(*units, **status)
        for made in pods or []:
            await self.add_pod(made)

    async def set_status(self, *units: Obj, **status: str) -> None:
        body = {"status": {"conditions": conditions(**status), "units": list(units)}}
        await self.api.patch(DILOCO_JOBS, "team", "bytes-lm", body, type=PatchType.MERGE, subresource="status")

    async def add_pod(self, pod: Obj, phase: str = "Running") -> None:
        meta = {key: value for key, value in pod["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
        node = pod["metadata"]["annotations"]["diloco.dev/node"]
        spec = {"containers": [{"name": "learner", "image": "trainer:1"}], "nodeName": node, "terminationGracePeriodSeconds": 0}
        await self.api.create(PODS, {"metadata": meta, "spec": spec})
        await self.api.patch(PODS, "team", meta["name"], {"status": {"phase": phase}}, type=PatchType.MERGE, subresource="status")

    async def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in (await self.api.list(PODS, "team")).items]

    async def drain(self, name: str = "v5p-0", *, cordon: bool = False, wait: bool = True, seconds: float = 600.0) -> None:
        await drain(self.api, "team", "bytes-lm", name, self.said.append, cordon=cordon, wait=wait, seconds=seconds)


def on_a_cluster(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run on virtual time: no wait costs any."""

    def run() -> None:
        run_virtual(test(Cluster()))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
