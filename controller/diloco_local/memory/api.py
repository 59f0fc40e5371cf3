"""`MemoryApi`: the verbs of an API server. kube/client.py says what they promise, and tests/contract tests that.

See docs/decisions/0050-local-pods-and-nodes.md.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from diloco_operator.kube.client import (
    BadRequest,
    EventType,
    Gone,
    Obj,
    ObjList,
    Resource,
    Unavailable,
    WatchEvent,
)
from diloco_operator.kube.pods import PODS
from diloco_operator.kube.selectors import parse_fields, parse_labels

from diloco_local.memory.copy_json import copy_json, copy_json_without_nulls
from diloco_local.memory.crds import DEFINITIONS, kinds_of
from diloco_local.memory.kinds import Kind, at_path
from diloco_local.memory.server import Server
from diloco_local.memory.watch import WatchOptions, watch_table

type Hook = Callable[[str, Resource, str, str], None]
"""`hook(verb, resource, namespace, name)`. The verb is get, list, watch, create, update, patch, delete, bind or evict. May raise."""

WRITE_VERBS = frozenset(("create", "update", "patch", "delete", "bind", "evict"))
_MAX_CONTINUED = 256


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryApi:
    """An API server in memory, for one event loop. Implements `kube.client.Client`.

    The caller may change the objects that it gets. They have no metadata.managedFields, since there is no server-side apply. `writes`
    counts the writes that took effect. Time-outs and bookmarks of watches use the event loop's clock.

    Args:
        clock: gives the time of every timestamp, timezone-aware
        random: makes uids and generated names; with a seed they repeat
        window: most changes of each kind that are kept, so that watches can begin at them; see also `store.KEPT`
        before: called before every request, reads too; an error from it rejects the request
        after: called after every request but watch; an error from it loses the answer, although the request took effect
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = _now,
        random: random_module.Random | None = None,
        window: int = 100_000,
        bookmark_seconds: float = 60.0,
        before: Hook | None = None,
        after: Hook | None = None,
    ) -> None:
        self.before = before
        self.after = after
        self.writes = 0
        # Uids must be unique, not secret.
        self._server = Server(clock=clock, random=random or random_module.Random(), window=window)  # noqa: S311
        self._bookmark_seconds = bookmark_seconds
        self._continued: OrderedDict[str, tuple[str, list[Obj]]] = OrderedDict()
        self._interruptions = 0

    # --- reads --------------------------------------------------------------------------------------------------------
    async def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> Obj:
        self._enter("get", resource, namespace, name)
        kind = self._server.kind(resource, subresource)
        obj = self._server.existing(kind, namespace, name)
        answer: Obj = copy_json(obj)
        self._leave("get", resource, namespace, name)
        return answer

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
        self._enter("list", resource, namespace, "")
        kind = self._server.kind(resource)
        if continue_token:
            continued = self._continued.get(continue_token)
            if continued is None:
                raise Gone(410, "Expired", "The provided continue parameter is too old to display a consistent list result. List again.")
            version, objs = continued
        else:
            matches = selection(kind, label_selector, field_selector)
            objs = [obj for obj in self._server.table(kind).all(namespace) if matches(obj)]
            version = str(self._server.store.version)
        token = ""
        if limit and len(objs) > limit:
            token = f"{version}.{self._server.random.getrandbits(64):x}"
            self._continued[token] = (version, objs[limit:])
            if len(self._continued) > _MAX_CONTINUED:
                self._continued.popitem(last=False)
            objs = objs[:limit]
        self._leave("list", resource, namespace, "")
        return ObjList([copy_json(obj) for obj in objs], version, token)

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
        self._enter("watch", resource, namespace, "")
        store, kind = self._server.store, self._server.kind(resource)
        try:
            version = int(resource_version or 0)
        except ValueError:
            raise BadRequest(400, "BadRequest", f"invalid resource version {resource_version!r}") from None
        begun = self._interruptions

        def bookmark(at: int) -> WatchEvent:
            meta = {"resourceVersion": str(at)}
            return WatchEvent(EventType.BOOKMARK, {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})

        def broken() -> Unavailable | None:
            return Unavailable(503, "ServiceUnavailable", "connection lost") if self._interruptions > begun else None

        options = WatchOptions(
            namespace,
            selection(kind, label_selector, field_selector),
            version,
            timeout_seconds,
            bookmark if allow_bookmarks else None,
            self._bookmark_seconds,
        )
        async for event in watch_table(store, self._server.table(kind), options, broken):
            yield event

    # --- writes -------------------------------------------------------------------------------------------------------
    async def create(
        self, resource: Resource, obj: Obj, *, field_manager: str = "", metadata_only: bool = False, dry_run: bool = False
    ) -> Obj:
        received, namespace, name = _received_whole(obj, nulls=self._server.keeps_nulls(resource))
        kind = await self._begin("create", resource, namespace, name)
        stored = self._server.create(kind, received, dry_run=dry_run)
        answer = _answered(stored, metadata_only=metadata_only)
        if dry_run:
            self._leave("create", resource, namespace, name)
            return answer
        return self._answer("create", resource, namespace, stored["metadata"]["name"], answer)

    async def update(
        self, resource: Resource, obj: Obj, *, subresource: str = "", field_manager: str = "", metadata_only: bool = False
    ) -> Obj:
        received, namespace, name = _received_whole(obj, nulls=self._server.keeps_nulls(resource))
        kind = await self._begin("update", resource, namespace, name, subresource)
        old = self._server.existing(kind, namespace, name)
        stored = self._server.replace(kind, received, old, subresource)
        return self._answer("update", resource, namespace, name, _answered(stored, metadata_only=metadata_only))

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
        received = _received(patch, nulls=True)
        kind = await self._begin("patch", resource, namespace, name, subresource)
        old = self._server.existing(kind, namespace, name)
        new = merge_patch(old, received)
        if not isinstance(new.get("metadata"), dict):
            raise BadRequest(400, "BadRequest", "metadata must be a map")
        stored = self._server.update(kind, new, old, subresource)
        return self._answer("patch", resource, namespace, name, _answered(stored, metadata_only=metadata_only))

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> None:
        kind = await self._begin("delete", resource, namespace, name)
        obj = self._server.existing(kind, namespace, name)
        self._server.delete(kind, obj, grace=grace_seconds, uid=uid)
        self._answer("delete", resource, namespace, name, {})

    async def bind(self, namespace: str, name: str, node: str) -> None:
        kind = await self._begin("bind", PODS, namespace, name)
        self._server.bind(kind, self._server.existing(kind, namespace, name), node)
        self._answer("bind", PODS, namespace, name, {})

    async def evict(self, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        """Evict a pod. Nothing can block that: this server has no PodDisruptionBudgets."""
        kind = await self._begin("evict", PODS, namespace, name)
        self._server.evict(kind, self._server.existing(kind, namespace, name), grace=grace_seconds, uid=uid)
        self._answer("evict", PODS, namespace, name, {})

    # --- for tests and the embedded default ---------------------------------------------------------------------------
    def compact(self) -> None:
        """Compact all history, as etcd does after a while: older versions and continue tokens are `Gone` then."""
        self._server.store.compact()
        self._continued.clear()

    def interrupt_watches(self) -> None:
        """End every open watch, as a restart of the server does: each raises `Unavailable`."""
        self._interruptions += 1
        self._server.store.wake()

    def dump(self) -> dict[str, Any]:
        """The whole state as JSON, for `restore`."""
        store = self._server.store
        objects = [copy_json(obj) for table in store.tables.values() for obj in table.all()]
        return {"resourceVersion": store.version, "objects": objects}

    @classmethod
    def restore(
        cls,
        state: Mapping[str, Any],
        *,
        clock: Callable[[], datetime] = _now,
        random: random_module.Random | None = None,
        before: Hook | None = None,
        after: Hook | None = None,
    ) -> MemoryApi:
        """A server that continues from a `dump()`. Its history is compacted, so watches must list again."""
        api = cls(clock=clock, random=random, before=before, after=after)
        server, store = api._server, api._server.store
        namespaces = store.tables["", "namespaces"]
        for obj in [*namespaces.all()]:
            store.remove(namespaces, obj)
        objects: list[Obj] = [copy_json(obj) for obj in state["objects"]]
        for obj in sorted(objects, key=lambda each: each["kind"] != DEFINITIONS.resource.kind):
            kind = server.kind_of(obj)
            if kind is DEFINITIONS:
                for defined in kinds_of(obj):
                    server.register(defined)
            # The CRD may have got fields since the object was stored. API servers, too, fill in defaults when they read from etcd.
            store.load(server.table(kind), kind.structural.completed(obj) if kind.structural else obj)
        store.version = int(state["resourceVersion"])
        api.compact()
        return api

    # --- around every request -----------------------------------------------------------------------------------------
    async def _begin(self, verb: str, resource: Resource, namespace: str, name: str, subresource: str = "") -> Kind:
        """Let other tasks run before a write, as they do while a request travels. The write itself is one atomic step."""
        await asyncio.sleep(0)
        self._enter(verb, resource, namespace, name)
        return self._server.kind(resource, subresource)

    def _answer(self, verb: str, resource: Resource, namespace: str, name: str, answer: Obj) -> Obj:
        self.writes += 1
        self._leave(verb, resource, namespace, name)
        return answer

    def _enter(self, verb: str, resource: Resource, namespace: str, name: str) -> None:
        if self.before:
            self.before(verb, resource, namespace, name)

    def _leave(self, verb: str, resource: Resource, namespace: str, name: str) -> None:
        if self.after:
            self.after(verb, resource, namespace, name)


def _received(obj: Obj, *, nulls: bool) -> Obj:
    """The server's own copy of what a client sent, without nulls unless `nulls`. Raises `BadRequest` if it is not JSON or not a map."""
    try:
        copy: Obj = copy_json(obj) if nulls else copy_json_without_nulls(obj)
    except TypeError as error:
        raise BadRequest(400, "BadRequest", f"the object is not JSON: {error}") from error
    if not isinstance(copy, dict) or not isinstance(copy.get("metadata") or {}, dict):
        raise BadRequest(400, "BadRequest", "the object and its metadata must be maps")
    return copy


def _received_whole(obj: Obj, *, nulls: bool) -> tuple[Obj, str, str]:
    """The server's own copy of a whole object, its namespace and its name."""
    copy = _received(obj, nulls=nulls)
    meta = copy["metadata"] = copy_json_without_nulls(copy.get("metadata") or {})
    return copy, meta.get("namespace", ""), meta.get("name", "")


def _answered(stored: Obj, *, metadata_only: bool) -> Obj:
    """A copy of a stored object for the caller. With `metadata_only`, what a server answers to such a request."""
    if metadata_only:
        stored = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": stored["metadata"]}
    answer: Obj = copy_json(stored)
    return answer


# --- JSON merge patch, RFC 7386 ---------------------------------------------------------------------------------------
def merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` merged in: null removes, maps merge, everything else replaces. Changes neither of them."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


# --- Selectors of a request as one predicate over stored objects ------------------------------------------------------
_EVERYWHERE = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}
_NO_LABELS: Mapping[str, str] = {}


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def selection(kind: Kind, label_selector: str, field_selector: str) -> Callable[[Obj], bool]:
    """A predicate for both selectors. Raises `BadRequest` if one cannot be parsed, or for a field that the kind does not offer."""
    labels = parse_labels(label_selector)
    fields = []
    for requirement in parse_fields(field_selector):
        path = _EVERYWHERE.get(requirement.path) or kind.selectable.get(requirement.path)
        if path is None:
            offered = ", ".join([*_EVERYWHERE, *kind.selectable])
            raise BadRequest(400, "BadRequest", f"field label not supported: {requirement.path!r}; {kind.title} have {offered}")
        fields.append((path, requirement.value, requirement.negated))
    if not fields and not labels.requirements:
        return lambda obj: True

    def matches(obj: Obj) -> bool:
        return labels.matches(obj["metadata"].get("labels") or _NO_LABELS) and all(
            (_as_text(at_path(obj, path)) == value) is not negated for path, value, negated in fields
        )

    return matches
