"""A CRD's openAPIV3Schema, compiled once into a tree that defaulting, pruning and validation walk. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_local.memory.cel import Expression, compile_expression, escape
from diloco_local.memory.values import Check, compile_checks

MISSING: Any = object()
IMPLICIT = ("apiVersion", "kind", "metadata")
"""Fields that every object has at its root, independent of its schema."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One entry of x-kubernetes-validations."""

    expression: Expression
    message: str
    message_expression: Expression | None
    reason: str
    field_path: str
    """Relative, as Kubernetes writes it: `.a.b`."""
    optional_old: bool

    @property
    def transition(self) -> bool:
        return self.expression.uses_old


@dataclass(slots=True, eq=False)
class Node:
    """One node of the schema. `types` empty: any type."""

    types: frozenset[str] = frozenset()
    nullable: bool = False
    preserve: bool = False
    embedded: bool = False
    root: bool = False
    properties: dict[str, Node] = field(default_factory=dict)
    additional: Node | None = None
    items: Node | None = None
    required: tuple[str, ...] = ()
    default: Any = MISSING
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()
    key_defaults: dict[str, Any] = field(default_factory=dict)
    map_type: str = "granular"
    checks: tuple[Check, ...] = ()
    rules: tuple[CompiledRule, ...] = ()
    all_of: tuple[Node, ...] = ()
    any_of: tuple[Node, ...] = ()
    one_of: tuple[Node, ...] = ()
    none_of: tuple[Node, ...] = ()
    rules_below: bool = False
    """Whether this node or one below it has rules."""
    transitions_below: bool = False
    """Whether some of these rules compare with the old object."""
    convert: str = ""
    """How CEL sees a value: "double", "duration", "timestamp", "bytes", "" as it is."""
    converted_below: bool = False

    def children(self) -> Iterator[Node]:
        yield from self.properties.values()
        if self.additional:
            yield self.additional
        if self.items:
            yield self.items

    def child(self, key: str) -> Node | None:
        return self.properties.get(key) or self.additional

    def item_key(self, item: Any) -> tuple[Any, ...] | None:
        """Return the key of an item of a listType=map list; None: it has none."""
        if not isinstance(item, dict):
            return None
        return tuple(item.get(key, self.key_defaults.get(key)) for key in self.list_keys)


ANY = Node(preserve=True)
"""For parts without a schema: maps merge by key, lists are replaced as a whole."""


def compile_schema(schema: Mapping[str, Any]) -> Node:
    """Compile an openAPIV3Schema. What a real API server refuses in a schema, such as a missing type, is not looked for; `CelError` and
    `re.error` say that a rule or a pattern does not compile."""
    return _node(schema, root=True)


def _node(schema: Mapping[str, Any], *, root: bool = False) -> Node:
    node = Node(root=root)
    _types(node, schema)
    node.required = tuple(schema.get("required", ()))
    node.checks = compile_checks(schema)
    if "default" in schema:
        node.default = schema["default"]
    _map(node, schema)
    _list(node, schema)
    node.all_of, node.any_of, node.one_of = (tuple(map(_node, schema.get(name, ()))) for name in ("allOf", "anyOf", "oneOf"))
    if "not" in schema:
        node.none_of = (_node(schema["not"]),)
    node.rules = tuple(map(_rule, schema.get("x-kubernetes-validations", ())))
    node.rules_below = bool(node.rules) or any(child.rules_below for child in node.children())
    node.transitions_below = any(rule.transition for rule in node.rules) or any(c.transitions_below for c in node.children())
    node.converted_below = (
        bool(node.convert) or any(escape(name) != name for name in node.properties) or any(c.converted_below for c in node.children())
    )
    return node


def _types(node: Node, schema: Mapping[str, Any]) -> None:
    kind = schema.get("type")
    node.nullable = bool(schema.get("nullable"))
    node.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    node.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    if schema.get("x-kubernetes-int-or-string"):
        node.types = frozenset(("integer", "string"))
    elif kind is not None:
        node.types = frozenset((kind,))
    by_format = {"duration": "duration", "date-time": "timestamp", "date": "timestamp", "byte": "bytes"}
    # JSON has 1 for 1.0, and CEL adds no int to a double.
    node.convert = "double" if kind == "number" else by_format.get(schema.get("format", ""), "") if kind == "string" else ""


def _map(node: Node, schema: Mapping[str, Any]) -> None:
    node.map_type = schema.get("x-kubernetes-map-type", "granular")
    for name, sub in schema.get("properties", {}).items():
        # These are checked as those of every kind, and what the schema says of them prunes and defaults nothing.
        if node.root and name in IMPLICIT:
            continue
        node.properties[name] = _node(sub)
    additional = schema.get("additionalProperties")
    if additional is True:
        node.additional = ANY
    elif isinstance(additional, Mapping):
        node.additional = _node(additional)


def _list(node: Node, schema: Mapping[str, Any]) -> None:
    node.list_type = schema.get("x-kubernetes-list-type", "atomic")
    node.list_keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    if "items" in schema:
        node.items = _node(schema["items"])
        # An item without the key and one that names its default are one item: as two they could stand in one list.
        children = ((key, node.items.properties.get(key)) for key in node.list_keys)
        node.key_defaults = {key: child.default for key, child in children if child is not None and child.default is not MISSING}


def _rule(entry: Mapping[str, Any]) -> CompiledRule:
    return CompiledRule(
        compile_expression(entry["rule"]),
        str(entry.get("message") or f"failed rule: {entry['rule'].strip()}"),
        compile_expression(entry["messageExpression"]) if entry.get("messageExpression") else None,
        entry.get("reason", "FieldValueInvalid"),
        entry.get("fieldPath", ""),
        bool(entry.get("optionalOldSelf")),
    )
