"""The servers that are held to the contract. Another one is one more entry of `_BACKENDS`; no test knows which it talks to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from builders.kube_objects import CUSTOM_RESOURCES, NAMESPACES, eventually, note_definition, widget_definition
from diloco_operator.kube.client import AlreadyExists, Client, Obj
from diloco_operator.kube.memory import MemoryApi


@dataclass(frozen=True)
class Backend:
    """A server, and what tests need of it that is not in the API."""

    client: Client
    compact: Callable[[], Awaitable[None]]
    """Forget history, as etcd does after a while."""
    bookmark_seconds: float
    """How long an idle watch waits at most for a bookmark."""


async def _memory() -> Backend:
    api = MemoryApi(bookmark_seconds=0.1)

    async def compact() -> None:
        api.compact()

    return Backend(api, compact, bookmark_seconds=0.1)


_BACKENDS: dict[str, Callable[[], Awaitable[Backend]]] = {"memory": _memory}


@pytest.fixture(params=list(_BACKENDS))
async def backend(request: pytest.FixtureRequest) -> Backend:
    return await _BACKENDS[request.param]()


@pytest.fixture
def client(backend: Backend) -> Client:
    return backend.client


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    made = await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})
    name: str = made["metadata"]["name"]
    yield name
    await client.delete(NAMESPACES, "", name)


async def define(client: Client, crd: Obj) -> None:
    """Register a custom resource and wait until it is served."""
    with contextlib.suppress(AlreadyExists):  # a server that lives longer than one test
        await client.create(CUSTOM_RESOURCES, crd)

    async def established() -> bool:
        found = await client.get(CUSTOM_RESOURCES, "", crd["metadata"]["name"])
        conditions = found.get("status", {}).get("conditions", [])
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    await eventually(established, f"{crd['metadata']['name']} established")


@pytest.fixture(autouse=True)
async def _custom_resources(client: Client) -> None:
    await define(client, widget_definition())
    await define(client, note_definition())
