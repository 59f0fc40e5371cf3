"""Clusters with something in them: jobs that train, strangers beside them, or one job for the functions behind `kubectl diloco`."""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from builders.fake_cluster import NS, FakeCluster, wall_clock
from builders.jobs import a_job
from builders.nodes import a_node
from builders.operator_run import an_api
from builders.pods import a_pod
from builders.virtual_time import run_virtual
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Forbidden, NotFound, Obj, ObjList, Resource

TPU = "google.com/tpu"
SINCE = "2026-11-20T21:00:00Z"
NOW = 1_795_208_460.0  # 2026-11-20T21:01:00Z, a minute later


@asynccontextmanager
async def a_cluster(
    *nodes: Obj, slices: Sequence[str] = (), scheduler: bool = False, kubelets: bool = True, namespaces: Sequence[str] = ()
) -> AsyncIterator[FakeCluster]:
    """A cluster with a node for syncers, these nodes and TPU slices, and no job."""
    api = await an_api(wall_clock)
    for namespace in namespaces:
        await api.create(names.NAMESPACES, {"metadata": {"name": namespace}})
    async with FakeCluster(api, scheduler=scheduler, kubelets=kubelets) as cluster:
        await cluster.add([a_node("cpu-0", resources={"cpu": "64"}), *nodes])
        await cluster.add_slices(*slices)
        yield cluster


def play(scenario: Callable[[FakeCluster], Awaitable[None]], *nodes: Obj, **options: Any) -> None:
    """The scenario, on virtual time, on `a_cluster` with these options."""

    async def run() -> None:
        async with a_cluster(*nodes, **options) as cluster:
            await scenario(cluster)

    run_virtual(run())


def operated(*nodes: Obj, runs: bool = True, **options: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Play the test, on virtual time, on `a_cluster` with these nodes and options, where an operator `runs` unless the test starts it."""

    def of(acts: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def scenario(cluster: FakeCluster) -> None:
                if not runs:
                    return await acts(cluster, **arguments)
                async with cluster.operating():
                    return await acts(cluster, **arguments)

            play(scenario, *nodes, **options)

        return without_first_parameter(run, acts)

    return of


def without_first_parameter(run: Callable[..., None], acts: Callable[..., Any]) -> Callable[..., None]:
    """Give `run` the name, the words and all parameters of the test but the first, which `run` fills."""
    run.__name__, run.__doc__ = acts.__name__, acts.__doc__
    _, *arguments = inspect.signature(acts).parameters.values()
    run.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    return run


# --- several operators and strangers ----------------------------------------------------------------------------------
def play_shared(scenario: Callable[[FakeCluster], Awaitable[None]], slices: int = 4) -> None:
    """On a cluster that operators of team-a and team-b and strangers share: so many slices, and a scheduler that counts requests."""
    play(scenario, slices=[f"np-{index}" for index in range(slices)], scheduler=True, namespaces=("team-a", "team-b"))


async def occupy(cluster: FakeCluster, name: str, node: str, **requests: str) -> Obj:
    """Another pod, of team-a, runs on the node."""
    amounts = {TPU if key == "tpu" else key: amount for key, amount in requests.items()}
    pod = a_pod(name, node=node, container={"resources": {"requests": amounts, "limits": amounts}}, metadata={"namespace": "team-a"})
    return await cluster.api.create(names.PODS, pod)


async def vacate(cluster: FakeCluster, *pods: str) -> None:
    """These pods of team-a go."""
    for pod in pods:
        await cluster.api.delete(names.PODS, "team-a", pod, grace_seconds=0)


# --- two jobs among strangers -----------------------------------------------------------------------------------------
@asynccontextmanager
async def two_jobs_among_strangers() -> AsyncIterator[FakeCluster]:
    """Jobs `lm` and `other` train on one slice each, and two slices are free. The operator runs until the context ends, which fails if
    it died or met a defect. The cluster's `client` may distort any object, and its `lines` are what the operator logs."""
    async with a_cluster(a_node("spare"), slices=("np-a", "np-b", "np-c", "np-d")) as cluster:
        for job in ("lm", "other"):
            await cluster.apply(job)
        with _logged(cluster.lines):
            await cluster.start()
            await cluster.trains("lm")
            await cluster.trains("other")
            await cluster.settle()
            yield cluster
            await cluster.stop()


async def plans(cluster: FakeCluster, job: str) -> tuple[Any, ...]:
    """What operators decided for a job: its units with their slices and attempts, and its pods."""
    units = [(unit["name"], unit["slice"], unit["state"], unit["attempt"]) for unit in (await cluster.status(job)).get("units", ())]
    return units, sorted(pod["metadata"]["uid"] for pod in cluster.pods((NS, job)))


def malformed(cluster: FakeCluster, resource: Resource) -> float:
    """How many objects of the kind are malformed, by the operator's metric."""
    value = cluster.metric("diloco_operator_malformed_objects", resource=resource.plural)
    assert value is not None
    return value


def named(cluster: FakeCluster, *parts: str) -> bool:
    """Whether one log line contains all of these."""
    return any(all(part in line for part in parts) for line in cluster.lines)


async def gone(cluster: FakeCluster, resource: Resource, name: str) -> bool:
    try:
        await cluster.api.get(resource, NS, name)
    except NotFound:
        return True
    return False


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


class Limited:
    """A client of a user who may not list everything."""

    def __init__(self, api: Any, *forbidden: Resource) -> None:
        self._api, self._forbidden = api, forbidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def list(self, resource: Resource, namespace: str = "", **how: Any) -> ObjList:
        if resource in self._forbidden:
            raise Forbidden(403, "Forbidden", f"{resource.plural} is forbidden")
        found: ObjList = await self._api.list(resource, namespace, **how)
        return found


# --- one job for `kubectl diloco` -------------------------------------------------------------------------------------
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


def owner_of(job: Obj) -> Obj:
    """The owner reference of what the operator makes for the job."""
    meta = {key: job["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "controller": True, **meta}


async def begin(cluster: FakeCluster, *units: Obj, pods: Sequence[Obj] = (), **status: str) -> None:
    """The job `bytes-lm` of namespace `team`, with these units, pods and conditions."""
    await cluster.api.create(names.CUSTOM_RESOURCES, build_crd())
    await cluster.api.create(names.NAMESPACES, {"metadata": {"name": "team"}})
    await cluster.api.create(names.NODES, {"metadata": {"name": "tpu-0"}})
    await cluster.api.create(names.DILOCO_JOBS, a_job().with_pool().build())
    await set_status(cluster, *units, **status)
    for made in pods:
        await add_pod(cluster, made)


async def set_status(cluster: FakeCluster, *units: Obj, **status: str) -> None:
    """The operator writes these units and conditions of `bytes-lm`."""
    said = {"conditions": conditions(**status), "units": list(units)}
    await cluster.write_status(names.DILOCO_JOBS, "bytes-lm", said, namespace="team")


async def add_pod(cluster: FakeCluster, pod: Obj, phase: str = "Running", *, owned: bool = True) -> None:
    """`owned`: by the job `bytes-lm`; else a stranger has made it."""
    job = await cluster.api.get(names.DILOCO_JOBS, "team", "bytes-lm")
    meta = {key: value for key, value in pod["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
    meta |= {"ownerReferences": [owner_of(job)]} if owned else {}
    node = pod["metadata"]["annotations"][names.ANNOTATION_NODE]
    spec = {"containers": [{"name": "learner", "image": "trainer:1"}], "nodeName": node, "terminationGracePeriodSeconds": 0}
    await cluster.api.create(names.PODS, {"metadata": meta, "spec": spec})
    await cluster.write_status(names.PODS, meta["name"], {"phase": phase}, namespace="team")


def on_a_cluster(test: Callable[[FakeCluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run on virtual time, which costs no wait, on a cluster that has nothing, not even the kinds of this operator."""

    def run() -> None:
        run_virtual(test(FakeCluster(MemoryApi())))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
