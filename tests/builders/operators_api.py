"""The API server as the operators of a `FakeCluster` reach it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.kube.client import ApiError, EventType, Forbidden, Obj, ObjList, Resource, WatchEvent

type Distortion = Callable[[Obj], Any]
"""What the API server shows instead of an object."""


async def late(events: AsyncIterator[WatchEvent], lag: float) -> AsyncIterator[WatchEvent]:
    """The events, each so many seconds after it came."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[tuple[float, WatchEvent]] = asyncio.Queue()

    async def follow() -> None:
        async for event in events:
            came.put_nowait((loop.time() + lag, event))

    following = asyncio.create_task(follow())
    try:
        while True:
            due, event = await came.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield event
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class OperatorsApi:
    """The API server as operators reach it: it may distort what they read, forbid reads, and reject what they create."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.distortions: dict[tuple[str, str, str], Distortion] = {}
        """By plural, namespace and name."""
        self.forbidden: set[tuple[str, str, str]] = set()
        """Verb (list or watch), plural and namespace."""
        self.rejects: Callable[[Obj], str] = lambda _: ""
        """Says why an object may not be created; "" if it may."""
        self.admits: Callable[[Obj], Obj] = lambda obj: obj
        """Returns what admission makes of an object that is created."""
        self.rejects_in_earnest: Callable[[Obj], str] = lambda _: ""
        """The same of a create that is no dry run: a dry run of the same object is admitted."""
        self.refusal: Callable[[str], ApiError] = lambda message: Forbidden(403, "Forbidden", message)
        """How it rejects."""
        self.lag: dict[str, float] = {}
        """Seconds by plural: watches of these resources show each change so late."""
        self.listed: list[tuple[str, str]] = []
        """Plural and label selector of each page that operators asked for."""
        self.created: list[str] = []
        """Names of the objects that operators tried to create, without Events."""
        self.emitted: list[str] = []
        """Reasons of the Events that they tried to create."""
        self.dry_runs: list[str] = []
        """Names of the objects of which they tried a dry run."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> ObjList:
        self.listed.append((resource.plural, options.get("label_selector", "")))
        self._check("list", resource, namespace)
        page = await self._api.list(resource, namespace, **options)
        return replace(page, items=[self._shown(resource, obj) for obj in page.items])

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncIterator[WatchEvent]:
        self._check("watch", resource, namespace)
        events = self._api.watch(resource, namespace, **options)
        lag = self.lag.get(resource.plural, 0.0)
        async for event in late(events, lag) if lag else events:
            yield event if event.type is EventType.BOOKMARK else replace(event, object=self._shown(resource, event.object))

    async def create(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        if options.get("dry_run"):
            self.dry_runs.append(obj["metadata"]["name"])
        elif resource == names.EVENTS:
            self.emitted.append(obj["reason"])
        else:
            self.created.append(obj["metadata"]["name"])
        if message := self.rejects(obj) or ("" if options.get("dry_run") else self.rejects_in_earnest(obj)):
            raise self.refusal(message)
        return await self._api.create(resource, self.admits(obj), **options)

    def _check(self, verb: str, resource: Resource, namespace: str) -> None:
        if (verb, resource.plural, namespace) in self.forbidden:
            what = f'cannot {verb} resource "{resource.plural}" in the namespace "{namespace}"'
            raise Forbidden(403, "Forbidden", f'{resource.plural} is forbidden: User "operator" {what}')

    def _shown(self, resource: Resource, obj: Obj) -> Any:
        meta = obj["metadata"]
        distort = self.distortions.get((resource.plural, meta.get("namespace", ""), meta["name"]))
        return distort(obj) if distort is not None else obj
