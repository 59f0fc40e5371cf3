"""Label and field selectors in Kubernetes' string form, parsed once into predicates. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diloco_operator.kube.client import BadRequest

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s=!]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s=!]*)$")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    key: str
    values: frozenset[str] | None
    """None if only presence counts."""
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        if self.values is None:
            return (self.key in labels) is not self.negated
        # As in Kubernetes, `!=` and `notin` also select objects without the label.
        return (labels.get(self.key) in self.values) is not self.negated


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold. Without any, everything matches."""

    requirements: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    path: str
    value: str
    negated: bool


@functools.lru_cache(maxsize=1024)
def parse_labels(text: str) -> LabelSelector:
    """Parse `a=b,c!=d,e in (x,y),f,!g`. Raises `BadRequest` that quotes the part it does not understand."""
    return LabelSelector(tuple(_label_requirement(part) for part in _split(text)))


@functools.lru_cache(maxsize=1024)
def parse_fields(text: str) -> tuple[FieldRequirement, ...]:
    """Parse `metadata.name=x,spec.nodeName!=n`. Only the server knows which fields a kind has."""
    requirements = []
    for part in _split(text):
        match = _EQUAL.match(part)
        if not match:
            raise BadRequest(400, "BadRequest", f"field selector {part!r}: expected field=value or field!=value")
        requirements.append(FieldRequirement(match["key"], match["value"], match["op"] == "!="))
    return tuple(requirements)


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _label_requirement(part: str) -> LabelRequirement:
    if match := _SET.match(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        requirement = LabelRequirement(match["key"], values, match["op"] == "notin")
    elif match := _EQUAL.match(part):
        requirement = LabelRequirement(match["key"], frozenset((match["value"],)), match["op"] == "!=")
    elif part.startswith("!"):
        requirement = LabelRequirement(part[1:].strip(), None, negated=True)
    else:
        requirement = LabelRequirement(part, None, negated=False)
    if not _KEY.match(requirement.key):
        raise BadRequest(400, "BadRequest", f"label selector {part!r}: expected key=value, key!=value, key in (a,b), key or !key")
    return requirement
