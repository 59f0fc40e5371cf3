"""Server-side apply: which manager owns which field, and the consequences."""

from __future__ import annotations

from typing import Any

import pytest
from builders.kube_objects import CONFIG_MAPS, PODS, WIDGETS, config_map, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import ApiError, Client, Conflict, Invalid, NotFound, Obj, PatchType


async def _apply(client: Client, namespace: str, manager: str, *, force: bool = False, meta: Obj | None = None, **spec: Any) -> Obj:
    obj = {"metadata": {"name": "a", "namespace": namespace, **(meta or {})}, "spec": spec}
    return await client.patch(WIDGETS, namespace, "a", obj, type=PatchType.APPLY, field_manager=manager, force=force)


async def _apply_status(client: Client, namespace: str, manager: str, *, force: bool = False, **status: Any) -> Obj:
    obj = {"metadata": {"name": "a", "namespace": namespace}, "status": status}
    return await client.patch(WIDGETS, namespace, "a", obj, type=PatchType.APPLY, field_manager=manager, force=force, subresource="status")


def _owned(obj: Obj, manager: str, operation: str = "Apply") -> Obj:
    """fieldsV1 of a manager; {} when it owns nothing."""
    found = [each for each in obj["metadata"]["managedFields"] if (each["manager"], each["operation"]) == (manager, operation)]
    assert len(found) <= 1
    fields: Obj = found[0]["fieldsV1"] if found else {}
    return fields


async def test_apply_creates_what_does_not_exist(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2)
    assert made["spec"]["size"] == 2
    assert made["spec"]["color"] == "red"  # defaults as on create
    assert made["metadata"]["generation"] == 1
    assert _owned(made, "one") == {"f:spec": {"f:size": {}}}  # a default has no owner


async def test_applying_the_same_again_writes_nothing(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2, parts=[{"name": "x"}])
    assert await _apply(client, namespace, "one", size=2, parts=[{"name": "x"}]) == made


async def test_two_managers_own_their_fields_side_by_side(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    made = await _apply(client, namespace, "two", label="abc")
    assert (made["spec"]["size"], made["spec"]["label"]) == (2, "abc")
    assert _owned(made, "one") == {"f:spec": {"f:size": {}}}
    assert _owned(made, "two") == {"f:spec": {"f:label": {}}}


async def test_conflict_names_every_field_and_its_manager(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    await _apply(client, namespace, "two", label="abc")
    before = await client.get(WIDGETS, namespace, "a")
    with pytest.raises(Conflict) as error:
        await _apply(client, namespace, "three", size=3, label="def", color="blue")
    assert error.value.code == 409
    causes = {cause.field: cause.message for cause in error.value.causes}
    assert set(causes) == {".spec.size", ".spec.label"}
    assert '"one"' in causes[".spec.size"]
    assert '"two"' in causes[".spec.label"]
    assert await client.get(WIDGETS, namespace, "a") == before


async def test_force_takes_the_fields_over(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, label="abc")
    made = await _apply(client, namespace, "two", force=True, size=3)
    assert made["spec"]["size"] == 3
    assert _owned(made, "one") == {"f:spec": {"f:label": {}}}
    assert _owned(made, "two") == {"f:spec": {"f:size": {}}}


async def test_equal_values_are_owned_together_without_conflict(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    made = await _apply(client, namespace, "two", size=2, label="abc")
    assert _owned(made, "one") == {"f:spec": {"f:size": {}}}
    assert _owned(made, "two") == {"f:spec": {"f:size": {}, "f:label": {}}}


async def test_field_that_its_only_applier_drops_is_removed(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, label="abc", extra={"x": 1, "y": 2})
    made = await _apply(client, namespace, "one", size=2, extra={"x": 1})
    assert "label" not in made["spec"]
    assert made["spec"]["extra"] == {"x": 1}


async def test_dropped_field_with_a_default_falls_back_to_it(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, color="blue")
    made = await _apply(client, namespace, "one", size=2)
    assert made["spec"]["color"] == "red"


async def test_dropped_field_that_another_owns_stays(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, label="abc")
    await _apply(client, namespace, "two", label="abc")
    made = await _apply(client, namespace, "one", size=2)
    assert made["spec"]["label"] == "abc"
    assert _owned(made, "one") == {"f:spec": {"f:size": {}}}


async def test_map_lists_merge_by_their_keys(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, parts=[{"name": "x", "count": 2}])
    made = await _apply(client, namespace, "two", parts=[{"name": "y", "count": 3}, {"name": "x", "kind": "k"}])
    assert sorted(made["spec"]["parts"], key=lambda part: str(part["name"])) == [
        {"name": "x", "count": 2, "kind": "k"},
        {"name": "y", "count": 3},
    ]
    owned = _owned(made, "two")["f:spec"]["f:parts"]
    assert owned['k:{"name":"x"}'] == {".": {}, "f:name": {}, "f:kind": {}}


async def test_conflict_inside_a_map_list_names_the_item(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, parts=[{"name": "x", "count": 2}])
    with pytest.raises(Conflict) as error:
        await _apply(client, namespace, "two", parts=[{"name": "x", "count": 3}])
    assert [cause.field for cause in error.value.causes] == ['.spec.parts[name="x"].count']


async def test_dropped_item_of_a_map_list_is_removed_and_others_stay(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, parts=[{"name": "x"}, {"name": "y"}])
    await _apply(client, namespace, "two", parts=[{"name": "z"}])
    made = await _apply(client, namespace, "one", size=2, parts=[{"name": "y"}])
    assert sorted(part["name"] for part in made["spec"]["parts"]) == ["y", "z"]


async def test_list_that_is_applied_empty_loses_the_appliers_items_and_goes_when_none_is_left(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, parts=[{"name": "x"}])
    made = await _apply(client, namespace, "one", size=2, parts=[])
    assert "parts" not in made["spec"]
    again = await _apply(client, namespace, "one", size=2, parts=[])  # where there is none, an empty list is made
    assert again["spec"]["parts"] == []
    assert await _apply(client, namespace, "one", size=2, parts=[]) == again


async def test_map_that_is_applied_empty_after_it_had_fields_becomes_a_null_which_is_rejected(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, weights={"a": 1})
    with pytest.raises(Invalid) as error:
        await _apply(client, namespace, "one", size=2, weights={})
    assert {cause.field for cause in error.value.causes} == {"spec.weights", "<nil>"}
    dropped = await _apply(client, namespace, "one", size=2)  # the way to empty a map: leave it out
    assert "weights" not in dropped["spec"]
    assert (await _apply(client, namespace, "one", size=2, weights={}))["spec"]["weights"] == {}


async def test_whole_status_can_be_dropped_but_not_applied_empty(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    await _apply_status(client, namespace, "op", phase="On")
    with pytest.raises(Invalid):
        await _apply_status(client, namespace, "op")
    nothing = {"metadata": {"name": "a", "namespace": namespace}}
    made = await client.patch(WIDGETS, namespace, "a", nothing, type=PatchType.APPLY, field_manager="op", subresource="status")
    assert "status" not in made


async def test_map_of_a_built_in_kind_can_be_applied_empty(client: Client, namespace: str) -> None:
    contents: list[dict[str, Any]] = [{"x": "1"}, {}, {}]
    for data in contents:
        config = config_map(namespace, "a", **data)
        made = await client.patch(CONFIG_MAPS, namespace, "a", config, type=PatchType.APPLY, field_manager="one")
        assert made.get("data", {}) == data


async def test_dropped_item_that_another_manager_has_fields_of_stays_with_those(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, parts=[{"name": "x", "count": 2}])
    await _apply(client, namespace, "two", parts=[{"name": "x", "kind": "k"}])
    made = await _apply(client, namespace, "one", size=2)
    assert made["spec"]["parts"] == [{"name": "x", "kind": "k", "count": 1}]  # count is back at its default


async def test_set_lists_are_a_union(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, tags=["a", "b"])
    made = await _apply(client, namespace, "two", tags=["b", "c"])
    assert sorted(made["spec"]["tags"]) == ["a", "b", "c"]
    made = await _apply(client, namespace, "one", size=2, tags=["a"])
    assert sorted(made["spec"]["tags"]) == ["a", "b", "c"]  # two still owns b


async def test_atomic_lists_are_replaced_whole_and_conflict_whole(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, order=["a", "b"])
    made = await _apply(client, namespace, "one", size=2, order=["b"])
    assert made["spec"]["order"] == ["b"]
    with pytest.raises(Conflict) as error:
        await _apply(client, namespace, "two", order=["b", "c"])
    assert [cause.field for cause in error.value.causes] == [".spec.order"]


async def test_update_takes_fields_without_asking_and_apply_meets_the_conflict(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2, label="abc")
    updated = await client.update(WIDGETS, {**made, "spec": {**made["spec"], "label": "def"}}, field_manager="editor")
    assert _owned(updated, "one") == {"f:spec": {"f:size": {}}}
    assert _owned(updated, "editor", "Update") == {"f:spec": {"f:label": {}}}
    with pytest.raises(Conflict) as error:
        await _apply(client, namespace, "one", size=2, label="abc")
    assert [cause.field for cause in error.value.causes] == [".spec.label"]


async def test_field_that_an_update_removes_has_no_owner(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2, label="abc")
    rest = {key: value for key, value in made["spec"].items() if key != "label"}
    updated = await client.update(WIDGETS, {**made, "spec": rest}, field_manager="editor")
    assert _owned(updated, "one") == {"f:spec": {"f:size": {}}}
    assert (await _apply(client, namespace, "one", size=2, label="xyz"))["spec"]["label"] == "xyz"


async def test_create_owns_what_it_sent(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, config_map(namespace, "a", meta={"labels": {"x": "y"}}, k="v"), field_manager="maker")
    owned = _owned(made, "maker", "Update")
    assert set(owned["f:data"]) - {"."} == {"f:k"}
    assert set(owned["f:metadata"]["f:labels"]) - {"."} == {"f:x"}
    config = config_map(namespace, "a", k="other")
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, namespace, "a", config, type=PatchType.APPLY, field_manager="applier")


async def test_labels_of_several_appliers_live_together(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", meta={"labels": {"a": "1", "b": "1"}}, size=2)
    await _apply(client, namespace, "two", meta={"labels": {"c": "1"}})
    made = await _apply(client, namespace, "one", meta={"labels": {"a": "1"}}, size=2)
    assert made["metadata"]["labels"] == {"a": "1", "c": "1"}


async def test_status_apply_owns_status_only(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    made = await _apply_status(client, namespace, "op", phase="On", conditions=[{"type": "Ready", "status": "True"}])
    assert made["status"] == {"phase": "On", "conditions": [{"type": "Ready", "status": "True"}]}
    assert set(_owned(made, "op")) == {"f:status"}
    entry = next(each for each in made["metadata"]["managedFields"] if each["manager"] == "op")
    assert entry["subresource"] == "status"
    assert made["metadata"]["generation"] == 1


async def test_status_apply_does_not_touch_spec(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    obj = {"metadata": {"name": "a", "namespace": namespace, "labels": {"x": "y"}}, "spec": {"size": 9}, "status": {"phase": "On"}}
    made = await client.patch(WIDGETS, namespace, "a", obj, type=PatchType.APPLY, field_manager="op", subresource="status")
    assert (made["spec"]["size"], made["status"]) == (2, {"phase": "On"})
    assert "labels" not in made["metadata"]


async def test_dropped_condition_is_removed_and_that_of_another_manager_stays(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2)
    ready, degraded, other = ({"type": name, "status": "True"} for name in ("Ready", "Degraded", "Other"))
    await _apply_status(client, namespace, "op", conditions=[ready, degraded])
    await _apply_status(client, namespace, "stranger", conditions=[other])
    made = await _apply_status(client, namespace, "op", conditions=[{**ready, "status": "False"}])
    assert {each["type"]: each["status"] for each in made["status"]["conditions"]} == {"Ready": "False", "Other": "True"}


async def test_same_manager_on_spec_and_status_is_two_owners(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "one", size=2, label="abc")
    await _apply_status(client, namespace, "one", phase="On")
    made = await _apply(client, namespace, "one", size=2)
    assert made["status"] == {"phase": "On"}


async def test_status_apply_to_nothing_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await _apply_status(client, namespace, "op", phase="On")


_OTHER_UID = {"uid": "00000000-0000-0000-0000-000000000000"}


async def test_apply_with_another_uid_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(Conflict):
        await _apply(client, namespace, "one", meta=_OTHER_UID, size=2)
    made = await _apply(client, namespace, "one", size=2)
    with pytest.raises(Invalid) as error:
        await _apply(client, namespace, "one", meta=_OTHER_UID, size=3)
    assert {cause.field for cause in error.value.causes} == {"metadata.uid"}
    await _apply(client, namespace, "one", meta={"uid": made["metadata"]["uid"]}, size=3)


async def test_uid_does_not_guard_the_status_of_a_custom_object_but_its_version_does(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2)
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}

    async def write(meta: Obj) -> Obj:
        obj = {"metadata": {"name": "a", "namespace": namespace, **meta}, "status": {"phase": next(phases)}}
        return await client.patch(WIDGETS, namespace, "a", obj, type=PatchType.APPLY, field_manager="op", subresource="status", force=True)

    phases = iter(["One", "Two", "Three"])
    assert (await write({**version, **_OTHER_UID}))["status"] == {"phase": "One"}
    with pytest.raises(Conflict):
        await write(version)
    assert (await write(_OTHER_UID))["status"] == {"phase": "Three"}


async def test_apply_with_an_old_version_conflicts(client: Client, namespace: str) -> None:
    made = await _apply(client, namespace, "one", size=2)
    await _apply(client, namespace, "one", size=3)
    with pytest.raises(Conflict):
        await _apply(client, namespace, "one", meta={"resourceVersion": made["metadata"]["resourceVersion"]}, size=4)


async def test_apply_of_a_field_that_the_schema_does_not_know_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as error:
        await _apply(client, namespace, "one", size=2, unknown=1)
    assert "field not declared in schema" in error.value.message


async def test_containers_and_their_variables_merge_by_name(client: Client, namespace: str) -> None:
    containers = [{"name": "main", "image": "image:1", "env": [{"name": "A", "value": "1"}]}]
    await client.create(PODS, a_bare_pod(namespace, "a", containers=containers), field_manager="maker")
    config = {"metadata": {"name": "a", "namespace": namespace}, "spec": {"containers": [{"name": "main", "image": "image:2"}]}}
    with pytest.raises(Conflict) as error:
        await client.patch(PODS, namespace, "a", config, type=PatchType.APPLY, field_manager="applier")
    assert [cause.field for cause in error.value.causes] == ['.spec.containers[name="main"].image']
    made = await client.patch(PODS, namespace, "a", config, type=PatchType.APPLY, field_manager="applier", force=True)
    assert made["spec"]["containers"][0]["image"] == "image:2"
    assert made["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]


async def test_pod_conditions_of_several_managers_live_together(client: Client, namespace: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a"))
    for name in ("One", "Two"):
        obj = {"metadata": {"name": "a", "namespace": namespace}, "status": {"conditions": [{"type": name, "status": "True"}]}}
        made = await client.patch(PODS, namespace, "a", obj, type=PatchType.APPLY, field_manager=name, subresource="status")
    assert {"One", "Two"} <= {each["type"] for each in made["status"]["conditions"]}


async def test_spec_apply_cannot_own_status(client: Client, namespace: str) -> None:
    obj = {**widget(namespace, "a"), "status": {"phase": "On"}}
    made = await client.patch(WIDGETS, namespace, "a", obj, type=PatchType.APPLY, field_manager="one")
    assert "status" not in made
    assert set(_owned(made, "one")) == {"f:spec"}
