"""An API server in memory, served over HTTP on loopback, for the program `kubectl diloco` as a user starts it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from builders.http_server import serving, status
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import ApiError, Forbidden, Obj, Resource

_SERVED = {each.plural: each for each in (names.DILOCO_JOBS, names.PODS, names.NODES, names.EVENTS)}


class ServedApi:
    """What commands for units need of an API server."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.logs: dict[str, bytes] = {}
        """By pod."""
        self.changes: list[str] = []
        """Each request that is no read, as METHOD PATH."""
        self.forbidden: set[str] = set()
        """Namespaces whose jobs the user may not list."""
        self.strange: list[Any] = []
        """What the list of jobs has besides the jobs that there are."""
        self.distort: Callable[[Obj], Any] = lambda obj: obj
        """What is answered in place of a job that is asked for by its name."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.changes.append(f"{request.method} {request.path}")
        try:
            return await self._answer(request)
        except ApiError as error:
            return status(error.code, error.reason, error.message)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        resource, namespace, name, subresource = _read(request.path)
        if subresource == "log":
            return await self._log(request, namespace, name)
        if subresource == "eviction":
            await self.api.evict(namespace, name, uid=json.loads(await request.read())["deleteOptions"]["preconditions"]["uid"])
            return web.json_response({})
        if request.method == "PATCH":
            return web.json_response(await self.api.patch(resource, namespace, name, json.loads(await request.read())))
        assert request.method == "GET", request.method
        if name:
            found = await self.api.get(resource, namespace, name)
            return web.json_response(self.distort(found) if resource is names.DILOCO_JOBS else found)
        if "watch" in request.query:
            return await self._watch(request, resource, namespace)
        if resource is names.DILOCO_JOBS and namespace in self.forbidden:
            raise Forbidden(403, "Forbidden", f'User "ana" cannot list resource "dilocojobs" in the namespace "{namespace}"')
        labels, fields = _selectors(request)
        page = await self.api.list(resource, namespace, label_selector=labels, field_selector=fields)
        items = [*(self.strange if resource is names.DILOCO_JOBS else []), *page.items]
        return web.json_response({"metadata": {"resourceVersion": page.resource_version}, "items": items})

    async def _log(self, request: web.Request, namespace: str, name: str) -> web.StreamResponse:
        await self.api.get(names.PODS, namespace, name)
        lines = self.logs.get(name, b"").splitlines(keepends=True)
        return web.Response(body=b"".join(lines[-int(request.query.get("tailLines", len(lines))) :]))

    async def _watch(self, request: web.Request, resource: Resource, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        (labels, fields), version = _selectors(request), request.query["resourceVersion"]
        seconds = float(request.query["timeoutSeconds"])
        events = self.api.watch(
            resource, namespace, resource_version=version, label_selector=labels, field_selector=fields, timeout_seconds=seconds
        )
        async for event in events:
            await response.write(json.dumps({"type": event.type, "object": event.object}).encode() + b"\n")
        return response


def _selectors(request: web.Request) -> tuple[str, str]:
    return request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")


def _read(path: str) -> tuple[Resource, str, str, str]:
    """Resource, namespace, name and subresource of a path, "" for each that it does not have."""
    words = path.strip("/").split("/")
    words = words[3:] if words[0] == "apis" else words[2:]
    namespace = ""
    if words[0] == "namespaces":
        namespace, words = words[1], words[2:]
    plural, name, subresource = [*words, "", ""][:3]
    return _SERVED[plural], namespace, name, subresource


@contextlib.asynccontextmanager
async def served(api: MemoryApi) -> AsyncIterator[tuple[ServedApi, str]]:
    """Serve it. The second is its URL."""
    served_api = ServedApi(api)
    async with serving(served_api.answer) as server:
        yield served_api, server.url


def a_kubeconfig(folder: Path, contexts: Mapping[str, tuple[str, str]]) -> Path:
    """A kubeconfig with these contexts: URL and namespace of each, "" for none. The first is the current one."""
    entries: list[Obj] = [
        {"name": name, "context": {"cluster": name, "user": "ana", **({"namespace": namespace} if namespace else {})}}
        for name, (_, namespace) in contexts.items()
    ]
    content = {
        "clusters": [{"name": name, "cluster": {"server": url}} for name, (url, _) in contexts.items()],
        "users": [{"name": "ana", "user": {}}],
        "contexts": entries,
        "current-context": next(iter(contexts)),
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path
