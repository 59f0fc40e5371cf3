"""Sets of fields in the FieldsV1 form of metadata.managedFields, and the schema-aware operations on them. Pure.

A set is a tree of dicts: `f:<name>` is a map's field, `k:<keys>` an item of a listType=map list, `v:<value>` an item of a set, `.` the
node itself. An empty dict is a field that is owned as a whole: a scalar or an atomic list.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from diloco_local.memory.structural import ANY, MISSING, Node

type FieldSet = dict[str, Any]

METADATA = Node(
    preserve=True,
    properties={
        "finalizers": Node(list_type="set"),
        "ownerReferences": Node(list_type="map", list_keys=("uid",), items=ANY),
    },
)
_SYSTEM_METADATA = frozenset(
    f"f:{name}"
    for name in (
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    )
)


def child_of(node: Node, name: str) -> Node:
    child = node.child(name)
    if child is not None:
        return child
    return METADATA if node.root and name == "metadata" else ANY


@functools.lru_cache(maxsize=65536)
def _key_string(names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return "k:" + json.dumps(dict(sorted(zip(names, values, strict=True))), separators=(",", ":"), ensure_ascii=False)


def item_names(node: Node, items: list[Any]) -> list[str]:
    """Return the names, in a set, of the items of a list that merges item by item (listType map or set)."""
    if node.list_type == "map":
        return [_key_string(node.list_keys, node.item_key(item) or ()) for item in items]
    return ["v:" + json.dumps(item, separators=(",", ":"), ensure_ascii=False) for item in items]


def merges_by_name(node: Node, value: Any) -> bool:
    return isinstance(value, dict) and node.map_type != "atomic"


def merges_by_item(node: Node, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return node.list_type == "set" or (node.list_type == "map" and all(isinstance(item, dict) for item in value))


LEAF: FieldSet = {}
"""A field that is owned as a whole. One shared dict, since there are many; sets are never changed in place."""


def fields_of(value: Any, node: Node) -> FieldSet:
    """Return every field of a value."""
    if type(value) is dict:
        if node.map_type == "atomic":
            return LEAF
        nested = [name for name, each in value.items() if type(each) in _NESTED]
        if not nested:
            return _flat(tuple(value))
        # A new dict: the one of `_flat` is shared by thousands of objects.
        return _flat(tuple(value)) | {f"f:{name}": fields_of(value[name], child_of(node, name)) for name in nested}
    if merges_by_item(node, value):
        names = item_names(node, value)
        if node.list_type == "set":
            return dict.fromkeys(names, LEAF)
        items = node.items or ANY
        return {name: _item_fields(item, items) for name, item in zip(names, value, strict=True)}
    return LEAF


@functools.lru_cache(maxsize=16384)
def _flat(names: tuple[str, ...]) -> FieldSet:
    """Return the set for a map of scalars. Objects are similar, so one set serves thousands of them."""
    return {f"f:{name}": LEAF for name in names}


_HERE: FieldSet = {".": LEAF}


@functools.lru_cache(maxsize=16384)
def _flat_item(names: tuple[str, ...]) -> FieldSet:
    return {**_HERE, **_flat(names)}


def _item_fields(item: dict[str, Any], node: Node) -> FieldSet:
    """Return the set for an item of a listType=map list: its existence and its fields."""
    if not any(type(each) in _NESTED for each in item.values()):
        return _flat_item(tuple(item))
    return {**_HERE, **fields_of(item, node)}


_NESTED = frozenset((dict, list))


def changed_fields(old: Any, new: Any, node: Node) -> FieldSet | None:
    """Return fields of `new` that `old` lacks or has with another value; None: none. Fields that only `old` has are ignored."""
    if old is MISSING:
        return fields_of(new, node)
    # Who writes a value that is there already does not take it from its owner.
    if old == new:
        return None
    out: FieldSet = {}
    if merges_by_name(node, new) and isinstance(old, dict):
        for name, each in new.items():
            found = changed_fields(old.get(name, MISSING), each, child_of(node, name))
            if found is not None:
                out[f"f:{name}"] = found
        return out or None
    if merges_by_item(node, new) and merges_by_item(node, old):
        earlier = dict(zip(item_names(node, old), old, strict=True))
        items = node.items or ANY
        for name, item in zip(item_names(node, new), new, strict=True):
            before = earlier.get(name, MISSING)
            found = changed_fields(before, item, items)
            if found is not None:
                out[name] = {".": LEAF, **found} if before is MISSING and node.list_type == "map" else found
        return out or None
    return fields_of(new, node)


def without_system_fields(fields: FieldSet) -> FieldSet:
    """Return the fields without those that no manager can own: identity, and fields that only the server writes."""
    out = {name: sub for name, sub in fields.items() if name not in ("f:apiVersion", "f:kind", "f:metadata")}
    if metadata := {name: sub for name, sub in fields.get("f:metadata", {}).items() if name not in _SYSTEM_METADATA}:
        out["f:metadata"] = metadata
    return out


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    out = dict(a)
    for name, sub in b.items():
        out[name] = union(out[name], sub) if name in out else sub
    return out


def subtract(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the fields of `a` that are not in `b`."""
    out: FieldSet = {}
    for name, sub in a.items():
        other = b.get(name)
        if other is None:
            out[name] = sub
        # One set has the field as a whole, the other parts of it, as when an atomic list became a map: neither holds the other.
        elif not sub:
            if other and name != ".":
                out[name] = sub
        elif not other:
            out[name] = sub
        elif rest := subtract(sub, other):
            out[name] = rest
    return out


def common_paths(a: FieldSet, b: FieldSet, path: str = "") -> Iterator[str]:
    """Yield paths of the fields in both sets, as Kubernetes prints them: `.spec.containers[name="x"].image`."""
    for name, sub in a.items():
        other = b.get(name)
        if other is None:
            continue
        if not sub and not other:
            yield path if name == "." else f"{path}{_step(name)}"
        elif sub and other:
            yield from common_paths(sub, other, f"{path}{_step(name)}")


def _step(name: str) -> str:
    if name.startswith("f:"):
        return f".{name[2:]}"
    if name.startswith("k:"):
        keys = json.loads(name[2:])
        return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"
    return f"[={name[2:]}]"


def retain(fields: FieldSet, value: Any, node: Node) -> FieldSet:
    """Return the part of a set whose fields still exist in `value`."""
    if not fields:
        return fields
    out: FieldSet = {}
    if isinstance(value, dict):
        for name, sub in fields.items():
            if name == ".":
                out[name] = sub
            elif name[2:] in value:
                rest = retain(sub, value[name[2:]], child_of(node, name[2:])) if sub else sub
                # A map of which no owned field is left has no owner: kept, its name would stay in managedFields for ever.
                if rest or not sub:
                    out[name] = rest
    elif merges_by_item(node, value):
        items = node.items or ANY
        for name, item in zip(item_names(node, value), value, strict=True):
            sub = fields.get(name)
            if sub is not None:
                out[name] = retain(sub, item, items) if sub else sub
    return out


def merged(live: Any, config: Any, node: Node) -> Any:
    """Return `config` merged into `live`: maps by name, listType=map lists by key, sets as a union; everything else is replaced."""
    if merges_by_name(node, config) and isinstance(live, dict):
        out = dict(live)
        for name, each in config.items():
            out[name] = merged(live[name], each, child_of(node, name)) if name in live else each
        return out
    if merges_by_item(node, config) and merges_by_item(node, live):
        items = node.items or ANY
        by_name = dict(zip(item_names(node, live), live, strict=True))
        for name, item in zip(item_names(node, config), config, strict=True):
            by_name[name] = merged(by_name[name], item, items) if name in by_name else item
        return list(by_name.values())
    return config


def removed(value: Any, fields: FieldSet, kept: FieldSet, node: Node) -> Any:
    """Return `value` without `fields`. `kept`: the fields that some manager still owns. MISSING if nothing is left of a map or list.

    As in Kubernetes, though surprising: an owned list that becomes empty is removed, and an owned map that becomes empty turns into null.
    """
    if isinstance(value, dict):
        out = dict(value)
        for name, sub in fields.items():
            key = name[2:]
            if name == "." or key not in out:
                continue
            rest = removed(out[key], sub, kept.get(name, {}), child_of(node, key)) if sub else MISSING
            if rest is not MISSING:
                out[key] = rest
            elif sub and name in kept and isinstance(out[key], dict):
                out[key] = None
            else:
                del out[key]
        return out or MISSING
    if not merges_by_item(node, value):
        return value
    items, left = node.items or ANY, []
    for name, item in zip(item_names(node, value), value, strict=True):
        sub = fields.get(name)
        if sub is None:
            left.append(item)
        elif name in kept and sub:
            # Another manager owns the item too: it is found by its keys, so they stay.
            keys = {f"f:{key}" for key in node.list_keys}
            left.append(removed(item, {each: below for each, below in sub.items() if each not in keys}, kept[name], items))
        # The manager owns fields of the item and not the item, which stays.
        elif sub and "." not in sub:
            left.append(removed(item, sub, {}, items))
    return left or MISSING
