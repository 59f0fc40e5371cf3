"""Schemas beyond the contract of servers: messages and corner cases."""

from __future__ import annotations

from typing import Any

import pytest
from diloco_local.memory.cel import CelError
from diloco_local.memory.schema import Structural
from diloco_local.memory.structural import UnknownKeyword
from diloco_operator.kube.client import Obj


def _object(**properties: Any) -> Obj:
    return {"type": "object", "properties": properties}


def _rule(rule: str, message: str = "broken") -> list[Obj]:
    return [{"rule": rule, "message": message}]


def _found(shape: Obj, obj: Obj, old: Obj | None = None) -> list[tuple[str, str]]:
    return [(cause.field, cause.message) for cause in Structural(shape).validate(obj, old)]


def test_messages_have_the_value_and_what_it_should_be() -> None:
    shape = _object(a={"type": "integer", "maximum": 3}, b={"type": "string", "enum": ["x", "y"]}, c={"type": "string"})
    assert _found(shape, {"a": 5, "b": "z", "c": 1}) == [
        ("a", "Invalid value: 5: must be less than or equal to 3"),
        ("b", 'Unsupported value: "z": supported values: "x", "y"'),
        ("c", "Invalid value: 1: must be of type string, not integer"),
    ]


@pytest.mark.parametrize(
    ("shape", "right", "wrong"),
    [
        ({"type": "integer", "exclusiveMinimum": True, "minimum": 1}, 2, 1),
        ({"type": "number", "exclusiveMaximum": True, "maximum": 1}, 0.9, 1),
        ({"type": "integer"}, 3.0, 3.5),
        ({"type": "integer", "format": "int64"}, 2**63 - 1, 2**63),
        ({"type": "boolean"}, False, 0),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, [1], []),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z", "2026-01-02"),
        ({"type": "string", "pattern": "^a$"}, "a", "a\n"),
    ],
)
def test_value_checks(shape: Obj, right: Any, wrong: Any) -> None:
    whole = _object(v=shape)
    assert _found(whole, {"v": right}) == []
    assert [field for field, _ in _found(whole, {"v": wrong})] == ["v"]


def test_given_object_is_not_changed() -> None:
    shape = Structural(_object(spec=_object(a={"type": "integer", "default": 1})))
    obj: Obj = {"spec": {"b": 2}}
    assert shape.apply_defaults(obj) == {"spec": {"b": 2, "a": 1}}
    assert shape.completed(obj) == {"spec": {"a": 1}}
    assert obj == {"spec": {"b": 2}}


def test_default_of_an_object_is_filled_by_those_of_its_fields() -> None:
    inner = {**_object(a={"type": "integer", "default": 1}, b={"type": "integer", "default": 2}), "default": {"a": 5}}
    assert Structural(_object(spec=inner)).apply_defaults({}) == {"spec": {"a": 5, "b": 2}}


def test_defaults_are_not_shared_between_objects() -> None:
    shape = Structural(_object(spec={**_object(), "default": {}, "x-kubernetes-preserve-unknown-fields": True}))
    first = shape.apply_defaults({})
    first["spec"]["x"] = 1
    assert shape.apply_defaults({}) == {"spec": {}}


def test_what_every_object_has_is_never_pruned() -> None:
    obj: Obj = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "a", "labels": {"x": "y"}}, "other": 1}
    assert Structural(_object()).completed(obj) == {key: value for key, value in obj.items() if key != "other"}


def test_rule_is_run_unless_it_reads_a_wrong_field() -> None:
    shape = _object(spec={**_object(a={"type": "integer"}, b={"type": "integer"}), "x-kubernetes-validations": _rule("self.a > 3")})
    assert [field for field, _ in _found(shape, {"spec": {"a": 1, "b": "x"}})] == ["spec.b", "spec"]
    assert [field for field, _ in _found(shape, {"spec": {"a": "x"}})] == ["spec.a"]


def test_rule_that_fails_to_evaluate_rejects_the_object() -> None:
    shape = _object(spec={**_object(a={"type": "integer"}), "x-kubernetes-validations": _rule("self.a > 3")})
    ((field, message),) = _found(shape, {"spec": {}})
    assert field == "spec"
    assert "no such key: a" in message


def test_unchanged_parts_are_not_rejected_again_but_changed_ones_are() -> None:
    part = {**_object(name={"type": "string"}, n={"type": "integer", "maximum": 3}), "required": ["name"]}
    parts = {"type": "array", "items": part, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    old: Obj = {"parts": [{"name": "a", "n": 9}, {"name": "b", "n": 9}]}
    new: Obj = {"parts": [{"name": "c", "n": 1}, {"name": "b", "n": 9}, {"name": "a", "n": 8}]}
    assert [field for field, _ in _found(_object(parts=parts), new, old)] == ["parts[2].n"]


def test_root_rules_do_not_run_for_what_they_do_not_read() -> None:
    shape = {**_object(spec=_object(n={"type": "integer"}), status=_object(s={"type": "string"}))}
    shape["x-kubernetes-validations"] = _rule("self.spec.n > 3")
    old: Obj = {"metadata": {"name": "a"}, "spec": {"n": 1}, "status": {"s": "x"}}
    assert _found(shape, {**old, "status": {"s": "y"}}, old) == []
    assert [field for field, _ in _found(shape, {**old, "spec": {"n": 2}}, old)] == [""]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.ratio < 1.0", {"ratio": 0}),  # JSON's 0 is a double in a number field
        ("self.count + 1 == 3", {"count": 2}),
        ("self.count < self.ratio", {"count": 2, "ratio": 2.5}),
        ("duration(self.text) >= duration('1m')", {"text": "60s"}),
        ("self.counts.sum() == 3", {"counts": [1, 2]}),
        ("!has(self.count) || self.count > 0", {}),
        ("self.names.all(n, n.size() == 1)", {"names": ["a"]}),
    ],
)
def test_rules_see_values_in_their_types(rule: str, value: Obj) -> None:
    spec = _object(
        ratio={"type": "number"},
        count={"type": "integer"},
        counts={"type": "array", "items": {"type": "integer"}},
        names={"type": "array", "items": {"type": "string"}},
        text={"type": "string"},
    )
    assert _found(_object(spec={**spec, "x-kubernetes-validations": _rule(rule)}), {"spec": value}) == []


def test_rule_that_does_not_compile_is_an_error() -> None:
    with pytest.raises(CelError):
        Structural(_object(a={"type": "string", "x-kubernetes-validations": _rule("self.foo(")}))


@pytest.mark.parametrize(
    "keyword", [{"nullable": True}, {"format": "ipv4"}, {"x-kubernetes-validations": [{"rule": "true", "messageExpression": "''"}]}]
)
def test_what_would_not_be_checked_is_an_error(keyword: Obj) -> None:
    with pytest.raises(UnknownKeyword, match=r"does not know (nullable|ipv4|messageExpression)"):
        Structural(_object(a={"type": "string", **keyword}))
