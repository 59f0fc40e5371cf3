"""The servers that are held to the contract: the one in memory, and a real one. Another is one more entry of `_BACKENDS`; no test knows
which it talks to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest
from builders.control_plane import ControlPlane
from builders.kube_objects import CUSTOM_RESOURCES, NAMESPACES, SERVICE_ACCOUNTS, eventually, gone, note_definition, widget_definition
from diloco_operator.kube.client import AlreadyExists, Client, Obj
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.kube.rest import RestClient, load_config


@dataclass(frozen=True)
class Backend:
    """A server, and what tests need of it that is not in the API."""

    client: Client
    compact: Callable[[], Awaitable[None]]
    """Drop old versions, as etcd does after a while. Open watches live on."""
    forget: Callable[[], Awaitable[None]]
    """Compact, and let every version of before be surely `Gone`. Open watches may break."""
    settled: Callable[[str], Awaitable[None]]
    """Until a new namespace has what its pods need."""


@contextlib.asynccontextmanager
async def _memory(_: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    api = MemoryApi(bookmark_seconds=0.1)

    async def compact() -> None:
        api.compact()

    async def settled(namespace: str) -> None:
        """Pods need nothing here."""

    yield Backend(api, compact, compact, settled)


@contextlib.asynccontextmanager
async def _real(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    plane: ControlPlane = request.getfixturevalue("control_plane")

    async def compact() -> None:
        await asyncio.to_thread(plane.compact)

    async def forget() -> None:
        await asyncio.to_thread(plane.forget_history)

    async with RestClient.connect(load_config(plane.kubeconfig)) as client:

        async def settled(namespace: str) -> None:
            async def has_account() -> bool:
                return not await gone(client, SERVICE_ACCOUNTS, namespace, "default")

            await eventually(has_account, f"the ServiceAccount of namespace {namespace}")

        yield Backend(client, compact, forget, settled)


_BACKENDS: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Backend]]] = {"memory": _memory, "real": _real}


@pytest.fixture(params=list(_BACKENDS))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with _BACKENDS[request.param](request) as backend:
        yield backend


@pytest.fixture
def client(backend: Backend) -> Client:
    return backend.client


@pytest.fixture
async def namespace(backend: Backend) -> AsyncIterator[str]:
    """A namespace of the test's own. It is deleted afterwards; what a test leaves in it must not be held by finalizers."""
    client = backend.client
    made = await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})
    name: str = made["metadata"]["name"]
    await backend.settled(name)
    yield name
    await client.delete(NAMESPACES, "", name)


async def define(client: Client, crd: Obj) -> None:
    """Register a custom resource and wait until it is served."""
    with contextlib.suppress(AlreadyExists):  # a server that lives longer than one test
        await client.create(CUSTOM_RESOURCES, crd)

    async def established() -> bool:
        found = await client.get(CUSTOM_RESOURCES, "", crd["metadata"]["name"])
        conditions = found.get("status", {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await eventually(established, f"{crd['metadata']['name']} established")


@pytest.fixture(autouse=True)
async def _custom_resources(client: Client) -> None:
    await define(client, widget_definition())
    await define(client, note_definition())
