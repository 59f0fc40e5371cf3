"""Custom resources: definitions, defaulting, pruning, validation by schema and by rules."""

from __future__ import annotations

from typing import Any

import pytest
from builders.kube_objects import CUSTOM_RESOURCES, GROUP, WIDGETS, definition, eventually, until_gone, widget
from diloco_operator.kube.client import Cause, Client, Invalid, NotFound, Obj, Resource

from .conftest import define


async def _rejections(client: Client, namespace: str, **spec: Any) -> dict[str, str]:
    """The server's errors for a widget with this spec: field -> message."""
    with pytest.raises(Invalid) as error:
        await client.create(WIDGETS, widget(namespace, "refused", **spec))
    assert error.value.code == 422
    return {cause.field: cause.message for cause in error.value.causes}


async def _changed(client: Client, namespace: str, name: str, **spec: Any) -> Obj:
    return await client.patch(WIDGETS, namespace, name, {"spec": spec})


async def test_defaults_are_filled_in_at_every_depth(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", parts=[{"name": "x"}, {"name": "y", "count": 3}]))
    assert made["spec"] == {
        "size": 1,
        "color": "red",
        "replicas": 1,
        "parts": [{"name": "x", "count": 1}, {"name": "y", "count": 3}],
        "nested": {"deep": "down"},
    }


async def test_null_where_none_is_allowed_is_dropped_before_defaulting(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", color=None, label=None))
    assert made["spec"]["color"] == "red"
    assert "label" not in made["spec"]


async def test_unknown_fields_are_pruned_except_where_they_are_preserved(client: Client, namespace: str) -> None:
    spec: dict[str, Any] = {"unknown": 1, "parts": [{"name": "x", "unknown": {"a": 1}}], "extra": {"kept": {"deep": [1]}}}
    made = await client.create(WIDGETS, widget(namespace, "a", **spec))
    assert "unknown" not in made["spec"]
    assert made["spec"]["parts"] == [{"name": "x", "count": 1}]
    assert made["spec"]["extra"] == {"kept": {"deep": [1]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size": "big"}, "spec.size"),
        ({"size": 1.5}, "spec.size"),
        ({"color": "green"}, "spec.color"),
        ({"label": "ABC"}, "spec.label"),
        ({"label": "abcdef"}, "spec.label"),
        ({"tags": ["a", "b", "c", "d", "e"]}, "spec.tags"),
        ({"order": [1]}, "spec.order[0]"),
        ({"parts": [{"count": 1}]}, "spec.parts[0].name"),
        ({"parts": [{"name": "x"}, {"name": "y"}, {"name": "x"}]}, "spec.parts[2]"),
        ({"parts": [{"name": "x", "count": -1}]}, "spec.parts[0].count"),
        ({"weights": {"a": "heavy"}}, "spec.weights.a"),
        ({"extra": "text"}, "spec.extra"),
    ],
)
async def test_wrong_value_is_rejected_with_its_field(client: Client, namespace: str, spec: dict[str, Any], field: str) -> None:
    rejections = await _rejections(client, namespace, **spec)
    assert field in rejections


async def test_missing_required_field_is_named(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as error:
        await client.create(WIDGETS, {"metadata": {"namespace": namespace, "name": "a"}, "spec": {"color": "red"}})
    assert error.value.causes[0] == Cause("spec.size", "Required value")
    rest = [cause.message for cause in error.value.causes[1:]]
    assert len(rest) == 1
    assert "some validation rules were not checked" in rest[0]


async def test_rules_are_reported_with_wrong_values_but_not_with_missing_ones(client: Client, namespace: str) -> None:
    reported = await _rejections(client, namespace, size=60, label="ABC")
    assert {"spec.label", "spec.size"} == set(reported)
    reported = await _rejections(client, namespace, size=60, parts=[{"name": "Required value"}])  # a value may be any words
    assert {"spec.parts[0].name", "spec.size"} == set(reported)
    without_rules = await _rejections(client, namespace, size=60, label="ABC", parts=[{"count": 1}])
    assert {"spec.label", "spec.parts[0].name", "<nil>"} == set(without_rules)


async def test_values_that_look_odd_but_are_right(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", weights={"a": 1, "b": 2.5}, ratio=1, extra={}))
    assert made["spec"]["weights"] == {"a": 1, "b": 2.5}


async def test_rule_blames_the_field_that_it_names(client: Client, namespace: str) -> None:
    rejections = await _rejections(client, namespace, size=60)
    assert "red is for sizes up to 50" in rejections["spec.size"]
    made = await client.create(WIDGETS, widget(namespace, "a", size=60, color="blue"))
    assert made["spec"]["size"] == 60


async def test_rule_on_a_number_works_for_whole_ones(client: Client, namespace: str) -> None:
    # 1 is a double in a `number` field: 1 / 2.0 is 0.5. With an int the division would not even evaluate.
    await client.create(WIDGETS, widget(namespace, "a", ratio=1))
    assert "must be below 2" in (await _rejections(client, namespace, ratio=2))["spec.ratio"]


async def test_rule_at_the_root_sees_the_name(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as error:
        await client.create(WIDGETS, widget(namespace, "n" * 41))
    assert "at most 40 characters" in error.value.message


async def test_transition_rules_hold_on_updates_only(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a", size=5, fixed="x"))
    with pytest.raises(Invalid) as error:
        await _changed(client, namespace, "a", size=4, fixed="y")
    messages = {cause.field: cause.message for cause in error.value.causes}
    assert "fixed is immutable" in messages["spec.fixed"]
    assert any("size cannot shrink" in message for message in messages.values())
    assert (await _changed(client, namespace, "a", size=6))["spec"]["size"] == 6


async def test_transition_rules_of_list_items_go_by_their_keys(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a", parts=[{"name": "x", "kind": "k"}, {"name": "y", "kind": "l"}]))
    turned = [{"name": "z", "kind": "k"}, {"name": "y", "kind": "l"}, {"name": "x", "kind": "k"}]
    await _changed(client, namespace, "a", parts=turned)
    with pytest.raises(Invalid) as error:
        await _changed(client, namespace, "a", parts=[{"name": "y", "kind": "other"}])
    assert [(cause.field, "a part's kind is immutable" in cause.message) for cause in error.value.causes] == [("spec.parts[0]", True)]


async def test_update_is_pruned_defaulted_and_validated_like_a_create(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    made = await _changed(client, namespace, "a", unknown=1, parts=[{"name": "x"}])
    assert "unknown" not in made["spec"]
    assert made["spec"]["parts"] == [{"name": "x", "count": 1}]
    with pytest.raises(Invalid):
        await _changed(client, namespace, "a", label="ABC")


async def test_object_older_than_a_rule_is_rejected_only_for_what_changes(client: Client, namespace: str) -> None:
    resource = Resource(GROUP, "v1", "Late", "lates")
    fields: Obj = {"one": {"type": "string"}, "two": {"type": "string"}}
    schema: Obj = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    await define(client, definition(resource, schema))
    await client.create(resource, {"metadata": {"namespace": namespace, "name": "a"}, "spec": {"one": "long", "two": "x"}})
    crd = await client.get(CUSTOM_RESOURCES, "", f"lates.{GROUP}")
    strict = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["one"]
    strict["maxLength"] = 2
    await client.update(CUSTOM_RESOURCES, crd)

    async def refuses_new() -> bool:
        try:
            await client.create(resource, {"metadata": {"namespace": namespace, "generateName": "b-"}, "spec": {"one": "long"}})
        except Invalid:
            return True
        return False

    await eventually(refuses_new, "the new schema holds")
    changed = await client.patch(resource, namespace, "a", {"spec": {"two": "y"}})
    assert changed["spec"] == {"one": "long", "two": "y"}
    with pytest.raises(Invalid):
        await client.patch(resource, namespace, "a", {"spec": {"one": "longer"}})
    await client.delete(CUSTOM_RESOURCES, "", f"lates.{GROUP}")
    await until_gone(client, CUSTOM_RESOURCES, "", f"lates.{GROUP}")


async def test_deleted_definition_takes_its_objects_and_is_served_no_more(client: Client, namespace: str) -> None:
    resource = Resource(GROUP, "v1", "Brief", "briefs")
    await define(client, definition(resource, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    await client.create(resource, {"metadata": {"namespace": namespace, "name": "a"}})
    await client.delete(CUSTOM_RESOURCES, "", f"briefs.{GROUP}")
    await until_gone(client, CUSTOM_RESOURCES, "", f"briefs.{GROUP}")

    async def unserved() -> bool:
        try:
            await client.list(resource, namespace)
        except NotFound:
            return True
        return False

    await eventually(unserved, "the kind is not served")
