"""The servers that the contract suite tests: the in-memory one and a real one. To add another, add it to `_BACKENDS`. No test knows which
server it talks to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest
from builders.control_plane import ControlPlane
from builders.kube_objects import (
    CONFIG_MAPS,
    CUSTOM_RESOURCES,
    NAMESPACES,
    NODES,
    SERVICE_ACCOUNTS,
    eventually,
    gone,
    note_definition,
    widget_definition,
)
from diloco_local.memory import MemoryApi
from diloco_operator.kube.client import AlreadyExists, Client, NotFound, Obj, Resource
from diloco_operator.kube.rest import RestClient, load_config


@dataclass(frozen=True)
class Backend:
    """A server, and what tests need from it outside the API."""

    client: Client
    compact: Callable[[], Awaitable[None]]
    """Drop old versions, as etcd does after a while. Open watches continue."""
    forget: Callable[[], Awaitable[None]]
    """Compact, so that every earlier version is `Gone` for certain. Open watches may break."""
    settled: Callable[[str], Awaitable[None]]
    """Wait until a new namespace has what Kubernetes puts into each, so that all that comes later is the test's."""


@contextlib.asynccontextmanager
async def _memory(_: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    api = MemoryApi(bookmark_seconds=0.1)

    async def compact() -> None:
        api.compact()

    async def settled(namespace: str) -> None:
        """Nothing is put into them here."""

    yield Backend(api, compact, compact, settled)


@pytest.fixture(scope="session")
def contract_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a plane for this suite alone: `forget` compacts it and restarts its API server, which would break the watches of others."""
    with ControlPlane(tmp_path_factory.mktemp("contract-plane"), scheduler=False) as plane:
        yield plane


@contextlib.asynccontextmanager
async def _real(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    plane: ControlPlane = request.getfixturevalue("contract_plane")

    async def compact() -> None:
        await asyncio.to_thread(plane.compact)

    async def forget() -> None:
        await asyncio.to_thread(plane.forget_history)

    async with RestClient.connect(load_config(plane.kubeconfig)) as client:

        async def settled(namespace: str) -> None:
            async def has_its_own() -> bool:
                own = ((SERVICE_ACCOUNTS, "default"), (CONFIG_MAPS, "kube-root-ca.crt"))
                return not any([await gone(client, resource, namespace, name) for resource, name in own])

            await eventually(has_its_own, f"the ServiceAccount and the roots of namespace {namespace}")

        yield Backend(client, compact, forget, settled)


_BACKENDS: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Backend]]] = {"memory": _memory, "real": _real}


_ON_A_REAL_SERVER = (pytest.mark.cluster, pytest.mark.core, pytest.mark.xdist_group("contract"))  # one control plane for all of them


@pytest.fixture(params=["memory", pytest.param("real", marks=_ON_A_REAL_SERVER)])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with _BACKENDS[request.param](request) as backend:
        yield backend


@pytest.fixture
def client(backend: Backend) -> Client:
    return backend.client


@pytest.fixture
async def namespace(backend: Backend) -> AsyncIterator[str]:
    """A namespace for the test. It is deleted afterwards, so a test must not leave objects with finalizers in it."""
    client = backend.client
    made = await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})
    name: str = made["metadata"]["name"]
    await backend.settled(name)
    yield name
    await client.delete(NAMESPACES, "", name)


@pytest.fixture
async def node(client: Client, namespace: str) -> AsyncIterator[str]:
    """A node for the test's pods, to which no scheduler binds any. Of pods on a node that is not there, a real server's garbage collector
    makes an end, at a moment of its own."""
    name = f"node-of-{namespace}"
    await client.create(NODES, {"metadata": {"name": name}, "spec": {"unschedulable": True}})
    yield name
    await client.delete(NODES, "", name)


async def define(client: Client, crd: Obj) -> None:
    """Register a custom resource and wait until it is served, which comes a little after its condition says so."""
    with contextlib.suppress(AlreadyExists):  # the server is used by more than one test
        await client.create(CUSTOM_RESOURCES, crd)

    spec = crd["spec"]
    resource = Resource(spec["group"], spec["versions"][0]["name"], spec["names"]["kind"], spec["names"]["plural"])

    async def served() -> bool:
        found = await client.get(CUSTOM_RESOURCES, "", crd["metadata"]["name"])
        conditions = found.get("status", {}).get("conditions") or []
        if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return False
        try:
            await client.list(resource)
        except NotFound:
            return False
        return True

    await eventually(served, f"{crd['metadata']['name']} served")


@pytest.fixture(autouse=True)
async def _custom_resources(client: Client) -> None:
    await define(client, widget_definition())
    await define(client, note_definition())
