"""Objects for tests of API servers: a custom resource with every kind of schema, pods, config maps, and ways to wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from diloco_operator.kube.client import Client, EventType, NotFound, Obj, Resource, WatchEvent

GROUP = "contract.diloco.dev"
WIDGETS = Resource(GROUP, "v1", "Widget", "widgets")
"""Status subresource, rules."""
NOTES = Resource(GROUP, "v1", "Note", "notes", namespaced=False)
"""Cluster-scoped, no subresources, anything goes."""
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
PODS = Resource("", "v1", "Pod", "pods")
CONFIG_MAPS = Resource("", "v1", "ConfigMap", "configmaps")
SECRETS = Resource("", "v1", "Secret", "secrets")
SERVICES = Resource("", "v1", "Service", "services")
NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
EVENTS = Resource("", "v1", "Event", "events")
SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
VOLUME_CLAIMS = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")

_PART = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "count": {"type": "integer", "default": 1, "minimum": 0},
        "kind": {"type": "string", "maxLength": 20},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(oldSelf.kind) || (has(self.kind) && self.kind == oldSelf.kind)", "message": "a part's kind is immutable"}
    ],
}
_SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 100},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "label": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        "tags": {"type": "array", "maxItems": 4, "items": {"type": "string"}},
        "order": {"type": "array", "items": {"type": "string"}},
        "parts": {
            "type": "array",
            "maxItems": 8,
            "items": _PART,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "x-kubernetes-validations": [{"rule": "self.map(p, p.count).sum() <= 20", "message": "at most 20 in all"}],
        },
        "weights": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
        "ratio": {"type": "number", "x-kubernetes-validations": [{"rule": "self / 2.0 < 1.0", "message": "must be below 2"}]},
        "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}]},
        "replicas": {"type": "integer", "default": 1, "minimum": 0},
        "nested": {
            "type": "object",
            "default": {},
            "properties": {"deep": {"type": "string", "default": "down"}, "other": {"type": "string"}},
        },
    },
    "x-kubernetes-validations": [
        {
            "rule": "self.size <= 50 || self.color == 'blue'",
            "message": "red is for sizes up to 50",
            "fieldPath": ".size",
        },
        {"rule": "self.size >= oldSelf.size", "message": "size cannot shrink"},
    ],
}
_CONDITION = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {"type": {"type": "string"}, "status": {"type": "string"}, "reason": {"type": "string"}},
}
_STATUS = {
    "type": "object",
    "properties": {
        "phase": {"type": "string"},
        "replicas": {"type": "integer"},
        "selector": {"type": "string"},
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    },
}


def definition(resource: Resource, schema: Obj, **version: Any) -> Obj:
    """A CustomResourceDefinition that serves `resource` with `schema`; `version` are further fields of the version."""
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind, "listKind": f"{resource.kind}List"}
    served = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {"group": resource.group, "scope": scope, "names": names, "versions": [served]},
    }


def widget_definition() -> Obj:
    schema = {
        "type": "object",
        "properties": {"spec": _SPEC, "status": _STATUS},
        "x-kubernetes-validations": [{"rule": "size(self.metadata.name) <= 40", "message": "a widget's name has at most 40 characters"}],
    }
    return definition(WIDGETS, schema, subresources={"status": {}}, selectableFields=[{"jsonPath": ".spec.color"}])


def note_definition() -> Obj:
    return definition(NOTES, {"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def widget(namespace: str, name: str = "", *, meta: Obj | None = None, status: Obj | None = None, **spec: Any) -> Obj:
    named = {"name": name} if name else {}
    obj = {
        "apiVersion": WIDGETS.api_version,
        "kind": "Widget",
        "metadata": {"namespace": namespace, **named, **(meta or {})},
        "spec": {"size": 1, **spec},
    }
    return {**obj, "status": status} if status else obj


def config_map(namespace: str, name: str, *, meta: Obj | None = None, **data: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, **(meta or {})},
        "data": data,
    }


def owned_by(owner: Obj, *, controller: bool = False) -> Obj:
    """An ownerReference."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": controller,
    }


async def eventually(check: Callable[[], Awaitable[bool]], what: str, seconds: float = 180.0) -> None:
    """Wait until `check` holds. A real garbage collector discovers new custom resources only every 30 s."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await check():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.05)


async def gone(client: Client, resource: Resource, namespace: str, name: str) -> bool:
    try:
        await client.get(resource, namespace, name)
    except NotFound:
        return True
    return False


async def until_gone(client: Client, resource: Resource, namespace: str, name: str) -> None:
    await eventually(lambda: gone(client, resource, namespace, name), f"{resource.plural}/{name} gone")


async def changes(
    client: Client, resource: Resource, namespace: str, version: str, count: int, *, label_selector: str = "", field_selector: str = ""
) -> list[WatchEvent]:
    """The first `count` events after `version`, bookmarks left out; fewer only if they do not come within 180 s."""
    found: list[WatchEvent] = []
    stream = client.watch(
        resource,
        namespace,
        resource_version=version,
        timeout_seconds=180,
        label_selector=label_selector,
        field_selector=field_selector,
    )
    async for event in stream:
        if event.type is not EventType.BOOKMARK:
            found.append(event)
        if len(found) == count:
            break
    return found


async def bound(client: Client, pod: Obj, node: str) -> str:
    """Create the pod, bind it to the node, and return its uid.

    A real server decides on the grace of a deletion by its watch cache first and keeps that answer when it finds the cache too old
    (`CheckGracefulDelete` writes it into the options). So it deletes a pod at once whose binding has not come there. An event comes from
    the same cache, so after the event of the binding the grace is what the caller asks for.
    """
    made = await client.create(PODS, pod)
    meta = made["metadata"]
    await client.bind(meta["namespace"], meta["name"], node)
    selector = f"metadata.name={meta['name']}"
    await changes(client, PODS, meta["namespace"], meta["resourceVersion"], 1, field_selector=selector)
    uid: str = meta["uid"]
    return uid


def names(objs: list[Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objs]


def seen(events: list[WatchEvent]) -> list[tuple[str, str]]:
    """Type and name of each event."""
    return [(event.type.value, event.object["metadata"]["name"]) for event in events]
