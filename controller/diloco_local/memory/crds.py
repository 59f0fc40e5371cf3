"""CustomResourceDefinitions: their validation, and the `Kind` for each version."""

from __future__ import annotations

import functools
import json
from typing import Any

from diloco_operator.kube.client import Cause, Obj, Resource

from diloco_local.memory.builtin import CUSTOM_RESOURCES
from diloco_local.memory.kinds import Kind, Scale
from diloco_local.memory.schema import Structural
from diloco_local.memory.structural import ANY, Node

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer of every definition: its objects are deleted first."""


def _default(obj: Obj) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("names"), dict):
        return
    names = spec["names"]
    if isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _initialize(obj: Obj) -> None:
    obj["status"] = {"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []}


def established(obj: Obj, time: str) -> Obj:
    """Return the definition with the status of an established one."""
    spec = obj["spec"]
    accepted = {
        "type": "NamesAccepted",
        "status": "True",
        "lastTransitionTime": time,
        "reason": "NoConflicts",
        "message": "no conflicts found",
    }
    serving = {
        "type": "Established",
        "status": "True",
        "lastTransitionTime": time,
        "reason": "InitialNamesAccepted",
        "message": "the initial names have been accepted",
    }
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    return {**obj, "status": {"conditions": [accepted, serving], "acceptedNames": spec["names"], "storedVersions": stored}}


def _causes(obj: Obj, old: Obj | None) -> list[Cause]:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return [Cause("spec", "Required value")]
    causes = []
    names = spec.get("names") or {}
    for path, value in (("group", spec.get("group")), ("names.plural", names.get("plural")), ("names.kind", names.get("kind"))):
        if not value:
            causes.append(Cause(f"spec.{path}", "Required value"))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        causes.append(Cause("spec.scope", 'Unsupported value: supported values: "Cluster", "Namespaced"'))
    expected = f"{names.get('plural')}.{spec.get('group')}"
    if obj["metadata"]["name"] != expected:
        causes.append(Cause("metadata.name", f'Invalid value: "{obj["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'))
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        causes.append(Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version"))
    for index, version in enumerate(versions):
        causes += _version_causes(version, f"spec.versions[{index}]")
    # Only if all is there: a field that is missing would count as changed, too.
    if old is not None and not causes:
        for name in ("group", "scope"):
            if spec.get(name) != old["spec"].get(name):
                causes.append(Cause(f"spec.{name}", f'Invalid value: "{spec.get(name)}": field is immutable'))
    return causes


def _structural(schema: Obj, path: str) -> Structural:
    """Return the compiled form, whose problems stand below `path`. The same for equal schemas: a definition is checked, and then served."""
    return _compiled(json.dumps(schema), path)


@functools.lru_cache(maxsize=16)
def _compiled(schema: str, path: str) -> Structural:
    return Structural(json.loads(schema), path=path)


def _version_causes(version: Any, path: str) -> list[Cause]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not isinstance(schema, dict):
        return [Cause(f"{path}.schema.openAPIV3Schema", "Required value: schemas are required")]
    causes = list(_structural(schema, f"{path}.schema.openAPIV3Schema").problems)
    if schema.get("type") != "object":
        causes.append(Cause(f"{path}.schema.openAPIV3Schema.type", 'Invalid value: must be "object" at the root'))
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        for name, top in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
            if not str(scale.get(name, "")).startswith(top):
                causes.append(Cause(f"{path}.subresources.scale.{name}", f"Invalid value: must be a path below {top.strip('.')}"))
    return causes


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.removeprefix(".").split(".")) if text else ()


def kinds_of(obj: Obj) -> list[Kind]:
    """Return one kind for each served version of a valid definition."""
    spec = obj["spec"]
    kinds = []
    for index, version in enumerate(spec["versions"]):
        # Also where objects are stored in it: only a served version answers.
        if not version.get("served"):
            continue
        structural = _structural(version["schema"]["openAPIV3Schema"], f"spec.versions[{index}].schema.openAPIV3Schema")
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        kinds.append(
            Kind(
                Resource(
                    spec["group"], version["name"], spec["names"]["kind"], spec["names"]["plural"], namespaced=spec["scope"] == "Namespaced"
                ),
                structural.root,
                structural,
                status="status" in subresources,
                generation=True,
                unconditional_update=False,
                scale=Scale(_path(scale["specReplicasPath"]), _path(scale["statusReplicasPath"]), _path(scale.get("labelSelectorPath", "")))
                if scale
                else None,
                selectable={each["jsonPath"].removeprefix("."): _path(each["jsonPath"]) for each in version.get("selectableFields") or ()},
            )
        )
    return kinds


DEFINITIONS = Kind(
    CUSTOM_RESOURCES,
    Node(
        root=True,
        preserve=True,
        properties={"status": Node(preserve=True, properties={"conditions": Node(list_type="map", list_keys=("type",), items=ANY)})},
    ),
    status=True,
    generation=True,
    unconditional_update=False,
    default=_default,
    initialize=_initialize,
    validate=_causes,
)
