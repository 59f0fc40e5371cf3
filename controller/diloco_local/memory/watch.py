"""A watch of a table: its changes after a version, filtered by selectors, with bookmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from diloco_operator.kube.client import ApiError, EventType, Obj, WatchEvent

from diloco_local.memory.copy_json import copy_json
from diloco_local.memory.store import Change, Store, Table

type Filter = Callable[[Obj], bool]


def seen_through(change: Change, matches: Filter) -> tuple[EventType, Obj] | None:
    """The change as a watcher with selectors sees it: an object that begins to match is ADDED, and one that stops matching is DELETED, as
    it last matched. None if the watcher does not see the change."""
    before = change.old is not None and matches(change.old)
    if change.type is EventType.DELETED:
        return (EventType.DELETED, change.obj) if before else None
    now = matches(change.obj)
    if now:
        return (EventType.MODIFIED if before else EventType.ADDED), change.obj
    if before and change.old is not None:
        version = change.obj["metadata"]["resourceVersion"]
        return EventType.DELETED, {**change.old, "metadata": {**change.old["metadata"], "resourceVersion": version}}
    return None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watcher asks for."""

    namespace: str
    """"" for all namespaces."""
    matches: Filter
    version: int
    """Only changes after this version. 0: the existing objects come as ADDED first."""
    timeout_seconds: float
    bookmark: Callable[[int], WatchEvent] | None
    """Makes a bookmark for a version. None if the watcher wants none."""
    bookmark_seconds: float
    """Time between two bookmarks."""


async def watch_table(
    store: Store, table: Table, options: WatchOptions, broken: Callable[[], ApiError | None]
) -> AsyncIterator[WatchEvent]:
    """Yield the changes until the time-out, with copies of the objects. `broken` is called at every wake-up, and an error that it returns
    ends the watch."""
    namespace, matches, version, bookmark = options.namespace, options.matches, options.version, options.bookmark
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.timeout_seconds
    next_bookmark = loop.time() + options.bookmark_seconds
    if version:
        position = table.position_after(version)
    else:
        position = table.end
        for obj in list(table.all(namespace)):
            if matches(obj):
                yield WatchEvent(EventType.ADDED, copy_json(obj))
    while True:
        while position < table.end:
            change = table.change_at(position)
            position += 1
            if change.version <= version:  # the watch began at a future version: skip everything before it
                continue
            if namespace and change.obj["metadata"].get("namespace", "") != namespace:
                continue
            if seen := seen_through(change, matches):
                yield WatchEvent(seen[0], copy_json(seen[1]))
        if error := broken():
            raise error
        now = loop.time()
        if now >= deadline:
            if bookmark and store.version > version:
                yield bookmark(store.version)
            return
        if bookmark and now >= next_bookmark:
            next_bookmark = now + options.bookmark_seconds
            if store.version > version:  # a bookmark of the initial version would say nothing new
                yield bookmark(store.version)
            continue
        await _changed(table, min(deadline, next_bookmark) - now, loop)


async def _changed(table: Table, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the table changes, for `seconds` at most."""
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _finish, waiter)
    table.waiters.append(waiter)
    try:
        await waiter
    finally:
        timer.cancel()
        if waiter in table.waiters:
            table.waiters.remove(waiter)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
