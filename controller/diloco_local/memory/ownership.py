"""Who owns which field: metadata.managedFields through updates and server-side apply. Pure."""

from __future__ import annotations

from typing import Any

from diloco_operator.kube.client import Cause, Conflict, Obj

from diloco_local.memory.fieldset import (
    FieldSet,
    changed_fields,
    common_paths,
    fields_of,
    merged,
    removed,
    retain,
    subtract,
    union,
    without_system_fields,
)
from diloco_local.memory.structural import MISSING, Node

type Entries = list[dict[str, Any]]


def entry(manager: str, operation: str, api_version: str, subresource: str, time: str, fields: FieldSet) -> dict[str, Any]:
    made = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if subresource:
        made["subresource"] = subresource
    return made


def after_create(obj: Obj, node: Node, manager: str, time: str) -> Entries:
    return [entry(manager, "Update", obj["apiVersion"], "", time, without_system_fields(fields_of(obj, node)))]


def after_update(old: Obj, new: Obj, node: Node, manager: str, subresource: str, time: str) -> Entries:
    """Return fields that an update changed belong to its manager alone. Fields that it removed belong to no manager."""
    entries: Entries = old["metadata"].get("managedFields", [])
    changed = without_system_fields(changed_fields(old, new, node) or {})
    out: Entries = []
    mine = None
    for each in entries:
        if _is(each, manager, "Update", subresource):
            mine = each
            continue
        left = retain(subtract(each["fieldsV1"], changed), new, node)
        if left:
            out.append({**each, "fieldsV1": left})
    before = mine["fieldsV1"] if mine else {}
    fields = retain(union(before, changed), new, node)
    if fields:
        fresh = mine is None or bool(changed)
        out.append(entry(manager, "Update", new["apiVersion"], subresource, time if fresh or mine is None else mine["time"], fields))
    return out


def apply(
    live: Obj | None, config: Obj, node: Node, manager: str, subresource: str, time: str, *, force: bool, name: str
) -> tuple[Obj, Entries]:
    """Apply `config` server-side, which has only the fields that the manager wants to own: the merged object and its managedFields.

    Raises `Conflict` with a cause for each field and manager, unless `force`.
    """
    wanted = without_system_fields(fields_of(config, node))
    entries: Entries = live["metadata"].get("managedFields", []) if live else []
    changed = without_system_fields(changed_fields(live, config, node) or {}) if live else {}
    mine = next((each for each in entries if _is(each, manager, "Apply", subresource)), None)
    others = [each for each in entries if each is not mine]
    conflicts = [cause for each in others for cause in _conflicts(each, changed)]
    if conflicts and not force:
        listed = "; ".join(f"{cause.field}: {cause.message}" for cause in conflicts)
        count = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
        raise Conflict(409, "Conflict", f"Apply of {name} failed with {count}: {listed}", conflicts)
    if conflicts:
        others = [{**each, "fieldsV1": subtract(each["fieldsV1"], changed)} for each in others]
    result = merged(live, config, node) if live else config
    if mine:
        kept: FieldSet = wanted
        for each in others:
            kept = union(kept, each["fieldsV1"])
        if dropped := subtract(mine["fieldsV1"], kept):
            rest = removed(result, dropped, kept, node)
            result = {} if rest is MISSING else rest
            others = [{**each, "fieldsV1": retain(each["fieldsV1"], result, node)} for each in others]
    same = mine is not None and mine["fieldsV1"] == wanted
    out = [each for each in others if each["fieldsV1"]]
    if wanted:
        made = entry(manager, "Apply", config["apiVersion"], subresource, mine["time"] if mine and same else time, wanted)
        out.insert(entries.index(mine) if mine and mine in entries and len(out) >= entries.index(mine) else len(out), made)
    return result, out


def _is(each: dict[str, Any], manager: str, operation: str, subresource: str) -> bool:
    return bool((each["manager"], each["operation"], each.get("subresource", "")) == (manager, operation, subresource))


def _conflicts(each: dict[str, Any], changed: FieldSet) -> list[Cause]:
    where = f' with subresource "{each["subresource"]}"' if each.get("subresource") else ""
    message = f'conflict with "{each["manager"]}"{where} using {each["apiVersion"]}'
    return [Cause(path, message) for path in common_paths(changed, each["fieldsV1"])]
