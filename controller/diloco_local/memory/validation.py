"""Validation of a value against a compiled schema, CEL rules included. Pure."""

from __future__ import annotations

from typing import Any

from diloco_operator.kube.client import Cause

from diloco_local.memory.cel import CelError, escape, optional
from diloco_local.memory.structural import IMPLICIT, MISSING, CompiledRule, Node
from diloco_local.memory.values import invalid, is_number, json_type, parse_bytes, parse_duration, parse_time, show

_PREFIX = {"FieldValueForbidden": "Forbidden: ", "FieldValueRequired": "Required value: ", "FieldValueDuplicate": "Duplicate value: "}
_CONVERT = {"duration": parse_duration, "timestamp": parse_time, "bytes": parse_bytes}


class Validator:
    """One validation; collects the causes. `skip_broken`: rules that read parts with a wrong structure are not evaluated."""

    def __init__(self, *, skip_broken: bool = True) -> None:
        self._skip_broken = skip_broken
        self.causes: list[Cause] = []
        self.from_rules: set[int] = set()
        """Indexes of the causes that come from rules instead of the structure."""
        self._broken: list[str] = []
        """Paths of structural errors: rules that read there are not evaluated."""

    def run(self, node: Node, value: Any, old: Any, *, path: str = "") -> list[Cause]:
        self._visit(node, value, old, path)
        return self.causes

    def _add(self, path: str, message: str) -> None:
        self.causes.append(Cause(path, message))
        self._broken.append(path)

    def _visit(self, node: Node, value: Any, old: Any, path: str) -> None:
        """Visit a value; `old` is MISSING if there is no corresponding old value."""
        # Ratcheting: checked again, an object that an older schema took could not be updated any more. 1 == True in Python, not in JSON.
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
        if node.all_of or node.any_of or node.one_of or node.none_of:
            self._junctors(node, value, path)
        if node.rules:
            self._rules(node, value, old, path, self._broken[before:], unchanged=False)

    def _unchanged(self, node: Node, value: Any, old: Any, path: str) -> None:
        """Evaluate only transition rules for an unchanged value."""
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
        if not node.types:
            return True
        kind = json_type(value)
        if kind == "null":
            if node.nullable:
                return True
        # 3.0 is an integer: JSON has one type of number.
        elif kind in node.types or (is_number(value) and ("number" in node.types or ("integer" in node.types and value == int(value)))):
            return True
        expected = " or ".join(sorted(node.types))
        shown = f"Invalid value: {show(value)}: must be of type {expected}" + ("" if kind == "null" else f", not {kind}")
        self._add(path, shown)
        return False

    def _map(self, node: Node, value: dict[str, Any], old: Any, path: str) -> None:
        prefix = f"{path}." if path else ""
        for name in node.required:
            if name not in value:
                self._add(f"{prefix}{name}", "Required value")
        if not node.properties and not node.additional:
            return
        earlier = old if isinstance(old, dict) and node.map_type != "atomic" else {}
        for name, each in value.items():
            if node.root and name in IMPLICIT:
                continue
            child = node.child(name)
            if child is not None:
                self._visit(child, each, earlier.get(name, MISSING), f"{prefix}{name}")

    def _list(self, node: Node, value: list[Any], old: Any, path: str) -> None:
        earlier: dict[Any, Any] = {}
        if node.list_type == "map":
            self._unique(value, [node.item_key(item) for item in value], path)
            if isinstance(old, list):
                # Only by key: by index, an insertion would compare each item with another one.
                earlier = {_hashable(node.item_key(item)): item for item in old}
        elif node.list_type == "set":
            self._unique(value, value, path)
        if node.items is None:
            return
        for index, item in enumerate(value):
            before = earlier.get(_hashable(node.item_key(item)), MISSING) if earlier else MISSING
            self._visit(node.items, item, before, f"{path}[{index}]")

    def _unique(self, value: list[Any], keys: list[Any], path: str) -> None:
        seen = set()
        for index, key in enumerate(keys):
            hashable = _hashable(key)
            if hashable in seen:
                shown = ", ".join(show(part) for part in key) if isinstance(key, tuple) else show(value[index])
                # Rules are evaluated in spite of this error, as in Kubernetes.
                self.causes.append(Cause(f"{path}[{index}]", f"Duplicate value: {shown}"))
            seen.add(hashable)

    def _junctors(self, node: Node, value: Any, path: str) -> None:
        def fails(sub: Node) -> bool:
            # A validator of its own: the errors of a branch that need not hold are no causes.
            return bool(Validator().run(sub, value, MISSING, path=path))

        for sub in node.all_of:
            self._visit(sub, value, MISSING, path)
        if node.any_of and all(fails(sub) for sub in node.any_of):
            self._add(path, invalid(value, "must validate at least one schema (anyOf)"))
        if node.one_of and sum(not fails(sub) for sub in node.one_of) != 1:
            self._add(path, invalid(value, "must validate one and only one schema (oneOf)"))
        if node.none_of and not fails(node.none_of[0]):
            self._add(path, invalid(value, "must not validate the schema (not)"))

    def _rules(self, node: Node, value: Any, old: Any, path: str, broken: list[str], *, unchanged: bool) -> None:
        rules = [rule for rule in node.rules if _due(node, rule, value, old, unchanged=unchanged)]
        if broken and self._skip_broken:
            rules = [rule for rule in rules if not _reads_broken(rule, path, broken)]
        if not rules:
            return
        fields = _read_fields(node, rules, value)
        seen = to_cel(node, value, fields)
        seen_old = to_cel(node, old, fields) if old is not MISSING and any(rule.transition for rule in rules) else None
        for rule in rules:
            self._rule(rule, value, seen, optional(seen_old, present=old is not MISSING) if rule.optional_old else seen_old, path)

    def _rule(self, rule: CompiledRule, value: Any, seen: Any, seen_old: Any, path: str) -> None:
        at = f"{path}{rule.field_path}".removeprefix(".") if rule.field_path else path
        try:
            result = rule.expression.run(seen, seen_old, with_old=rule.transition)
            if result is True:
                return
            if result is not False:
                raise CelError(f"{rule.expression.source!r}: must be a bool, not {result!r:.80}")
        except CelError as error:
            self._add_violation(at, f"rule evaluation error: {error}")
            return
        message = rule.message
        if rule.message_expression:
            message = _computed_message(rule, seen, seen_old) or message
        if rule.reason in _PREFIX:
            self._add_violation(at, _PREFIX[rule.reason] + message)
        else:
            self._add_violation(at, message if rule.field_path else invalid(value, message))

    def _add_violation(self, path: str, message: str) -> None:
        self.from_rules.add(len(self.causes))
        self.causes.append(Cause(path, message))


def _computed_message(rule: CompiledRule, seen: Any, seen_old: Any) -> str:
    """Return the result of messageExpression; "" if it fails or is not one line of text. Then `message` is used, as in Kubernetes."""
    assert rule.message_expression is not None
    try:
        text = rule.message_expression.run(seen, seen_old, with_old=rule.message_expression.uses_old)
    except CelError:
        return ""
    return text.strip() if isinstance(text, str) and "\n" not in text.strip() else ""


def _due(node: Node, rule: CompiledRule, value: Any, old: Any, *, unchanged: bool) -> bool:
    """Return whether a rule must be evaluated."""
    if rule.transition:
        return old is not MISSING or rule.optional_old
    if unchanged:
        return False
    fields = rule.expression.fields
    if not node.root or fields is None or not isinstance(old, dict):
        return True
    # Otherwise a write to status would run all rules of spec at the root, and vice versa.
    return any(value.get(name, MISSING) != old.get(name, MISSING) for name in fields)


def _reads_broken(rule: CompiledRule, path: str, broken: list[str]) -> bool:
    fields = rule.expression.fields
    if fields is None:
        return True
    prefix = f"{path}." if path else ""
    places = tuple(f"{prefix}{name}" for name in fields)
    inside = tuple(f"{place}{mark}" for place in places for mark in ".[")
    return any(at == path or at in places or at.startswith(inside) for at in broken)


def _read_fields(node: Node, rules: list[CompiledRule], value: Any) -> frozenset[str] | None:
    """Return the fields that the rules read: at the root and in big maps CEL gets only these; None: all."""
    if not isinstance(value, dict):
        return None
    found: frozenset[str] = frozenset()
    for rule in rules:
        for expression in (rule.expression, rule.message_expression):
            if expression is None:
                continue
            if expression.fields is None:
                return None
            found |= expression.fields
    return found


def to_cel(node: Node, value: Any, fields: frozenset[str] | None = None) -> Any:
    """Return a value for CEL: numbers of a `number` field are doubles, durations are durations, names are escaped."""
    if isinstance(value, dict):
        names = [name for name in value if fields is None or escape(name) in fields]
        if not node.converted_below:
            return {name: value[name] for name in names} if fields is not None else value
        return {_seen_name(node, name): to_cel(node.child(name) or _PLAIN, value[name]) for name in names}
    if not node.converted_below:
        return value
    if isinstance(value, list):
        return [to_cel(node.items, each) for each in value] if node.items else value
    if node.convert == "double" and is_number(value):
        return float(value)
    convert = _CONVERT.get(node.convert)
    if convert is None or not isinstance(value, str):
        return value
    try:
        return convert(value)
    except ValueError:
        return value  # the check of the format rejected it already


_PLAIN = Node(preserve=True)


def _seen_name(node: Node, name: str) -> str:
    return escape(name) if name in node.properties else name


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple(sorted((name, _hashable(each)) for name, each in key.items()))
    if isinstance(key, (list, tuple)):
        return tuple(_hashable(each) for each in key)
    # True == 1 in Python: the set [1, true] has no duplicates.
    return (type(key).__name__, key) if isinstance(key, bool) else key
