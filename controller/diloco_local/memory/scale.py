"""The scale subresource of custom resources: reads an autoscaling/v1 Scale from an object, and writes it into one."""

from __future__ import annotations

from typing import Any

from diloco_operator.kube.client import BadRequest, Cause, Obj

from diloco_local.memory.kinds import Kind, Scale, at_path
from diloco_local.memory.values import show


def _paths(kind: Kind) -> Scale:
    assert kind.scale is not None  # otherwise the registry rejected the subresource
    return kind.scale


def scale_of(kind: Kind, obj: Obj) -> Obj:
    paths, meta = _paths(kind), obj["metadata"]
    status: Obj = {"replicas": at_path(obj, paths.status_replicas) or 0}
    if paths.selector and (selector := at_path(obj, paths.selector)):
        status["selector"] = selector
    wanted = at_path(obj, paths.spec_replicas)
    if wanted is None:
        raise BadRequest(400, "BadRequest", f'{kind.title} "{meta["name"]}" has no .{".".join(paths.spec_replicas)} to scale')
    copied = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {name: meta[name] for name in copied if name in meta},
        "spec": {"replicas": wanted},
        "status": status,
    }


def replica_causes(kind: Kind, obj: Obj) -> list[Cause]:
    """Return errors of the counts of the subresource. They come in addition to the schema's errors, under the path of the definition, with
    its leading dot."""
    if kind.scale is None:
        return []
    counts = {path: at_path(obj, path) for path in (kind.scale.spec_replicas, kind.scale.status_replicas)}
    return [
        Cause(f".{'.'.join(path)}", f"Invalid value: {show(count)}: should be a non-negative integer")
        for path, count in counts.items()
        if count is not None and (type(count) is not int or not 0 <= count < 2**31)
    ]


def scaled(kind: Kind, obj: Obj, scale: Obj) -> Obj:
    """Return the object with the replicas of `scale`, after a check of its preconditions."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if type(replicas) is not int or replicas < 0:
        raise BadRequest(400, "BadRequest", f"spec.replicas: Invalid value: {replicas!r}: must be an integer greater than or equal to 0")
    meta = dict(obj["metadata"])
    for name in ("resourceVersion", "uid"):
        if wanted := scale["metadata"].get(name):
            meta[name] = wanted
    new: Obj = {**obj, "metadata": meta}
    _set(new, _paths(kind).spec_replicas, replicas)
    return new


def _set(obj: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    """Set a value at a path, with a copy of every map on the way."""
    for name in path[:-1]:
        obj[name] = dict(obj.get(name) or {})
        obj = obj[name]
    obj[path[-1]] = value
