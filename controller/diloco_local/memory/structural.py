"""A CRD's openAPIV3Schema, compiled once into a tree that defaulting, pruning and validation walk. Pure.

It knows the keywords that the schemas of this project use. Any other is an error: a real API server would check it, and this one would not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_local.memory.cel import Expression, compile_expression
from diloco_local.memory.values import CHECKED, FORMATS, Check, compile_checks

MISSING: Any = object()
IMPLICIT = ("apiVersion", "kind", "metadata")
"""Fields that every object has at its root, independent of its schema."""
_KNOWN = CHECKED | {
    *("type", "description", "default", "properties", "required", "additionalProperties", "items", "x-kubernetes-validations"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields"),
}
_KNOWN_OF_RULES = {"rule", "message", "fieldPath"}


class UnknownKeyword(ValueError):
    """A schema has a keyword that this API server does not check."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One entry of x-kubernetes-validations."""

    expression: Expression
    message: str
    field_path: str
    """Relative to the rule's node, as Kubernetes writes it: `.a.b`. "" means the node itself."""

    @property
    def transition(self) -> bool:
        return self.expression.uses_old


@dataclass(slots=True, eq=False)
class Node:
    """One node of the schema."""

    type: str = ""
    """"" means any type."""
    preserve: bool = False
    root: bool = False
    properties: dict[str, Node] = field(default_factory=dict)
    additional: Node | None = None
    items: Node | None = None
    required: tuple[str, ...] = ()
    default: Any = MISSING
    list_keys: tuple[str, ...] = ()
    """The keys that identify an item, if the list is a map (x-kubernetes-list-map-keys)."""
    checks: tuple[Check, ...] = ()
    rules: tuple[CompiledRule, ...] = ()
    transitions_below: bool = False
    """Whether this node or one below it has rules that compare with the old object."""
    doubles_below: bool = False
    """Whether this node or one below it is a number, which CEL has to see as a double."""

    def children(self) -> Iterator[Node]:
        yield from self.properties.values()
        if self.additional:
            yield self.additional
        if self.items:
            yield self.items

    def child(self, key: str) -> Node | None:
        return self.properties.get(key) or self.additional

    def item_key(self, item: Any) -> tuple[Any, ...] | None:
        """The key of an item of a list with `list_keys`. None if the item is no map."""
        return tuple(item.get(key) for key in self.list_keys) if isinstance(item, dict) else None


def compile_schema(schema: Mapping[str, Any]) -> Node:
    """Compile an openAPIV3Schema. Raises `UnknownKeyword`; `CelError` and `re.error` for a rule or a pattern that does not compile."""
    return _node(schema, root=True)


def _node(schema: Mapping[str, Any], *, root: bool = False) -> Node:
    _refuse_unknown(schema.keys() - _KNOWN)
    _refuse_unknown({schema["format"]} - FORMATS.keys() if "format" in schema else set())
    node = Node(
        type=schema.get("type", ""),
        preserve=bool(schema.get("x-kubernetes-preserve-unknown-fields")),
        root=root,
        # Every kind has the fields in IMPLICIT at its root, and `meta` checks them. What a schema says of them prunes and defaults nothing.
        properties={name: _node(sub) for name, sub in schema.get("properties", {}).items() if not (root and name in IMPLICIT)},
        additional=_node(schema["additionalProperties"]) if "additionalProperties" in schema else None,
        items=_node(schema["items"]) if "items" in schema else None,
        required=tuple(schema.get("required", ())),
        default=schema.get("default", MISSING),
        list_keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        checks=compile_checks(schema),
        rules=tuple(map(_rule, schema.get("x-kubernetes-validations", ()))),
    )
    node.transitions_below = any(rule.transition for rule in node.rules) or any(c.transitions_below for c in node.children())
    node.doubles_below = node.type == "number" or any(c.doubles_below for c in node.children())
    return node


def _rule(entry: Mapping[str, str]) -> CompiledRule:
    _refuse_unknown(entry.keys() - _KNOWN_OF_RULES)
    return CompiledRule(compile_expression(entry["rule"]), entry["message"], entry.get("fieldPath", ""))


def _refuse_unknown(keywords: set[str]) -> None:
    if keywords:
        raise UnknownKeyword(
            f"the API server in memory does not know {', '.join(sorted(keywords))} of a schema: teach it diloco_local.memory"
        )
