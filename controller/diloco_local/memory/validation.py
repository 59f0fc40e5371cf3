"""Validation of a value against a compiled schema, CEL rules included. Pure."""

from __future__ import annotations

from typing import Any

from diloco_operator.kube.client import Cause

from diloco_local.memory.cel import CelError
from diloco_local.memory.structural import IMPLICIT, MISSING, CompiledRule, Node
from diloco_local.memory.values import invalid, is_number, json_type, show


class Validator:
    """One validation; it collects the causes. With `skip_broken`, rules that read parts with a wrong structure are not evaluated."""

    def __init__(self, *, skip_broken: bool = True) -> None:
        self._skip_broken = skip_broken
        self.causes: list[Cause] = []
        self.from_rules: set[int] = set()
        """Indexes of the causes that come from rules, not from the structure."""
        self._broken: list[str] = []
        """Paths of structural errors, for `skip_broken`."""

    def run(self, node: Node, value: Any, old: Any) -> list[Cause]:
        self._visit(node, value, old, "")
        return self.causes

    def _add(self, path: str, message: str) -> None:
        self.causes.append(Cause(path, message))
        self._broken.append(path)

    def _visit(self, node: Node, value: Any, old: Any, path: str) -> None:
        """Check a value. `old` is MISSING if there is no corresponding old value."""
        # Ratcheting: if unchanged parts were checked again, an object that an older schema took could not be updated any more. The types
        # are compared because 1 == True in Python, but not in JSON.
        if old is not MISSING and value == old and type(value) is type(old):
            if node.transitions_below:
                self._unchanged(node, value, old, path)
            return
        before = len(self._broken)
        if not self._type(node, value, path):
            return
        if value is None:
            return
        for check in node.checks:
            if message := check(value):
                self._add(path, message)
        if isinstance(value, dict):
            self._map(node, value, old, path)
        elif isinstance(value, list):
            self._list(node, value, old, path)
        if node.rules:
            self._rules(node, value, old, path, self._broken[before:], unchanged=False)

    def _unchanged(self, node: Node, value: Any, old: Any, path: str) -> None:
        """Evaluate only the transition rules of an unchanged value."""
        if not node.transitions_below or value is None:
            return
        if isinstance(value, dict):
            for name, each in value.items():
                if (child := node.child(name)) and child.transitions_below:
                    self._unchanged(child, each, old[name], f"{path}.{name}" if path else name)
        elif isinstance(value, list) and node.items:
            for index, each in enumerate(value):
                self._unchanged(node.items, each, old[index], f"{path}[{index}]")
        self._rules(node, value, old, path, [], unchanged=True)

    def _type(self, node: Node, value: Any, path: str) -> bool:
        kind = json_type(value)
        # JSON has only one type of number, so 3.0 is an integer too.
        fits = kind == node.type or (is_number(value) and (node.type == "number" or (node.type == "integer" and value == int(value))))
        if not node.type or fits:
            return True
        shown = f"Invalid value: {show(value)}: must be of type {node.type}" + ("" if kind == "null" else f", not {kind}")
        self._add(path, shown)
        return False

    def _map(self, node: Node, value: dict[str, Any], old: Any, path: str) -> None:
        prefix = f"{path}." if path else ""
        for name in node.required:
            if name not in value:
                self._add(f"{prefix}{name}", "Required value")
        if not node.properties and not node.additional:
            return
        earlier = old if isinstance(old, dict) else {}
        for name, each in value.items():
            if node.root and name in IMPLICIT:
                continue
            child = node.child(name)
            if child is not None:
                self._visit(child, each, earlier.get(name, MISSING), f"{prefix}{name}")

    def _list(self, node: Node, value: list[Any], old: Any, path: str) -> None:
        earlier: dict[Any, Any] = {}
        if node.list_keys:
            self._unique([node.item_key(item) for item in value], path)
            if isinstance(old, list):
                # Match old items by key. By index, each item after an insertion would be compared with another one.
                earlier = {_hashable(node.item_key(item)): item for item in old}
        if node.items is None:
            return
        for index, item in enumerate(value):
            before = earlier.get(_hashable(node.item_key(item)), MISSING) if earlier else MISSING
            self._visit(node.items, item, before, f"{path}[{index}]")

    def _unique(self, keys: list[tuple[Any, ...] | None], path: str) -> None:
        seen = set()
        for index, key in enumerate(keys):
            hashable = _hashable(key)
            if hashable in seen:
                shown = ", ".join(show(part) for part in key or ())
                # Rules are evaluated in spite of this error, as in Kubernetes.
                self.causes.append(Cause(f"{path}[{index}]", f"Duplicate value: {shown}"))
            seen.add(hashable)

    def _rules(self, node: Node, value: Any, old: Any, path: str, broken: list[str], *, unchanged: bool) -> None:
        rules = [rule for rule in node.rules if _due(node, rule, value, old, unchanged=unchanged)]
        if broken and self._skip_broken:
            rules = [rule for rule in rules if not _reads_broken(rule, path, broken)]
        if not rules:
            return
        fields = _read_fields(rules, value)
        seen = to_cel(node, value, fields)
        seen_old = to_cel(node, old, fields) if old is not MISSING and any(rule.transition for rule in rules) else None
        for rule in rules:
            self._rule(rule, value, seen, seen_old, path)

    def _rule(self, rule: CompiledRule, value: Any, seen: Any, seen_old: Any, path: str) -> None:
        at = f"{path}{rule.field_path}".removeprefix(".") if rule.field_path else path
        try:
            result = rule.expression.run(seen, seen_old)
            if result is True:
                return
            if result is not False:
                raise CelError(f"{rule.expression.source!r}: must be a bool, not {result!r:.80}")
        except CelError as error:
            self._add_violation(at, f"rule evaluation error: {error}")
            return
        self._add_violation(at, rule.message if rule.field_path else invalid(value, rule.message))

    def _add_violation(self, path: str, message: str) -> None:
        self.from_rules.add(len(self.causes))
        self.causes.append(Cause(path, message))


def _due(node: Node, rule: CompiledRule, value: Any, old: Any, *, unchanged: bool) -> bool:
    if rule.transition:
        return old is not MISSING
    if unchanged:
        return False
    fields = rule.expression.fields
    if not node.root or fields is None or not isinstance(old, dict):
        return True
    # At the root, evaluate a rule only if a field that it reads has changed. Otherwise a write of status would run all rules about spec.
    return any(value.get(name, MISSING) != old.get(name, MISSING) for name in fields)


def _reads_broken(rule: CompiledRule, path: str, broken: list[str]) -> bool:
    fields = rule.expression.fields
    if fields is None:
        return True
    prefix = f"{path}." if path else ""
    places = tuple(f"{prefix}{name}" for name in fields)
    inside = tuple(f"{place}{mark}" for place in places for mark in ".[")
    return any(at == path or at in places or at.startswith(inside) for at in broken)


def _read_fields(rules: list[CompiledRule], value: Any) -> frozenset[str] | None:
    """The fields of `value` that the rules read: CEL gets only these, which matters for the root and for big maps. None if it needs all."""
    fields: frozenset[str] = frozenset()
    for rule in rules:
        if not isinstance(value, dict) or rule.expression.fields is None:
            return None
        fields |= rule.expression.fields
    return fields


def to_cel(node: Node, value: Any, fields: frozenset[str] | None = None) -> Any:
    """The value for CEL, with the numbers of `number` fields as doubles: JSON writes 1 for 1.0, and CEL cannot add an int to a double.
    `fields`: take only these of a map. None means all."""
    if isinstance(value, dict):
        names = [name for name in value if fields is None or name in fields]
        if not node.doubles_below:
            return {name: value[name] for name in names} if fields is not None else value
        return {name: to_cel(node.child(name) or _PLAIN, value[name]) for name in names}
    if not node.doubles_below:
        return value
    if isinstance(value, list):
        return [to_cel(node.items, each) for each in value] if node.items else value
    return float(value) if is_number(value) else value


_PLAIN = Node(preserve=True)


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple(sorted((name, _hashable(each)) for name, each in key.items()))
    if isinstance(key, (list, tuple)):
        return tuple(_hashable(each) for each in key)
    # True == 1 in Python: the set [1, true] has no duplicates.
    return (type(key).__name__, key) if isinstance(key, bool) else key
