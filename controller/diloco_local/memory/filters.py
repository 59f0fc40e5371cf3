"""Selectors of a request as one predicate over stored objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diloco_operator.kube.client import BadRequest, Obj
from diloco_operator.kube.selectors import parse_fields, parse_labels

from diloco_local.memory.kinds import Kind, at_path

_EVERYWHERE = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}
_NO_LABELS: Mapping[str, str] = {}


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def selection(kind: Kind, label_selector: str, field_selector: str) -> Callable[[Obj], bool]:
    """Raise `BadRequest` for a selector that cannot be parsed, or a field that the kind does not offer."""
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
