"""`RestClient`: the verbs as requests to a real API server. kube/client.py says what they promise, and tests/contract tests it.

See docs/decisions/0086-reading-the-api.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

from diloco_operator.kube.client import (
    BadRequest,
    EventType,
    LogRequest,
    Obj,
    ObjList,
    Resource,
    Unavailable,
    WatchEvent,
)
from diloco_operator.kube.fields import metadata_of
from diloco_operator.kube.pods import PODS
from diloco_operator.kube.rest.config import ClientConfig
from diloco_operator.kube.rest.errors import error_of_status
from diloco_operator.kube.rest.line_splitter import LineSplitter
from diloco_operator.kube.rest.nesting import loads
from diloco_operator.kube.rest.pod_exec import PROTOCOL, PodExec
from diloco_operator.kube.rest.transport import HttpRequest, OnDate, OnRequest, Transport
from diloco_operator.timeouts import REQUESTS

log = logging.getLogger(__name__)

type AroundWrite = Callable[[], AbstractAsyncContextManager[None]]
"""Makes the context in which one write runs, such as `Fence.write`. What the context raises, the write raises."""

USER_AGENT = "diloco-operator"
_WHOLE = "application/json"
# The whole object is the second choice, for servers and proxies that know only that.
_METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_WHOLE}"
_MERGE_PATCH = "application/merge-patch+json"


class RestClient:
    """Implements `kube.client.Client`. Lives in one event loop, inside `connect`."""

    def __init__(self, transport: Transport, around_write: AroundWrite = contextlib.nullcontext) -> None:
        self._transport = transport
        self._around_write = around_write

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        config: ClientConfig,
        *,
        on_request: OnRequest | None = None,
        around_write: AroundWrite = contextlib.nullcontext,
        delivery_timeout: float | None = None,
        on_date: OnDate | None = None,
        user_agent: str = USER_AGENT,
    ) -> AsyncIterator[RestClient]:
        """Yield a client for the cluster of `config`. Its connections end with the context. Nothing is sent to the server yet:
        `server_version` checks the connection. Raises `ConfigError` without credentials.

        Args:
            around_write: each write runs inside this context.
            delivery_timeout: seconds after which the kernel drops a connection whose data is not acknowledged. If None, the kernel tries
                for minutes, even after the process has ended.
        """
        async with Transport.opened(
            config,
            on_request=on_request,
            delivery_timeout=delivery_timeout,
            on_date=on_date,
            user_agent=user_agent,
        ) as transport:
            yield cls(transport, around_write)

    # --- reads --------------------------------------------------------------------------------------------------------
    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        return await self._get(object_path(resource, namespace, name, subresource))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> ObjList:
        query: dict[str, str | int] = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": limit,
            "continue": continue_token,
        }
        answer = await self._get(collection_path(resource, namespace), {name: value for name, value in query.items() if value})
        items, meta = answer.get("items") or [], answer.get("metadata")
        if not isinstance(items, list) or not isinstance(meta, dict):
            raise Unavailable(502, "BadGateway", f"the list of {resource.plural} has no items or no metadata")
        for item in items:  # the items of built-in kinds come without apiVersion and kind
            if isinstance(item, dict):
                item["apiVersion"], item["kind"] = resource.api_version, resource.kind
        return ObjList(items, str(meta.get("resourceVersion") or ""), str(meta.get("continue") or ""))

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: float,
        allow_bookmarks: bool = True,
    ) -> AsyncIterator[WatchEvent]:
        seconds = max(1, math.ceil(timeout_seconds))  # the server knows only whole seconds, and replaces 0 by its own default
        query: dict[str, str | int] = {
            "watch": "true",
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "allowWatchBookmarks": "true" if allow_bookmarks else "",
            "timeoutSeconds": seconds,
        }
        wanted = {name: value for name, value in query.items() if value}
        lines = LineSplitter()
        path = collection_path(resource, namespace)
        request = HttpRequest("GET", path, timeout=seconds + REQUESTS.watch_margin, query=wanted, watch=True)
        async with self._transport.answer(request) as response:
            async for piece in response.content.iter_any():
                for line in _split(lines, piece, resource):
                    if (event := _event(line, resource)) is not None:
                        yield event
            if lines.rest.strip():
                raise Unavailable(503, "ServiceUnavailable", f"the watch of {resource.plural} ended inside an event")

    async def pod_logs(self, namespace: str, name: str, wanted: LogRequest) -> AsyncIterator[bytes]:
        """Yield a container's log, in pieces as they come. Raises `BadRequest` before the container starts, and if it has no previous
        run."""
        query: dict[str, str | int] = {}
        if wanted.container:
            query["container"] = wanted.container
        if wanted.follow:
            query["follow"] = "true"
        if wanted.previous:
            query["previous"] = "true"
        if wanted.tail_lines is not None:
            query["tailLines"] = wanted.tail_lines
        path = object_path(PODS, namespace, name, "log")
        request = HttpRequest("GET", path, timeout=None if wanted.follow else REQUESTS.answer, query=query)
        async with self._transport.answer(request) as response:
            async for piece in response.content.iter_any():
                yield piece

    @contextlib.asynccontextmanager
    async def pod_exec(
        self, namespace: str, name: str, command: Sequence[str], *, container: str, silence: float
    ) -> AsyncIterator[PodExec]:
        """Start a program in a running container and yield it. `silence`: seconds without output after which the connection counts as
        broken. Raises `Forbidden` without the verbs get and create on pods/exec."""
        query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        path = object_path(PODS, namespace, name, "exec")
        words = [("command", word) for word in command]
        async with self._transport.websocket(path, query=[*query, *words], protocol=PROTOCOL, silence=silence) as socket:
            yield PodExec(socket, path)

    async def server_version(self) -> Obj:
        """Return `{"major": "1", "minor": "36", "gitVersion": "v1.36.3", …}`. Also checks that the server can be reached."""
        return await self._get("/version")

    async def groups(self) -> frozenset[str]:
        """Names of the API groups that the server has, without the core group."""
        answer = await self._get("/apis")
        return frozenset(str(each.get("name") or "") for each in answer.get("groups") or () if isinstance(each, dict))

    # --- writes -------------------------------------------------------------------------------------------------------
    async def create(
        self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False, dry_run: bool = False
    ) -> Obj:
        namespace = _metadata(obj).get("namespace") or ""
        if resource.namespaced and not namespace:
            raise BadRequest(400, "BadRequest", f"{resource.kind} to create: metadata.namespace must be set")
        path = collection_path(resource, namespace)
        query = _managed(field_manager) | ({"dryRun": "All"} if dry_run else {})
        return await self._write("POST", path, _typed(obj, resource), query, metadata_only=metadata_only)

    async def update(
        self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "", metadata_only: bool = False
    ) -> Obj:
        meta = _metadata(obj)
        path = object_path(resource, meta.get("namespace") or "", meta.get("name") or "", subresource)
        return await self._write("PUT", path, _typed(obj, resource), _managed(field_manager), metadata_only=metadata_only)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Obj,
        *,
        subresource: str = "",
        field_manager: str = "",
        metadata_only: bool = False,
    ) -> Obj:
        path = object_path(resource, namespace, name, subresource)
        query = _managed(field_manager)
        return await self._write("PATCH", path, patch, query, content_type=_MERGE_PATCH, metadata_only=metadata_only)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> None:
        options = _delete_options(grace_seconds, uid) | {"propagationPolicy": "Background"}
        await self._write("DELETE", object_path(resource, namespace, name), options)

    async def bind(self, namespace: str, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace}, "target": target}
        await self._write("POST", object_path(PODS, namespace, name, "binding"), binding)

    async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(grace_seconds, uid),
        }
        # A PodDisruptionBudget answers 429 too, perhaps for long: the caller decides how long to wait.
        await self._write("POST", object_path(PODS, namespace, name, "eviction"), eviction, honor_retry_after=False)

    # --- requests -----------------------------------------------------------------------------------------------------
    async def _get(self, path: str, query: dict[str, str | int] | None = None) -> Obj:
        async with self._transport.answer(HttpRequest("GET", path, timeout=REQUESTS.answer, query=query)) as response:
            return _decoded(await response.read(), f"GET {path}")

    async def _write(
        self,
        method: str,
        path: str,
        obj: Obj,
        query: dict[str, str | int] | None = None,
        *,
        content_type: str = "application/json",
        honor_retry_after: bool = True,
        metadata_only: bool = False,
    ) -> Obj:
        request = HttpRequest(
            method,
            path,
            timeout=REQUESTS.answer,
            query=query,
            body=_encoded(obj),
            content_type=content_type,
            accept=_METADATA if metadata_only else _WHOLE,
            honor_retry_after=honor_retry_after,
        )
        async with self._around_write(), self._transport.answer(request) as response:
            return _decoded(await response.read(), f"{method} {path}")


def _event(line: bytes, resource: Resource) -> WatchEvent | None:
    """Read an event, None for one of an unknown type. Raises the error of an ERROR event, such as `Gone` for a compacted version."""
    event = _decoded(line, f"the watch of {resource.plural}")
    obj, kind = event.get("object"), event.get("type")
    if kind == "ERROR":
        raise error_of_status(obj if isinstance(obj, dict) else {})
    if kind not in _EVENT_TYPES:
        log.warning("the watch of %s sent an event of an unknown type, which is ignored", resource.plural)
        return None
    if kind == EventType.BOOKMARK:
        version = metadata_of(obj).get("resourceVersion")
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {"resourceVersion": version}}
    return WatchEvent(EventType(kind), obj, len(line))  # type: ignore[arg-type]  # the reader checks what it is


_EVENT_TYPES = tuple(each.value for each in EventType)


def _split(lines: LineSplitter, piece: bytes, resource: Resource) -> list[bytes]:
    try:
        return lines.feed(piece)
    except ValueError as error:
        raise Unavailable(503, "ServiceUnavailable", f"the watch of {resource.plural}: {error}") from error


def _decoded(body: bytes, what: str) -> Obj:
    """Decode an object. An API server sends nothing else."""
    try:
        decoded: Any = loads(body)
    except ValueError as error:
        raise Unavailable(502, "BadGateway", f"{what}: the answer is not JSON: {body[:100]!r}") from error
    if not isinstance(decoded, dict):
        raise Unavailable(502, "BadGateway", f"{what}: the answer is no object: {body[:100]!r}")
    return decoded


def _encoded(obj: Obj) -> bytes:
    try:
        return json.dumps(obj, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(400, "BadRequest", f"the object is not JSON: {error}") from error


def _typed(obj: Obj, resource: Resource) -> Obj:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _metadata(obj: Obj) -> Obj:
    meta = obj.get("metadata") or {}
    if not isinstance(meta, dict):
        raise BadRequest(400, "BadRequest", "the object's metadata must be a map")
    return meta


def _managed(field_manager: str) -> dict[str, str | int]:
    return {"fieldManager": field_manager} if field_manager else {}


def _delete_options(grace_seconds: int | None, uid: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        **({} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}),
        **({"preconditions": {"uid": uid}} if uid else {}),
    }


# --- The URL paths of resources and objects ---------------------------------------------------------------------------
def collection_path(resource: Resource, namespace: str) -> str:
    """Return the path of all objects in `namespace`, "" for every namespace."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if namespace and resource.namespaced:
        return f"{root}/namespaces/{_segment(namespace, 'namespace')}/{resource.plural}"
    return f"{root}/{resource.plural}"


def object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of one object. Raises `BadRequest` without a name: the path would be that of the collection."""
    if resource.namespaced and not namespace:
        raise BadRequest(400, "BadRequest", f"{resource.kind} {name!r}: a namespace is needed")
    path = f"{collection_path(resource, namespace)}/{_segment(name, 'name')}"
    return f"{path}/{subresource}" if subresource else path


def _segment(text: str, what: str) -> str:
    """Return one segment of a path. `.` and `..` would lead to other paths."""
    if not text or text in (".", ".."):
        raise BadRequest(400, "BadRequest", f"{text!r} is not a {what}")
    return quote(text, safe="")
