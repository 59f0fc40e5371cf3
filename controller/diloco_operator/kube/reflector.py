"""A cache of one resource that follows the API server: list, watch, and again.

Lists come in pages. Watches end at the server's time-out, with jitter so that not all watches of an operator end together. A watch that was
silent for a while is dropped and resumed, because its connection may be dead. If the server has forgotten a version (410), everything is
listed again, and objects that vanished meanwhile are reported as deleted.

Handlers see (old, new) and only enqueue keys. Decisions are made from the cache, never from an event.

See docs/decisions/0030-controller-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.kube.client import ApiError, Client, EventType, Gone, Obj, Resource, Unavailable, WatchEvent
from diloco_operator.timeouts import REQUESTS, WatchTimeouts

log = logging.getLogger(__name__)

type ObjectKey = tuple[str, str]
"""(namespace, name); namespace is "" for a cluster-scoped object."""


@dataclass(frozen=True, slots=True)
class CachedObject[T]:
    """What a cache holds of one object. Shared by all readers: never change it."""

    namespace: str
    name: str
    uid: str
    version: str
    """resourceVersion."""
    deleting: bool
    """Its deletion was requested."""
    value: T
    """The projection: the parts of the object that are read. Whole objects are a hundred times as big."""

    @property
    def key(self) -> ObjectKey:
        return self.namespace, self.name


type Projection[T] = Callable[[Obj, T | None], T]
"""From the API's object, and the projection of the object's earlier version if there was one."""
type Handler[T] = Callable[[CachedObject[T] | None, CachedObject[T] | None], None]
"""Called with the old and the new cached object; None: no object. Must not block."""
type Indexer[T] = Callable[[CachedObject[T]], Iterable[str]]
"""The index values of an object."""


def as_it_is(obj: Obj, _previous: Obj | None) -> Obj:
    """The projection that keeps the whole object."""
    return obj


class Cache[T]:
    """Objects by (namespace, name) and by indexes."""

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self._objects: dict[ObjectKey, CachedObject[T]] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, dict[ObjectKey, CachedObject[T]]]] = {name: {} for name in self._indexers}

    def get(self, namespace: str, name: str) -> CachedObject[T] | None:
        """The object, or None."""
        return self._objects.get((namespace, name))

    def by_index(self, index: str, value: str) -> list[CachedObject[T]]:
        """All objects with `value` in `index`, in the order in which they came."""
        return list(self._indexes[index].get(value, {}).values())

    def count(self, index: str, value: str) -> int:
        """Number of objects with `value` in `index`."""
        return len(self._indexes[index].get(value, ()))

    def __iter__(self) -> Iterator[CachedObject[T]]:
        """A copy of the objects of now: the cache may change during the iteration."""
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, held: CachedObject[T]) -> CachedObject[T] | None:
        """Add or replace an object. Returns what the cache had under its key before."""
        key = held.key
        old = self._objects.get(key)
        self._objects[key] = held
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            values = set(indexer(held))
            if old is not None:
                self._unfile(index, set(indexer(old)) - values, key)
            for value in values:
                index.setdefault(value, {})[key] = held
        return old

    def drop(self, key: ObjectKey) -> CachedObject[T] | None:
        """Remove an object. Returns what the cache had."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._unfile(self._indexes[name], indexer(old), key)
        return old

    @staticmethod
    def _unfile(index: dict[str, dict[ObjectKey, CachedObject[T]]], values: Iterable[str], key: ObjectKey) -> None:
        for value in values:
            filed = index.get(value)
            if filed is not None:
                filed.pop(key, None)
                if not filed:
                    del index[value]


PAGE_SIZE = 50
"""Objects in one page of a list. A page is held as a whole, as JSON, and the process keeps the memory that it took: 1,000 pods cost 25 MiB
in pages of 500, and 3 MiB in pages of 50."""


class Reflector[T]:
    """Keeps `cache` equal to the objects of `resource` on the API server.

    `project` reduces an object to what the cache keeps. `rng` draws jitter from [0, 1). Time is the event loop's. Several reflectors may
    fill one `cache`, each from its own namespace. `indexers` are for the new cache if no `cache` is given.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        project: Projection[T],
        *,
        rng: Callable[[], float],
        namespace: str = "",
        cache: Cache[T] | None = None,
        label_selector: str = "",
        indexers: Mapping[str, Indexer[T]] | None = None,
        timeouts: WatchTimeouts | None = None,
    ) -> None:
        self.resource = resource
        self.cache: Cache[T] = cache if cache is not None else Cache(indexers)
        self.last_heard: float | None = None
        """When the server last sent anything, on the event loop's clock; None: not yet."""
        self._client = client
        self._rng = rng
        self._namespace = namespace
        self._label_selector = label_selector
        self._project = project
        self._timeouts = timeouts or WatchTimeouts()
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._version: str | None = None
        """The version up to which the cache is right; None: everything must be listed."""

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler` at every change from now on. An exception in a handler is a defect and ends `run`."""
        self._handlers.append(handler)

    @property
    def synced(self) -> bool:
        """Whether the first list is complete. From then on the cache may be a little old, but never wrong."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Returns when the first list is complete."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the server until cancelled."""
        failures = 0
        while True:
            heard = False
            try:
                if self._version is None:
                    await self._list()
                    failures = 0
                heard = await self._watch(self._version_known())
            except Gone as error:
                log.info("%s: the server has forgotten version %s, listing again: %s", self._what, self._version, error.message)
                self._version = None
                failures = 0  # the server answers, so list at once, however long it was away
            except TimeoutError:
                log.warning("%s: no answer to a list within %.0f s, asking again", self._what, REQUESTS.list_page)
            except (Unavailable, OSError) as error:
                log.warning("%s: %s", self._what, error)
            except ApiError as error:
                if error.code == 429:  # the server is too busy: a list would cost it more than a watch
                    log.warning("%s: %s", self._what, error)
                else:  # the server answered and will not continue from this version
                    log.warning("%s, listing again: %s", self._what, error)
                    self._version = None
            failures = 0 if heard else failures + 1
            if failures:
                await asyncio.sleep(self._timeouts.backoff.delay(failures, self._rng()))

    @property
    def _what(self) -> str:
        where = f" in {self._namespace}" if self._namespace else ""
        return f"watching {self.resource.plural}{where}"

    def _version_known(self) -> str:
        assert self._version is not None
        return self._version

    def _hear(self) -> float:
        now = asyncio.get_running_loop().time()
        self.last_heard = now
        return now

    async def _list(self) -> None:
        """List everything. The cache changes only when all pages have arrived."""
        listed: dict[ObjectKey, CachedObject[T]] = {}
        token = ""
        while True:
            async with asyncio.timeout(REQUESTS.list_page):
                page = await self._client.list(
                    self.resource,
                    self._namespace,
                    label_selector=self._label_selector,
                    limit=PAGE_SIZE,
                    continue_token=token,
                )
            self._hear()
            for obj in page.items:
                held = self._hold(obj)
                listed[held.key] = held
            token = page.continue_token
            if not token:
                break
        for old in self.cache:
            if old.key not in listed and self._namespace in ("", old.namespace):
                self._take_out(old)
        for held in listed.values():
            self._take_in(held)
        self._version = page.resource_version
        self._synced.set()

    async def _watch(self, version: str) -> bool:
        """Follow changes after `version` until the watch ends. Returns whether the watch worked."""
        loop = asyncio.get_running_loop()
        started = self._hear()
        heard = False
        stream = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=version,
            label_selector=self._label_selector,
            timeout_seconds=self._timeouts.watch * (1 + self._rng()),
            allow_bookmarks=True,
        )
        try:
            async with asyncio.timeout(self._timeouts.read) as silence:
                async for event in stream:
                    silence.reschedule(self._hear() + self._timeouts.read)
                    self._apply(event)
                    heard = True
        except TimeoutError:  # no failure: if nothing changes, a server may have nothing to send, not even a bookmark
            log.debug("%s: silent for %.0f s, asking again", self._what, self._timeouts.read)
        return heard or loop.time() - started >= self._timeouts.short

    def _apply(self, event: WatchEvent) -> None:
        if event.type is not EventType.BOOKMARK:
            held = self._hold(event.object)
            if event.type is EventType.DELETED:
                self._take_out(held)
            else:
                self._take_in(held)
        self._version = event.object["metadata"]["resourceVersion"]

    def _hold(self, obj: Obj) -> CachedObject[T]:
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        old = self.cache.get(namespace, name)
        return CachedObject(
            namespace=namespace,
            name=name,
            uid=meta["uid"],
            version=meta["resourceVersion"],
            deleting="deletionTimestamp" in meta,
            value=self._project(obj, old.value if old is not None else None),
        )

    def _take_in(self, held: CachedObject[T]) -> None:
        old = self.cache.put(held)
        if old is not None and old.version == held.version:
            return
        for handler in self._handlers:
            handler(old, held)

    def _take_out(self, last: CachedObject[T]) -> None:
        if self.cache.drop(last.key) is not None:
            for handler in self._handlers:
                handler(last, None)
