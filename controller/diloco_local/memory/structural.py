"""A CRD's openAPIV3Schema, compiled once into a tree that defaulting, pruning and validation walk. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco_operator.kube.client import Cause

from diloco_local.memory.cel import CelError, Expression, compile_expression, escape
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


class _Compiler:
    def __init__(self) -> None:
        self.problems: list[Cause] = []

    def problem(self, path: str, message: str) -> None:
        self.problems.append(Cause(path, message))

    def node(self, schema: Any, path: str, *, correlatable: bool, root: bool = False, structural: bool = True) -> Node:
        """Compile a node; `correlatable`: its old value can be found, so rules may use oldSelf."""
        if not isinstance(schema, Mapping):
            # Go on with a node that takes anything: one answer names all errors of a schema.
            self.problem(path, "must be a schema")
            return ANY
        node = Node(root=root)
        self._types(node, schema, path, structural=structural)
        node.required = tuple(schema.get("required", ()))
        node.checks = compile_checks(schema, path, self.problem)
        if "default" in schema:
            node.default = schema["default"]
        self._map(node, schema, path, correlatable=correlatable, structural=structural)
        self._list(node, schema, path, correlatable=correlatable, structural=structural)
        self._junctors(node, schema, path)
        node.rules = tuple(self._rules(schema, path, correlatable=correlatable))
        node.rules_below = bool(node.rules) or any(child.rules_below for child in node.children())
        node.transitions_below = any(rule.transition for rule in node.rules) or any(c.transitions_below for c in node.children())
        node.converted_below = (
            bool(node.convert) or any(escape(name) != name for name in node.properties) or any(c.converted_below for c in node.children())
        )
        return node

    def _types(self, node: Node, schema: Mapping[str, Any], path: str, *, structural: bool) -> None:
        kind = schema.get("type")
        node.nullable = bool(schema.get("nullable"))
        node.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        node.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        if schema.get("x-kubernetes-int-or-string"):
            node.types = frozenset(("integer", "string"))
        elif kind in ("object", "array", "string", "integer", "number", "boolean"):
            node.types = frozenset((kind,))
        elif kind is not None:
            self.problem(f"{path}.type", f"Unsupported value: {kind!r}")
        elif structural and not node.preserve:
            self.problem(f"{path}.type", "Required value: must not be empty for specified object fields")
        by_format = {"duration": "duration", "date-time": "timestamp", "date": "timestamp", "byte": "bytes"}
        # JSON has 1 for 1.0, and CEL adds no int to a double.
        node.convert = "double" if kind == "number" else by_format.get(schema.get("format", ""), "") if kind == "string" else ""

    def _map(self, node: Node, schema: Mapping[str, Any], path: str, *, correlatable: bool, structural: bool) -> None:
        node.map_type = schema.get("x-kubernetes-map-type", "granular")
        below = correlatable and node.map_type != "atomic"
        for name, sub in schema.get("properties", {}).items():
            # These are checked as those of every kind, and what the schema says of them prunes and defaults nothing.
            if node.root and name in IMPLICIT:
                continue
            node.properties[name] = self.node(sub, f"{path}.properties[{name}]", correlatable=below, structural=structural)
        additional = schema.get("additionalProperties")
        if additional is True:
            node.additional = ANY
        elif isinstance(additional, Mapping):
            if node.properties and structural:
                self.problem(f"{path}.additionalProperties", "Forbidden: mutually exclusive with properties")
            node.additional = self.node(additional, f"{path}.additionalProperties", correlatable=below, structural=structural)
        for name in node.required:
            if structural and not (name in node.properties or node.additional or node.preserve or (node.root and name in IMPLICIT)):
                self.problem(f"{path}.required", f"{name!r} is not one of the properties")

    def _list(self, node: Node, schema: Mapping[str, Any], path: str, *, correlatable: bool, structural: bool) -> None:
        node.list_type = schema.get("x-kubernetes-list-type", "atomic")
        node.list_keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
        if node.list_type not in ("atomic", "set", "map"):
            self.problem(f"{path}.x-kubernetes-list-type", f"Unsupported value: {node.list_type!r}")
        if "items" in schema:
            # In other lists nothing tells which item it was before: `oldSelf` could be that of another one.
            below = correlatable and node.list_type == "map"
            node.items = self.node(schema["items"], f"{path}.items", correlatable=below, structural=structural)
        elif structural and "array" in node.types:
            self.problem(f"{path}.items", "Required value: must be specified")
        if node.list_type != "map":
            return
        if not node.list_keys:
            self.problem(f"{path}.x-kubernetes-list-map-keys", 'Required value: needed with list type "map"')
        for key in node.list_keys:
            child = node.items.properties.get(key) if node.items else None
            if child is None:
                self.problem(f"{path}.x-kubernetes-list-map-keys", f"{key!r} is not a property of the items")
                continue
            # An item without the key and one that names its default are one item: as two they could stand in one list.
            if child.default is not MISSING:
                node.key_defaults[key] = child.default
            elif structural and node.items and key not in node.items.required:
                self.problem(f"{path}.items.properties[{key}].default", "Required value: a list map key must be required or have a default")

    def _junctors(self, node: Node, schema: Mapping[str, Any], path: str) -> None:
        def several(name: str) -> tuple[Node, ...]:
            # Not structural: the nodes around it give types and fields, and these only add conditions.
            subs = enumerate(schema.get(name, ()))
            return tuple(self.node(sub, f"{path}.{name}[{index}]", correlatable=False, structural=False) for index, sub in subs)

        node.all_of, node.any_of, node.one_of = several("allOf"), several("anyOf"), several("oneOf")
        if "not" in schema:
            node.none_of = (self.node(schema["not"], f"{path}.not", correlatable=False, structural=False),)

    def _rules(self, schema: Mapping[str, Any], path: str, *, correlatable: bool) -> Iterator[CompiledRule]:
        for index, entry in enumerate(schema.get("x-kubernetes-validations", ())):
            at = f"{path}.x-kubernetes-validations[{index}]"
            try:
                expression = compile_expression(entry["rule"])
                message_expression = compile_expression(entry["messageExpression"]) if entry.get("messageExpression") else None
            except CelError as error:
                self.problem(f"{at}.rule", f"compilation failed: {error}")
                continue
            except KeyError:
                self.problem(f"{at}.rule", "Required value")
                continue
            if expression.uses_old and not correlatable:
                self.problem(f"{at}.rule", "oldSelf cannot be used on uncorrelatable parts of the schema (below an atomic or set list)")
            yield CompiledRule(
                expression,
                str(entry.get("message") or f"failed rule: {entry['rule'].strip()}"),
                message_expression,
                entry.get("reason", "FieldValueInvalid"),
                entry.get("fieldPath", ""),
                bool(entry.get("optionalOldSelf")),
            )


def compile_schema(schema: Mapping[str, Any], *, path: str = "openAPIV3Schema") -> tuple[Node, list[Cause]]:
    """Return the tree, and the errors of the schema itself (not structural, rules that do not compile)."""
    compiler = _Compiler()
    node = compiler.node(schema, path, correlatable=True, root=True)
    return node, compiler.problems
