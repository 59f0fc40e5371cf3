"""What a request does to the store, by the rules of the object's kind. Synchronous: each method is one atomic step.

Methods return stored objects. Those are shared with history and watchers, so callers may not change them in place.
"""

from __future__ import annotations

import random as random_module
import uuid
from collections.abc import Callable
from datetime import datetime

from diloco_operator.kube.client import (
    AlreadyExists,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Obj,
    Resource,
    Unavailable,
)

from diloco_local.memory.builtin import NAMESPACES, builtin_kinds
from diloco_local.memory.collector import Collector, stamp
from diloco_local.memory.crds import DEFINITIONS, established, kinds_of
from diloco_local.memory.kinds import Kind
from diloco_local.memory.meta import metadata_causes
from diloco_local.memory.store import Store, Table
from diloco_local.memory.values import show

_SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_SYSTEM_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace", "name")
_IMMUTABLE_METADATA = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Server:
    def __init__(self, *, clock: Callable[[], datetime], random: random_module.Random, window: int) -> None:
        self.store = Store(window, clock)
        self.random = random
        self._clock = clock
        self._served: dict[tuple[str, str, str], Kind] = {}
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._collector = Collector(self.store, clock, self._kinds, self._unregister)
        for kind in (*builtin_kinds(), DEFINITIONS):
            self.register(kind)
        for name in _SYSTEM_NAMESPACES:
            self.create(self.kind(NAMESPACES), {"metadata": {"name": name}})

    # --- kinds --------------------------------------------------------------------------------------------------------
    def register(self, kind: Kind) -> None:
        resource = kind.resource
        self._served[resource.group, resource.version, resource.plural] = kind
        self._kinds[kind.key] = kind
        self.store.table(*kind.key)

    def _unregister(self, crd: Obj) -> None:
        key = (crd["spec"]["group"], crd["spec"]["names"]["plural"])
        self._kinds.pop(key, None)
        for served in [each for each in self._served if (each[0], each[2]) == key]:
            del self._served[served]

    def kind(self, resource: Resource, subresource: str = "") -> Kind:
        kind = self._served.get((resource.group, resource.version, resource.plural))
        if kind is None or (subresource and not (subresource == "status" and kind.status)):
            what = f"{resource.plural}/{subresource}" if subresource else resource.plural
            raise NotFound(404, "NotFound", f"the server could not find the requested resource ({what} in {resource.api_version})")
        return kind

    def keeps_nulls(self, resource: Resource) -> bool:
        """Whether nulls of a received object are kept. The schema of a custom resource gives them a meaning; built-in kinds have none."""
        kind = self._served.get((resource.group, resource.version, resource.plural))
        return kind is not None and kind.structural is not None

    def kind_of(self, obj: Obj) -> Kind:
        for kind in self._served.values():
            if kind.resource.kind == obj["kind"] and kind.resource.api_version == obj["apiVersion"]:
                return kind
        raise NotFound(404, "NotFound", f"no kind {obj['kind']} in {obj['apiVersion']}")

    def table(self, kind: Kind) -> Table:
        return self.store.tables[kind.key]

    def existing(self, kind: Kind, namespace: str, name: str) -> Obj:
        obj = self.table(kind).get(namespace if kind.resource.namespaced else "", name)
        if obj is None:
            raise _not_found(kind, name)
        return obj

    # --- writes -------------------------------------------------------------------------------------------------------
    def create(self, kind: Kind, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create `obj`, which belongs to the server from now on. With `dry_run` nothing is stored."""
        meta = obj["metadata"]
        _check_type(kind, obj)
        self._check_namespace(kind, meta)
        if meta.pop("resourceVersion", ""):
            raise Unavailable(500, "InternalServerError", "resourceVersion should not be set on objects to be created")
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise _invalid(kind, "", [Cause("metadata.name", "Required value: name or generateName is required")])
            meta["name"] = self._generated(self.table(kind), meta.get("namespace", ""), meta["generateName"])
        # These fields are the server's. A manifest that was saved from a cluster would otherwise bring its deletion with it.
        for name in ("selfLink", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta.pop(name, None)
        time = stamp(self._clock())
        meta["uid"] = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        meta["creationTimestamp"] = time
        if kind.generation:
            meta["generation"] = 1
        # A saved status is not true of the new object either.
        if kind.status and not kind.keeps_status_on_create:
            obj.pop("status", None)
        obj = self._checked(kind, {**obj, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind}, None)
        if self.table(kind).get(meta.get("namespace", ""), meta["name"]) is not None:
            raise AlreadyExists(409, "AlreadyExists", f'{kind.title} "{meta["name"]}" already exists')
        if dry_run:
            return obj
        kind.initialize(obj)
        return self._put(kind, established(obj, time) if kind is DEFINITIONS else obj, None)

    def update(self, kind: Kind, new: Obj, old: Obj, subresource: str) -> Obj:
        """Replace `old` by `new`, as far as the (sub)resource may change it. No write if nothing changes."""
        _check_type(kind, new)
        _check_immutable_metadata(kind, new["metadata"], old["metadata"], subresource)
        self._check_preconditions(kind, new["metadata"], old["metadata"])
        new = _merge_writable(kind, new, old, subresource)
        meta, old_meta = new["metadata"], old["metadata"]
        new = self._checked(kind, new, old)
        # No write, so no event: a controller that writes what is stored already would wake itself for ever.
        if new == old:
            return old
        if kind.generation and _spec_changed(kind, new, old):
            meta["generation"] = old_meta["generation"] + 1
        return self._put(kind, new, old)

    def replace(self, kind: Kind, new: Obj, old: Obj, subresource: str) -> Obj:
        """Update with a whole object. For some kinds it must carry a resourceVersion."""
        meta = new["metadata"]
        _check_uid(kind, meta.get("uid"), old["metadata"])
        if not kind.unconditional_update and not meta.get("resourceVersion"):
            raise _invalid(kind, meta["name"], [Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")])
        return self.update(kind, new, old, subresource)

    def delete(self, kind: Kind, obj: Obj, *, grace: int | None, uid: str) -> None:
        _check_uid(kind, uid, obj["metadata"])
        self._collector.delete(self.table(kind), obj, grace=grace)

    def bind(self, kind: Kind, old: Obj, node: str) -> Obj:
        name, spec = old["metadata"]["name"], old["spec"]
        if "deletionTimestamp" in old["metadata"]:
            raise _conflict(kind, name, f"pod {name} is being deleted, cannot be assigned to a host")
        # A second scheduler must not move a pod that a kubelet has started.
        if spec.get("nodeName"):
            raise _conflict(kind, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise _conflict(kind, name, f"pod {name} has non-empty .spec.schedulingGates")
        meta = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        status = self._with_condition(old, "PodScheduled")
        return self.store.put(self.table(kind), {**old, "metadata": meta, "spec": {**spec, "nodeName": node}, "status": status})

    def evict(self, kind: Kind, old: Obj, *, grace: int | None, uid: str) -> None:
        _check_uid(kind, uid, old["metadata"])
        status = self._with_condition(old, "DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting")
        marked = self.store.put(self.table(kind), {**old, "metadata": dict(old["metadata"]), "status": status})
        self._collector.delete(self.table(kind), marked, grace=grace)

    # --- parts of them ------------------------------------------------------------------------------------------------
    def _put(self, kind: Kind, obj: Obj, old: Obj | None) -> Obj:
        stored = self.store.put(self.table(kind), obj)
        if kind is DEFINITIONS:
            for made in kinds_of(stored):
                self.register(made)
        self._collector.written(self.table(kind), stored, old)
        return stored

    def _checked(self, kind: Kind, obj: Obj, old: Obj | None) -> Obj:
        """The object, pruned and with defaults. Raises `Invalid` with all errors, and `BadRequest` for a value of a wrong type."""
        name = obj["metadata"]["name"]
        try:
            causes = metadata_causes(obj, kind.name_rule)
            if kind.structural:
                obj = kind.structural.completed(obj, old)
                causes += kind.structural.violations(obj, old)
            elif old is None:
                kind.default(obj)
                causes += kind.validate(obj)
        except (AttributeError, KeyError, TypeError) as error:
            # A real server decodes metadata and built-in kinds into typed structures first. This one stumbles over wrong types only in
            # its checks.
            raise BadRequest(400, "BadRequest", f"{kind.resource.kind} {name!r} cannot be decoded: {error}") from error
        if causes:
            raise _invalid(kind, name, causes)
        return obj

    def _check_namespace(self, kind: Kind, meta: Obj) -> None:
        namespace = meta.get("namespace", "")
        if not kind.resource.namespaced:
            if namespace:
                raise BadRequest(400, "BadRequest", f"{kind.title} are not namespaced, metadata.namespace must not be set")
            return
        if not namespace:
            raise BadRequest(400, "BadRequest", "an empty namespace may not be set during creation")
        space = self.store.tables["", "namespaces"].get("", namespace)
        if space is None:
            raise NotFound(404, "NotFound", f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in space["metadata"]:
            reason = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Forbidden(403, "Forbidden", f'{kind.title} "{meta.get("name", "")}" is forbidden: {reason}')

    def _check_preconditions(self, kind: Kind, meta: Obj, live: Obj) -> None:
        if meta.get("resourceVersion") and meta["resourceVersion"] != live["resourceVersion"]:
            raise _modified(kind, live["name"])

    def _generated(self, table: Table, namespace: str, base: str) -> str:
        while True:
            name = base[:58] + "".join(self.random.choices(_SUFFIX_LETTERS, k=5))
            if table.get(namespace, name) is None:
                return name

    def _with_condition(self, pod: Obj, type: str, reason: str = "", message: str = "") -> Obj:
        """The pod's status with this condition set to True."""
        status = pod.get("status", {})
        texts = {name: text for name, text in (("reason", reason), ("message", message)) if text}
        others = [each for each in status.get("conditions", ()) if each["type"] != type]
        return {**status, "conditions": [*others, {"type": type, "status": "True", "lastTransitionTime": stamp(self._clock()), **texts}]}


def _check_type(kind: Kind, obj: Obj) -> None:
    resource = kind.resource
    received = (obj.get("apiVersion") or resource.api_version, obj.get("kind") or resource.kind)
    if received != (resource.api_version, resource.kind):
        raise BadRequest(
            400, "BadRequest", f"the object is {received[1]} of {received[0]}, the request is for {resource.kind} of {resource.api_version}"
        )


def _check_immutable_metadata(kind: Kind, meta: Obj, live: Obj, subresource: str) -> None:
    """Check fields that a write may omit but not change. A write of a custom object's status ignores the metadata, even the uid."""
    if subresource and kind.structural is not None:
        return
    changed = [name for name in _IMMUTABLE_METADATA if meta.get(name) not in (None, "", live.get(name))]
    if changed:
        causes = [Cause(f"metadata.{name}", f"Invalid value: {show(meta[name])}: field is immutable") for name in changed]
        raise _invalid(kind, live["name"], causes)


def _merge_writable(kind: Kind, new: Obj, old: Obj, subresource: str) -> Obj:
    """The object with the fields of `new` that the request may write. The other fields are from `old`. Its metadata is a new dict."""
    old_meta = old["metadata"]
    if subresource == "status":
        rest = {key: value for key, value in old.items() if key != "status"}
        return {**rest, **({"status": new["status"]} if "status" in new else {}), "metadata": dict(old_meta)}
    meta = {key: value for key, value in new["metadata"].items() if key not in _SYSTEM_FIELDS and key not in ("selfLink", "managedFields")}
    meta |= {key: old_meta[key] for key in _SYSTEM_FIELDS if key in old_meta}
    meta["resourceVersion"] = old_meta["resourceVersion"]
    if kind.status:
        new = {key: value for key, value in new.items() if key != "status"}
        if "status" in old:
            new["status"] = old["status"]
    return {**new, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": meta}


def _spec_changed(kind: Kind, new: Obj, old: Obj) -> bool:
    apart = {"metadata", "status"} if kind.status else {"metadata"}
    return any(new.get(key) != old.get(key) for key in (new.keys() | old.keys()) - apart)


# --- error answers, in Kubernetes' words -------------------------------------------------------------------------------
def _not_found(kind: Kind, name: str) -> NotFound:
    return NotFound(404, "NotFound", f'{kind.title} "{name}" not found')


def _check_uid(kind: Kind, wanted: str | None, live: Obj) -> None:
    if wanted and wanted != live["uid"]:
        raise _conflict(kind, live["name"], f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {live['uid']}")


def _conflict(kind: Kind, name: str, why: str) -> Conflict:
    return Conflict(409, "Conflict", f'Operation cannot be fulfilled on {kind.title} "{name}": {why}')


def _modified(kind: Kind, name: str) -> Conflict:
    return _conflict(kind, name, "the object has been modified; please apply your changes to the latest version and try again")


def _invalid(kind: Kind, name: str, causes: list[Cause]) -> Invalid:
    resource = kind.resource
    what = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    listed = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    return Invalid(422, "Invalid", f'{what} "{name}" is invalid: {text}', causes)
