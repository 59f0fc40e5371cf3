"""Schemas beyond the contract of servers: messages and corner cases."""

from __future__ import annotations

from typing import Any

import pytest
from diloco_local.memory import schema
from diloco_local.memory.cel import CelError
from diloco_operator.kube.client import Obj


def _object(**properties: Any) -> Obj:
    return {"type": "object", "properties": properties}


def _rule(rule: str, message: str = "broken", **more: Any) -> list[Obj]:
    return [{"rule": rule, "message": message, **more}]


def _found(shape: Obj, obj: Obj, old: Obj | None = None) -> list[tuple[str, str]]:
    return [(cause.field, cause.message) for cause in schema.validate(shape, obj, old)]


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
        ({"type": "integer", "multipleOf": 4}, 8, 6),
        ({"type": "integer"}, 3.0, 3.5),
        ({"type": "integer", "format": "int32"}, 2**31 - 1, 2**31),
        ({"type": "boolean"}, False, 0),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, [1], []),
        ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z", "2026-01-02"),
        ({"type": "string", "format": "byte"}, "eA==", "x!"),
        ({"type": "string", "format": "duration"}, "1.5h", "1d"),
        ({"type": "string", "format": "ipv4"}, "127.0.0.1", "127.0.0.256"),
        ({"type": "string", "pattern": "^a$"}, "a", "a\n"),
        ({"type": "string", "nullable": True}, None, 1),
        ({"type": "string", "not": {"enum": ["x"]}}, "y", "x"),
        ({"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 7}]}, 4, 6),
        ({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 2}]}, 6, 3),
        ({"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 7}]}, 6, 8),
    ],
)
def test_value_checks(shape: Obj, right: Any, wrong: Any) -> None:
    whole = _object(v=shape)
    assert _found(whole, {"v": right}) == []
    assert [field for field, _ in _found(whole, {"v": wrong})] == ["v"]


def test_given_object_is_not_changed() -> None:
    shape = _object(spec=_object(a={"type": "integer", "default": 1}))
    obj: Obj = {"spec": {"b": 2}}
    assert schema.apply_defaults(shape, obj) == {"spec": {"b": 2, "a": 1}}
    assert schema.prune(shape, obj) == ({"spec": {}}, ["spec.b"])
    assert obj == {"spec": {"b": 2}}


def test_default_of_an_object_is_filled_by_those_of_its_fields() -> None:
    inner = {**_object(a={"type": "integer", "default": 1}, b={"type": "integer", "default": 2}), "default": {"a": 5}}
    assert schema.apply_defaults(_object(spec=inner), {}) == {"spec": {"a": 5, "b": 2}}


def test_defaults_are_not_shared_between_objects() -> None:
    shape = _object(spec={**_object(), "default": {}, "x-kubernetes-preserve-unknown-fields": True})
    first = schema.apply_defaults(shape, {})
    first["spec"]["x"] = 1
    assert schema.apply_defaults(shape, {}) == {"spec": {}}


def test_what_every_object_has_is_never_pruned() -> None:
    obj: Obj = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "a", "labels": {"x": "y"}}, "other": 1}
    assert schema.prune(_object(), obj)[1] == ["other"]


def test_embedded_resource_keeps_its_type_and_metadata() -> None:
    inner = {**_object(spec=_object()), "x-kubernetes-embedded-resource": True}
    obj: Obj = {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {}}, "spec": {"x": 1}, "y": 1}}
    assert schema.prune(_object(template=inner), obj)[1] == ["template.spec.x", "template.y"]


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


def test_optional_old_self_tells_create_from_update() -> None:
    rule = _rule("oldSelf.hasValue() || self == 'new'", optionalOldSelf=True)
    shape = _object(s={"type": "string", "x-kubernetes-validations": rule})
    assert _found(shape, {"s": "new"}) == []
    assert [field for field, _ in _found(shape, {"s": "other"})] == ["s"]
    assert _found(shape, {"s": "other"}, {"s": "new"}) == []


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
        ("self.wait >= duration('1m')", {"wait": "60s"}),
        ("self.at > timestamp('2026-01-01T00:00:00Z')", {"at": "2026-01-01T00:00:01Z"}),
        ("self.__namespace__ == 'x' && self.with__dash__dash == 1", {"namespace": "x", "with-dash": 1}),
        ("self.names.isSorted() && self.names.indexOf('b') == 1", {"names": ["a", "b"]}),
        ("self.text.find('[0-9]+') == '12' && self.text.split('x').size() == 2", {"text": "ax12"}),
        ("!has(self.count) || self.count > 0", {}),
        ("self.names.all(n, n.size() == 1) && math.greatest(self.count, 2) == 3", {"names": ["a"], "count": 3}),
    ],
)
def test_rules_see_values_in_their_types(rule: str, value: Obj) -> None:
    spec = _object(
        ratio={"type": "number"},
        count={"type": "integer"},
        wait={"type": "string", "format": "duration"},
        at={"type": "string", "format": "date-time"},
        namespace={"type": "string"},
        names={"type": "array", "items": {"type": "string"}},
        text={"type": "string"},
    )
    spec["properties"]["with-dash"] = {"type": "integer"}
    assert _found(_object(spec={**spec, "x-kubernetes-validations": _rule(rule)}), {"spec": value}) == []


def test_message_expression_that_fails_falls_back_to_the_message() -> None:
    rule = _rule("self.n > 3", "plain", messageExpression="'n of ' + self.missing")
    assert _found(_object(spec={**_object(n={"type": "integer"}), "x-kubernetes-validations": rule}), {"spec": {"n": 1}}) == [
        ("spec", "plain")
    ]


@pytest.mark.parametrize("rule", ["self.foo(", "self.isQuantity()"])
def test_rule_that_does_not_compile_is_an_error(rule: str) -> None:
    with pytest.raises(CelError):
        schema.validate(_object(a={"type": "string", "x-kubernetes-validations": [{"rule": rule}]}), {})
