"""A small cluster among strangers: two jobs that train, two free slices, and an API server that may say anything of single objects."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_api, an_operator
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from diloco_operator.api import names
from diloco_operator.fleet import Shape
from diloco_operator.kube.client import EventType, NotFound, Obj, ObjList, PatchType, Resource, WatchEvent
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator.metrics import Metrics

EPOCH = 1_763_672_400.0
NS = "default"
SLICE = Shape("tpu-v6e", "2x2", chips_per_host=4)

type Distortion = Callable[[Obj], Any]
"""What the API server shows instead of an object."""


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class DistortingApi:
    """A client of `api` to whom lists and watches show `distortions` of objects, by (plural, namespace, name)."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.distortions: dict[tuple[str, str, str], Distortion] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> ObjList:
        page = await self._api.list(resource, namespace, **options)
        return replace(page, items=[self._shown(resource, obj) for obj in page.items])

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncIterator[WatchEvent]:
        async for event in self._api.watch(resource, namespace, **options):
            yield event if event.type is EventType.BOOKMARK else replace(event, object=self._shown(resource, event.object))

    def _shown(self, resource: Resource, obj: Obj) -> Any:
        meta = obj["metadata"]
        distort = self.distortions.get((resource.plural, meta.get("namespace", ""), meta["name"]))
        return distort(obj) if distort is not None else obj


class HostileCluster:
    """Jobs `lm` and `other` train on one slice each; `free` slices are left. `lines`: what the operator logs as warning or error."""

    def __init__(self, api: MemoryApi, cluster: FakeCluster) -> None:
        self.api = api
        self.client = DistortingApi(api)
        self.cluster = cluster
        self.lines: list[str] = []

    async def start(self) -> None:
        """Start an operator, which knows only what the API server has."""
        self.metrics = Metrics()
        self.operator = an_operator(self.client, FakeTelemetry(self.cluster), now=wall_clock, metrics=self.metrics)
        self._task = asyncio.create_task(self.operator.run())

    async def stop(self) -> None:
        """Stop it. Raises what ended it earlier, and fails after a defect."""
        if self._task.done():
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert self.operator.counters.defects == 0, "a reconcile met a defect; the log has its traceback"

    async def restart(self) -> None:
        """Stop the operator, and start another one."""
        await self.stop()
        await self.start()
        await self.settle()

    # --- what must not change ------------------------------------------------------------------------------------------
    async def plans(self, job: str) -> tuple[Any, ...]:
        """What the operator decided for a job: its units with their slices and attempts, and its pods."""
        status = (await self.api.get(names.DILOCO_JOBS, NS, job)).get("status", {})
        units = [(unit["name"], unit["slice"], unit["state"], unit["attempt"]) for unit in status.get("units", ())]
        pods = [pod["metadata"]["uid"] for pod in self.cluster.pods((NS, job))]
        return units, sorted(pods)

    def free(self) -> list[str]:
        """The free slices of the jobs' kind."""
        return [slice_.name for slice_ in self.operator.inventory.free(SLICE)]

    # --- acts -----------------------------------------------------------------------------------------------------------
    async def trains(self, job: str, units: int = 1) -> None:
        for _ in range(1000):
            if [unit[2] for unit in (await self.plans(job))[0]].count("Training") == units:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"{job} never trained: {await self.plans(job)}")

    async def touch(self, resource: Resource, namespace: str, name: str) -> None:
        """Change an object, so that its watchers hear of it."""
        now = str(asyncio.get_running_loop().time())
        await self.api.patch(resource, namespace, name, {"metadata": {"annotations": {"touched": now}}}, type=PatchType.MERGE)

    async def settle(self, seconds: float = 5.0) -> None:
        """Give the operator time to act on everything, and to write its events."""
        await asyncio.sleep(seconds)

    # --- what people can see --------------------------------------------------------------------------------------------
    def malformed(self, resource: Resource) -> float:
        """The metric."""
        value = self.metrics.registry.get_sample_value("diloco_operator_malformed_objects", {"resource": resource.plural})
        assert value is not None
        return value

    async def events(self, job: str, reason: str = "MalformedObject") -> list[str]:
        found = await self.api.list(names.EVENTS, NS)
        return [e["message"] for e in found.items if e["involvedObject"]["name"] == job and e["reason"] == reason]

    def named(self, *parts: str) -> bool:
        """Whether one log line contains all of these."""
        return any(all(part in line for part in parts) for line in self.lines)


@asynccontextmanager
async def a_hostile_cluster() -> AsyncIterator[HostileCluster]:
    """Both jobs train. The operator runs until the context ends, which fails if it died or met a defect."""
    api = await an_api(wall_clock)
    async with FakeCluster(api, wall_clock) as cluster:
        await cluster.add([a_node("cpu-0"), a_node("spare")])
        for pool in ("np-a", "np-b", "np-c", "np-d"):
            await cluster.add(a_tpu_slice(pool, kind="tpu-v6e-slice", topology="2x2"))
        world = HostileCluster(api, cluster)
        for job in ("lm", "other"):
            pools = [tpu_pool("v6e", "tpu-v6e", "2x2", max=1)]
            manifest = a_manifest(job, namespace=NS, min=1, max=1, pools=pools, spec={"syncer": {}})
            await api.create(names.DILOCO_JOBS, manifest)
        with _logged(world.lines):
            await world.start()
            await world.trains("lm")
            await world.trains("other")
            await world.settle()
            yield world
            await world.stop()


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    handler, logger = _Lines(lines), logging.getLogger("diloco_operator")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def gone(world: HostileCluster, resource: Resource, name: str) -> bool:
    try:
        await world.api.get(resource, NS, name)
    except NotFound:
        return True
    return False


# --- strangers' objects -----------------------------------------------------------------------------------------------
def a_secret(name: str, job: str, data: dict[str, str], **meta: Any) -> Obj:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    labels = {names.LABEL_JOB: job}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NS, "name": name, "labels": labels, **meta}, "data": encoded}


def a_key_on_an_unsupported_curve() -> str:
    """PEM. The curve is prime192v3, by its OID; everything else is that of a P-256 key."""
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    other = key.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030103"))
    assert other != key
    return f"-----BEGIN PRIVATE KEY-----\n{base64.encodebytes(other).decode()}-----END PRIVATE KEY-----\n"


def a_strangers_pod(name: str, job: str, *, owner: str = "", node: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    """A pod that says it belongs to a job: every user with the right to create pods can write all of this. `owner`: the uid of its
    controller. A finalizer keeps the garbage collector from deleting it."""
    meta: Obj = {"namespace": NS, "name": name, "finalizers": ["example.com/stays"]}
    meta["labels"] = {names.LABEL_JOB: job, names.LABEL_COMPONENT: names.COMPONENT_LEARNER, **(labels or {})}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": job, "uid": owner, "controller": True}]
    if node:
        meta["annotations"] = {names.ANNOTATION_NODE: node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "learner", "image": "i"}], **spec}}
