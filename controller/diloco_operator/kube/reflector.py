"""Keeps the cache of one resource equal to the API server: it lists, watches, and begins again.

Lists come in pages. Watches end at the server's time-out, with jitter so that not all watches of an operator end together. A watch that was
silent for a while is dropped and resumed, because its connection may be dead. If the server has forgotten a version (410), everything is
listed again, and objects that vanished meanwhile are reported as deleted.

Handlers see (old, new) and only enqueue keys. Decisions are made from the cache, never from an event.

An object can harm only itself: if its projection or a handler cannot take it, it is left out of the cache, as if it did not exist, and
`MalformedObjects` names it. A later good version is taken as a new object.

See docs/decisions/0030-controller-loop.md. See docs/decisions/0086-reading-the-api.md. See docs/decisions/0173-requests-and-quota.md.
See docs/decisions/0091-fairness-on-one-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diloco_operator.kube.cache import Cache, CachedObject, Handler, Indexer, ObjectKey, Projection
from diloco_operator.kube.client import (
    ApiError,
    Client,
    EventType,
    Forbidden,
    Gone,
    NotFound,
    Obj,
    ObjList,
    Resource,
    Unavailable,
    WatchEvent,
)
from diloco_operator.kube.event_turns import EventTurns
from diloco_operator.kube.fields import MalformedField, an_object, clip, metadata_of, needed_string, string
from diloco_operator.kube.listing import pages
from diloco_operator.kube.malformed import MalformedObject, MalformedObjects
from diloco_operator.timeouts import REQUESTS, WatchTimeouts

log = logging.getLogger(__name__)

PAGE_SIZE = 50
"""Objects in one page of a list. A page is held as a whole, as JSON, and the process keeps the memory that it took: 1,000 pods cost 25 MiB
in pages of 500, and 3 MiB in pages of 50."""


def _no_problem(_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class WatchedResource[T]:
    """The objects that a reflector follows, and what its cache keeps of each."""

    resource: Resource
    project: Projection[T]
    """Reduces an object to what the cache keeps."""
    namespace: str = ""
    """"" for all namespaces."""
    label_selector: str = ""
    field_selector: str = ""
    problem: Callable[[T], str] = _no_problem
    """Says what is wrong with an object that can be used in part, "" if nothing is."""
    without: str = ""
    """What the program does without these objects, in words. "" if it needs them.

    If it does not need them and the server forbids reading them, or does not know the resource, the cache is empty, and the reflector asks
    again from time to time. So it follows a custom resource as soon as its CustomResourceDefinition exists."""


class Reflector[T]:
    """Keeps a cache equal to the objects of `watched` on the API server. Time is the event loop's.

    Args:
        rng: draws jitter from [0, 1).
        cache: several reflectors may fill one, each from its own namespace. None for a new one with these `indexers`.
        malformed: learns of objects that cannot be used.
    """

    def __init__(
        self,
        client: Client,
        watched: WatchedResource[T],
        *,
        rng: Callable[[], float],
        cache: Cache[T] | None = None,
        indexers: Mapping[str, Indexer[T]] | None = None,
        timeouts: WatchTimeouts | None = None,
        malformed: MalformedObjects | None = None,
    ) -> None:
        self.resource = watched.resource
        self.cache: Cache[T] = cache if cache is not None else Cache(indexers)
        self.unanswered_since: float | None = None
        """Since when the server has answered no request, on the event loop's clock. None if it answers."""
        self._client = client
        self._rng = rng
        self._namespace = watched.namespace
        self._label_selector = watched.label_selector
        self._field_selector = watched.field_selector
        self._without = watched.without
        self.missing = ""
        """Why an optional reflector cannot read the objects: it is forbidden, or the server does not know them. "" if it can."""
        self._project = watched.project
        self._timeouts = timeouts or WatchTimeouts()
        self._malformed = malformed if malformed is not None else MalformedObjects()
        self._problem = watched.problem
        self._named: set[ObjectKey] = set()
        """The malformed objects that this reflector found: another one may follow other objects of the same resource."""
        self.forbidden = ""
        """Why the server does not let the program read these objects, "" if it does. Meanwhile the cache stays as it was."""
        self.failing = ""
        """The error that the server answers to a list, for example that it does not know the resource; "" if it lists. A server that is
        away or too busy does not count. Meanwhile the cache stays as it was."""
        self._refused_since: float | None = None
        """Since when the server refuses what an optional reflector asks, on the event loop's clock. None if it does not."""
        self._refused_list = False
        """The server refused the list, and not only the watch, the last time that it refused anything."""
        self._handlers: list[Handler[T]] = []
        self._rights_handlers: list[Callable[[], None]] = []
        self._failure_handlers: list[Callable[[], None]] = []
        self._turns = EventTurns(self._apply)
        self._synced = asyncio.Event()
        self._answered = asyncio.Event()
        self._again = False
        """Everything must be listed again, although nothing is wrong with the version."""
        self._silence: asyncio.Timeout | None = None
        self._version: str | None = None
        """The version up to which the cache is right. None if everything must be listed."""

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler` at every change from now on. An exception in a handler is a defect: the cache then leaves the object out."""
        self._handlers.append(handler)

    def on_rights_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` when `forbidden` or `missing` begins or ends to say something."""
        self._rights_handlers.append(handler)

    def on_failure_change(self, handler: Callable[[], None]) -> None:
        """Call `handler` when `failing` begins or ends to say something."""
        self._failure_handlers.append(handler)

    @property
    def namespace(self) -> str:
        """The namespace of the objects, "" for all."""
        return self._namespace

    @property
    def synced(self) -> bool:
        """Whether the first list is complete, or an optional reflector cannot have one. From then on the cache may be a little old, but
        never wrong."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return when the first list is complete, or when an optional reflector cannot have one."""
        await self._synced.wait()

    async def wait_answered(self) -> None:
        """Return when the first list is complete, or when the server has said that it is forbidden."""
        await self._answered.wait()

    def list_again(self) -> None:
        """List and project every object again soon, because something that projections depend on has changed."""
        self._again = True
        # End the watch now: it may be silent, and would end only after its read time-out.
        if self._silence is not None:
            self._silence.reschedule(asyncio.get_running_loop().time())

    async def agrees(self, namespace: str, label_selector: str, cached: Callable[[], Iterable[CachedObject[T]]]) -> bool:
        """Return whether the server has the same objects in this selection as the cache, with the same ones about to be deleted. Changes
        within an object do not count, nor do malformed objects. `cached` returns the selection in the cache, as it is after the list.
        Raises `ApiError`, `OSError`."""
        listed = {}
        async for page in self._pages(namespace, label_selector):
            for held in map(self._hold, page.items):
                if isinstance(held, CachedObject):
                    listed[held.key] = (held.uid, held.deleting)
        in_cache = {held.key: (held.uid, held.deleting) for held in cached()}
        left_out = self._named - in_cache.keys()
        return in_cache == {key: state for key, state in listed.items() if key not in left_out}

    async def run(self) -> None:
        """Follow the server until cancelled."""
        try:
            await self._follow()
        finally:
            await self._turns.close()

    async def _follow(self) -> None:
        failures = 0
        while True:
            heard = False
            try:
                if self._version is None or self._again:
                    self._again, self._version = False, None  # a list that fails is tried again
                    await self._list()
                    failures = 0
                    if self._again:
                        continue
                heard = await self._watch(self._version_known())
            except Gone as error:
                log.info("%s: the server has forgotten version %s, listing again: %s", self.what, self._version, error.message)
                self._version = None
                failures = 0  # the server answers, so list at once, however long it was away
            except TimeoutError:
                log.warning("%s: no answer to a list within %.0f s, asking again", self.what, REQUESTS.list_page)
                self._miss_answer()
            except (Unavailable, OSError) as error:
                log.warning("%s: %s", self.what, error)
                self._miss_answer()
            except Forbidden as error:
                await self._refuse(error)
            except ApiError as error:
                if isinstance(error, NotFound) and self._without:
                    await self._refuse(error)
                elif error.code == 429:  # the server is too busy: a list would cost it more than a watch
                    log.warning("%s: %s", self.what, error)
                else:  # the server answered and will not continue from this version
                    log.warning("%s, listing again: %s", self.what, error)
                    if self._version is None:
                        self._fail(str(error))
                    self._version = None
            failures = 0 if heard else failures + 1
            if failures:
                await asyncio.sleep(self._timeouts.backoff.delay(failures, self._rng()))

    @property
    def what(self) -> str:
        """What the reflector does, for messages."""
        where = f" in {self._namespace}" if self._namespace else ""
        # The selectors tell several watches of a resource apart. Alone, a label selector is that of the objects of jobs.
        selectors = filter(None, (self._label_selector, self._field_selector))
        which = f" with {' and '.join(selectors)}" if self._field_selector else ""
        return f"watching {self.resource.plural}{where}{which}"

    async def _refuse(self, error: Forbidden | NotFound) -> None:
        """Note that the server forbids reading the objects, or does not know the resource. The cache of an optional reflector becomes
        empty, unless the server has only begun to refuse; that of another one stays as it was."""
        now = self._hear()
        self._refused_list = self._version is None
        self._version = None
        if self._without:
            self._refused_since = self._refused_since if self._refused_since is not None else now
            # A server that has just started may know neither roles nor custom resources. What it served before is there all the same.
            if not self.synced or self.missing or now - self._refused_since >= self._timeouts.refused:
                await self._miss(error)
        elif not self.forbidden:
            log.error("%s is forbidden: %s; this is tried again", self.what, error.message)
            self.forbidden = error.message
            self._rights_changed()
        self._answered.set()

    async def _miss(self, error: Forbidden | NotFound) -> None:
        """Note that an optional reflector cannot read the objects."""
        before, unknown = self.missing, isinstance(error, NotFound)
        self.missing = f"the API server has no {self.resource.plural} in {self.resource.api_version}" if unknown else error.message
        await self._end_all_but({})
        for key in list(self._named):
            self._mended(key)
        self._synced.set()
        if self.missing == before:
            return
        if unknown:  # no fault: most clusters lack some of them
            log.info("%s: %s. Without them %s", self.what, self.missing, self._without)
        else:
            log.warning("%s: %s. Without this right %s", self.what, error, self._without)
        self._rights_changed()

    def _fail(self, answer: str) -> None:
        """Note the error with which the server answered a list, "" if it listed."""
        changed = bool(answer) != bool(self.failing)
        self.failing = answer
        if changed:
            for handler in self._failure_handlers:
                handler()

    def _allow(self) -> None:
        log.info("%s is allowed now", self.what)
        self.forbidden = ""
        self._rights_changed()

    def _rights_changed(self) -> None:
        for handler in self._rights_handlers:
            handler()

    def _version_known(self) -> str:
        assert self._version is not None
        return self._version

    def _hear(self) -> float:
        self.unanswered_since = None
        return asyncio.get_running_loop().time()

    def _miss_answer(self) -> None:
        if self.unanswered_since is None:
            self.unanswered_since = asyncio.get_running_loop().time()

    async def _list(self) -> None:
        """List everything. The cache changes only when all pages have arrived, and then in short turns, so that thousands of objects do not
        hold the event loop."""
        listed: dict[ObjectKey, CachedObject[T]] = {}
        malformed: dict[ObjectKey, MalformedObject] = {}
        version = ""
        async for page in self._pages(self._namespace, self._label_selector):
            self._hear()
            for obj in page.items:
                await self._turns.pause()
                held = self._hold(obj)
                if isinstance(held, MalformedObject):
                    malformed[held.key] = held
                else:
                    listed[held.key] = held
            version = page.resource_version
        self._turns.clear()  # the list is newer than every event that waits
        await self._end_all_but(listed)
        for key in self._named - malformed.keys() - listed.keys():
            self._mended(key)
        for malformed_object in malformed.values():
            self._name(malformed_object)
        for held in listed.values():
            await self._turns.pause()
            self._take_in(held)
        self._version, self._refused_since = version, None
        self._fail("")
        was_missing = bool(self.missing)
        self.missing = ""
        self._synced.set()
        self._answered.set()
        if was_missing:
            log.info("%s: it can be read now", self.what)
            self._rights_changed()
        # If the watch was refused, an allowed list proves nothing: `forbidden` would come and go with each list.
        if self.forbidden and self._refused_list:
            self._allow()

    async def _end_all_but(self, kept: Mapping[ObjectKey, CachedObject[T]]) -> None:
        # Other reflectors fill the same cache from other namespaces: theirs stays.
        gone = [held for held in self.cache if held.key not in kept and self._namespace in ("", held.namespace)]
        for held in gone:
            await self._turns.pause()
            self._end(held.key, held)

    def _pages(self, namespace: str, labels: str) -> AsyncIterator[ObjList]:
        fields, timeout = self._field_selector, REQUESTS.list_page
        return pages(self._client, self.resource, namespace, labels=labels, fields=fields, size=PAGE_SIZE, timeout=timeout)

    async def _watch(self, version: str) -> bool:
        """Follow changes after `version` until the watch ends. Return whether the watch worked."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        heard = False
        stream = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=self._timeouts.watch * (1 + self._rng()),
            allow_bookmarks=True,
        )
        try:
            async with asyncio.timeout(self._timeouts.read) as silence:
                self._silence = silence
                async for event in stream:
                    # After `list_again` the watch is to end now, and no event may put that off.
                    if not self._again:
                        silence.reschedule(self._hear() + self._timeouts.read)
                    # Without a version the watch goes on from the last one that is known.
                    self._version = _text(metadata_of(event.object), "resourceVersion") or self._version
                    if event.type is not EventType.BOOKMARK:
                        self._turns.add(event)
                    heard = True
                    await self._turns.pause()
        except TimeoutError:  # no failure: if nothing changes, a server may have nothing to send, not even a bookmark
            log.debug("%s: silent for %.0f s, asking again", self.what, self._timeouts.read)
        finally:
            self._silence = None
        if self.forbidden:
            self._allow()
        # A watch that ends at once without a word is a failure: without a pause the server would be asked as fast as it answers.
        return heard or self._again or loop.time() - started >= self._timeouts.short

    def _apply(self, event: WatchEvent) -> None:
        held = self._hold(event.object)
        if event.type is EventType.DELETED:
            self._mended(held.key)
            self._end(held.key, held if isinstance(held, CachedObject) else None)
        elif isinstance(held, MalformedObject):
            self._leave_out(held)
        else:
            self._take_in(held)

    def _hold(self, obj: Obj) -> CachedObject[T] | MalformedObject:
        """Return what the cache is to hold of `obj`, or what is wrong with it. This is the only place where an object is read."""
        try:
            meta = an_object(an_object(obj, "the object").get("metadata"), "metadata")
            namespace, name = sys.intern(string(meta, "namespace", "metadata")), needed_string(meta, "name", "metadata")
            old = self.cache.get(namespace, name)
            return CachedObject(
                namespace=namespace,
                name=name,
                uid=needed_string(meta, "uid", "metadata"),
                version=needed_string(meta, "resourceVersion", "metadata"),
                deleting=meta.get("deletionTimestamp") is not None,
                value=self._project(obj, old.value if old is not None else None),
                label=self._label(meta),
            )
        except MalformedField as error:
            return self._malformed_object(obj, str(error))
        except Exception as error:  # noqa: BLE001 - a defect of the projection: it is reported, and must not harm other objects
            return self._malformed_object(obj, f"it cannot be read: {type(error).__name__}", error)

    def _malformed_object(self, obj: Any, problem: str, error: Exception | None = None) -> MalformedObject:
        meta = metadata_of(obj)
        return MalformedObject(
            resource=self.resource,
            namespace=_text(meta, "namespace") or self._namespace,
            name=_text(meta, "name"),
            uid=_text(meta, "uid"),
            label=self._label(meta),
            problem=clip(problem),
            error=error,
        )

    def _label(self, meta: Mapping[str, Any]) -> str:
        labels = meta.get("labels")
        return _text(labels, self._label_selector) if isinstance(labels, dict) else ""

    def _take_in(self, held: CachedObject[T]) -> None:
        try:
            old = self.cache.put(held)
        except Exception as error:  # noqa: BLE001 - a defect of an indexer, reported; the cache is as it was
            self._leave_out(self._of_held(held, f"it cannot be indexed: {type(error).__name__}", error))
            return
        # A list repeats what is known, and handlers would wake every job. A value may differ at one version: projections read other caches.
        if old is not None and old.version == held.version and old.value == held.value:
            return
        failed = self._notify(old, held)
        if failed is not None:
            self._leave_out(self._of_held(held, f"its change cannot be handled: {type(failed).__name__}", failed))
        elif problem := self._problem(held.value):
            self._name(self._of_held(held, problem))
        else:
            self._mended(held.key)

    def _take_out(self, key: ObjectKey, last: CachedObject[T] | None = None) -> Exception | None:
        """Take an object out of the cache. `last`: its last state, if that is known. Return what a handler raised."""
        old = self.cache.drop(key)
        return self._notify(last or old, None) if old is not None else None

    def _end(self, key: ObjectKey, last: CachedObject[T] | None) -> None:
        """Note that the object is gone from the server."""
        if (error := self._take_out(key, last)) is not None:
            log.error("%s: the end of %s/%s cannot be handled: this is a defect, please report it", self.what, *key, exc_info=error)

    def _leave_out(self, malformed: MalformedObject) -> None:
        """Treat an object that cannot be used as one that does not exist."""
        self._take_out(malformed.key)
        self._name(malformed)

    def _name(self, malformed: MalformedObject) -> None:
        self._named.add(malformed.key)
        self._malformed.add(malformed)

    def _mended(self, key: ObjectKey) -> None:
        """Note that the object is gone, or nothing is wrong with it any more."""
        if key in self._named:
            self._named.remove(key)
            self._malformed.remove(self.resource, key)

    def _notify(self, old: CachedObject[T] | None, new: CachedObject[T] | None) -> Exception | None:
        """Call every handler. Return what one of them raised."""
        failed: Exception | None = None
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception as error:  # noqa: BLE001 - a defect, reported; the other handlers must learn of the change all the same
                failed = error
        return failed

    def _of_held(self, held: CachedObject[T], problem: str, error: Exception | None = None) -> MalformedObject:
        used = self.cache.get(*held.key) is not None
        return MalformedObject(
            self.resource, held.namespace, held.name, held.uid, held.label, clip(problem), error, used=used and not error
        )


def _text(holder: Mapping[str, Any], key: str) -> str:
    """Return a string of an object that may be malformed, clipped; "" without one."""
    value = holder.get(key)
    return clip(value, 253) if isinstance(value, str) else ""
