"""A client that answers by script: for what a well-behaved server does not do on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.kube.client import EventType, NotFound, Obj, ObjList, Resource, WatchEvent


def an_object(name: str, version: int | str, *, uid: str = "", deleting: bool = False, **fields: Any) -> Obj:
    """A namespaced object as the API returns it; `fields` are its top-level fields."""
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-20T21:00:00Z"
    return {"metadata": metadata, **fields}


def added(obj: Obj) -> WatchEvent:
    return WatchEvent(EventType.ADDED, obj)


def modified(obj: Obj) -> WatchEvent:
    return WatchEvent(EventType.MODIFIED, obj)


def deleted(obj: Obj) -> WatchEvent:
    return WatchEvent(EventType.DELETED, obj)


def bookmark(version: int) -> WatchEvent:
    return WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": str(version)}})


SILENCE = object()
"""In a watch's script: nothing more comes, and the stream does not end."""


@dataclass
class ScriptedApi:
    """Lists and watches come from scripts, in order; an exception in a script is raised in its place. After the last watch of the
    script a watch is silent. Writes go to `handle` and are recorded."""

    lists: list[ObjList | Exception] = field(default_factory=list)
    watches: list[list[object]] = field(default_factory=list)
    handle: Callable[[str, tuple[Any, ...]], Any] = lambda verb, arguments: None
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    metadata_only: list[bool] = field(default_factory=list)
    """Says of each create, update and patch whether it asked for metadata only."""
    watched_from: list[str] = field(default_factory=list)
    list_tokens: list[str] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0

    async def list(self, resource: Resource, namespace: str = "", *, continue_token: str = "", **_: Any) -> ObjList:
        self.list_tokens.append(continue_token)
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, resource: Resource, namespace: str = "", *, resource_version: str, **_: Any) -> AsyncIterator[WatchEvent]:
        self.watched_from.append(resource_version)
        for step in self.watches.pop(0) if self.watches else [SILENCE]:
            if step is SILENCE:
                await asyncio.Event().wait()
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float | int):
                await asyncio.sleep(step)
                continue
            assert isinstance(step, WatchEvent)
            yield step

    async def _write(self, verb: str, *arguments: Any) -> Any:
        self.calls.append((verb, arguments))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await asyncio.sleep(0.01)
        self.busy -= 1
        answer = self.handle(verb, arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        answer: Obj | None = await self._write("get", resource, namespace, name)
        if answer is None:
            raise NotFound(404, "NotFound", f"{resource.plural} {name!r} not found")
        return answer

    async def create(
        self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False, dry_run: bool = False
    ) -> Obj:
        self.metadata_only.append(metadata_only)
        return await self._write("dry run" if dry_run else "create", resource, obj) or obj

    async def update(
        self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "", metadata_only: bool = False
    ) -> Obj:
        self.metadata_only.append(metadata_only)
        return await self._write("update", resource, obj, subresource, field_manager) or obj

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
        self.metadata_only.append(metadata_only)
        return await self._write("patch", resource, namespace, name, patch, subresource, field_manager) or patch

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "", **_: Any
    ) -> None:
        await self._write("delete", resource, namespace, name, grace_seconds, uid)
