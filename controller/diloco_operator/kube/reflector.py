"""A cache of one resource that follows the API server: list, watch, and again.

What kept peers' caches from being trusted is dealt with here: a list in pages; a watch that ends on the server's timeout, with
jitter so that not all watches of an operator end together; a watch that is silent for longer than bookmarks allow is given up and
resumed; a version that the server has forgotten (410) means listing again, and what vanished meanwhile is reported as deleted.

Handlers see (old, new) and only enqueue keys: deciding is done from the cache, never from an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from diloco_operator.kube.backoff import Backoff
from diloco_operator.kube.client import ApiError, Client, EventType, Gone, Obj, Resource, WatchEvent

log = logging.getLogger(__name__)

type Handler = Callable[[Obj | None, Obj | None], None]
"""Called with what the cache held and what it holds now; None: not there. Must not block, must not change the objects."""
type Indexer = Callable[[Obj], Iterable[str]]
"""Under which values an object is found."""
type ObjectKey = tuple[str, str]
"""(namespace, name)."""


def object_key(obj: Obj) -> ObjectKey:
    """(namespace, name); namespace is "" for a cluster-scoped object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Cache:
    """Objects by (namespace, name) and by indexes. What it hands out belongs to everybody: nobody may change it."""

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._objects: dict[ObjectKey, Obj] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, dict[ObjectKey, Obj]]] = {name: {} for name in self._indexers}

    def get(self, namespace: str, name: str) -> Obj | None:
        """The object, or None."""
        return self._objects.get((namespace, name))

    def by_index(self, index: str, value: str) -> list[Obj]:
        """All objects that `index` files under `value`."""
        return list(self._indexes[index].get(value, {}).values())

    def __iter__(self) -> Iterator[ObjectKey]:
        """The key of every object as of now: the cache may change while the caller goes through them."""
        return iter(list(self._objects))

    def values(self) -> list[Obj]:
        """Every object."""
        return list(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, obj: Obj) -> Obj | None:
        """Hold `obj`; gives what was held under its key before."""
        key = object_key(obj)
        old = self._objects.get(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            values = set(indexer(obj))
            if old is not None:
                self._unfile(index, set(indexer(old)) - values, key)
            for value in values:
                index.setdefault(value, {})[key] = obj
        return old

    def drop(self, key: ObjectKey) -> Obj | None:
        """Hold it no longer; gives what was held."""
        old = self._objects.pop(key, None)
        if old is not None:
            for name, indexer in self._indexers.items():
                self._unfile(self._indexes[name], indexer(old), key)
        return old

    @staticmethod
    def _unfile(index: dict[str, dict[ObjectKey, Obj]], values: Iterable[str], key: ObjectKey) -> None:
        for value in values:
            filed = index.get(value)
            if filed is not None:
                filed.pop(key, None)
                if not filed:
                    del index[value]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a reflector waits for what, in seconds. A silent watch must be told from a quiet one: `read_timeout` is longer than
    the minute between two bookmarks and shorter than a watch."""

    page_size: int = 500
    """Objects in one page of a list."""
    watch_timeout: float = 300.0
    """The server ends a watch after this, up to doubled by jitter."""
    read_timeout: float = 90.0
    """A watch that delivers nothing, not even a bookmark, for so long is dropped and resumed."""
    list_timeout: float = 60.0
    """One page of a list must have arrived by then."""
    short_watch: float = 1.0
    """A watch that ended sooner and delivered nothing counts as failed, or a broken server would be asked in a tight loop."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.5, ceiling=30.0))

    def __post_init__(self) -> None:
        if not 0 < self.short_watch < self.read_timeout < self.watch_timeout:
            raise ValueError(
                "a reflector's times must be ordered short_watch < read_timeout < watch_timeout, not "
                f"{self.short_watch} s, {self.read_timeout} s, {self.watch_timeout} s"
            )


class Reflector:
    """Keeps `cache` equal to what the API server has of `resource`.

    `project` reduces an object before it is held. `chance` draws jitter from [0, 1). Time is the event loop's.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        chance: Callable[[], float],
        namespace: str = "",
        label_selector: str = "",
        project: Callable[[Obj], Obj] = lambda obj: obj,
        indexers: Mapping[str, Indexer] | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.resource = resource
        self.cache = Cache(indexers)
        self.last_heard: float | None = None
        """When the server last answered or sent anything, on the event loop's clock; None: never yet."""
        self._client = client
        self._chance = chance
        self._namespace = namespace
        self._label_selector = label_selector
        self._project = project
        self._timing = timing or Timing()
        self._handlers: list[Handler] = []
        self._synced = asyncio.Event()
        self._version: str | None = None
        """Up to which version the cache is right; None: it must be listed."""

    def on_change(self, handler: Handler) -> None:
        """Call `handler` at every change from now on. An exception of a handler is a defect and ends `run`."""
        self._handlers.append(handler)

    @property
    def synced(self) -> bool:
        """Whether the first list is complete. From then on the cache is at most a little behind, never wrong."""
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
            except TimeoutError:
                log.warning("%s: nothing heard for %.0f s, asking again", self._what, self._timing.read_timeout)
            except (ApiError, OSError) as error:
                log.warning("%s: %s", self._what, error)
            failures = 0 if heard else failures + 1
            if failures:
                await asyncio.sleep(self._timing.backoff.delay(failures, self._chance()))

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
        """Take in everything. The cache changes only once all pages are there."""
        listed: dict[ObjectKey, Obj] = {}
        token = ""
        while True:
            async with asyncio.timeout(self._timing.list_timeout):
                page = await self._client.list(
                    self.resource,
                    self._namespace,
                    label_selector=self._label_selector,
                    limit=self._timing.page_size,
                    continue_token=token,
                )
            self._hear()
            for obj in page.items:
                projected = self._project(obj)
                listed[object_key(projected)] = projected
            token = page.continue_token
            if not token:
                break
        for key in self.cache:
            if key not in listed:
                self._take_out(key)
        for obj in listed.values():
            self._take_in(obj)
        self._version = page.resource_version
        self._synced.set()

    async def _watch(self, version: str) -> bool:
        """Follow changes after `version` until the watch ends; gives whether it was worth its while."""
        loop = asyncio.get_running_loop()
        started = self._hear()
        heard = False
        stream = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=version,
            label_selector=self._label_selector,
            timeout_seconds=self._timing.watch_timeout * (1 + self._chance()),
            allow_bookmarks=True,
        )
        async with asyncio.timeout(self._timing.read_timeout) as silence:
            async for event in stream:
                silence.reschedule(self._hear() + self._timing.read_timeout)
                self._apply(event)
                heard = True
        return heard or loop.time() - started >= self._timing.short_watch

    def _apply(self, event: WatchEvent) -> None:
        if event.type is EventType.DELETED:
            self._take_out(object_key(event.object), last=self._project(event.object))
        elif event.type is not EventType.BOOKMARK:
            self._take_in(self._project(event.object))
        self._version = event.object["metadata"]["resourceVersion"]

    def _take_in(self, obj: Obj) -> None:
        old = self.cache.put(obj)
        if old is not None and old["metadata"].get("resourceVersion") == obj["metadata"].get("resourceVersion"):
            return
        for handler in self._handlers:
            handler(old, obj)

    def _take_out(self, key: ObjectKey, last: Obj | None = None) -> None:
        old = self.cache.drop(key)
        if old is None:
            return
        for handler in self._handlers:
            handler(last or old, None)
