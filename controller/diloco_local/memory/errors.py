"""Error answers of an API server, in Kubernetes' words."""

from __future__ import annotations

from diloco_operator.kube.client import Cause, Conflict, Invalid, NotFound

from diloco_local.memory.kinds import Kind


def not_found(kind: Kind, name: str) -> NotFound:
    return NotFound(404, "NotFound", f'{kind.title} "{name}" not found')


def conflict(kind: Kind, name: str, why: str) -> Conflict:
    return Conflict(409, "Conflict", f'Operation cannot be fulfilled on {kind.title} "{name}": {why}')


def modified(kind: Kind, name: str) -> Conflict:
    return conflict(kind, name, "the object has been modified; please apply your changes to the latest version and try again")


def invalid(kind: Kind, name: str, causes: list[Cause]) -> Invalid:
    resource = kind.resource
    what = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    listed = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    return Invalid(422, "Invalid", f'{what} "{name}" is invalid: {text}', causes)
