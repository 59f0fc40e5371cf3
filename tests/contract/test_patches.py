"""Merge patches and the status subresource."""

from __future__ import annotations

from typing import Any

import pytest
from builders.kube_objects import CONFIG_MAPS, NODES, NOTES, PODS, WIDGETS, config_map, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import Client, Conflict, Invalid, NotFound, Obj

# RFC 7386, appendix A: the cases whose target and patch are objects.
_CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"a": "foo"}, {"b": {"c": {"d": None}}}, {"a": "foo", "b": {"c": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "expected"), _CASES)
async def test_merge_patch_is_rfc_7386(client: Client, namespace: str, target: Obj, patch: Obj, expected: Obj) -> None:
    await client.create(WIDGETS, widget(namespace, "a", extra=target))
    patched = await client.patch(WIDGETS, namespace, "a", {"spec": {"extra": patch}})
    assert patched["spec"]["extra"] == expected
    assert (await client.get(WIDGETS, namespace, "a"))["spec"]["extra"] == expected


async def test_merge_patch_with_an_old_version_conflicts(client: Client, namespace: str) -> None:
    old = await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    version = {"resourceVersion": old["metadata"]["resourceVersion"]}
    await client.patch(CONFIG_MAPS, namespace, "a", {"metadata": version, "data": {"x": "1"}})
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, namespace, "a", {"metadata": version, "data": {"x": "2"}})
    assert (await client.get(CONFIG_MAPS, namespace, "a"))["data"] == {"x": "1"}


async def test_merge_patch_that_makes_an_object_wrong_is_rejected_as_a_whole(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a"))
    with pytest.raises(Invalid):
        await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 0, "label": "abc"}})
    assert await client.get(WIDGETS, namespace, "a") == made


async def test_status_is_not_written_with_the_spec(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", status={"phase": "On"}))
    assert "status" not in made
    await client.patch(WIDGETS, namespace, "a", {"status": {"phase": "On"}}, subresource="status")
    current = await client.get(WIDGETS, namespace, "a")
    updated = await client.update(WIDGETS, {**current, "spec": {"size": 3}, "status": {"phase": "Off"}})
    assert (updated["spec"]["size"], updated["status"]) == (3, {"phase": "On"})
    patched = await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 4}, "status": None})
    assert (patched["spec"]["size"], patched["status"]) == (4, {"phase": "On"})


async def test_status_write_leaves_everything_else_alone(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", meta={"labels": {"a": "b"}}))
    meta = {**made["metadata"], "labels": {"a": "changed"}}
    updated = await client.update(WIDGETS, {**made, "metadata": meta, "spec": {"size": 9}, "status": {"phase": "On"}}, subresource="status")
    assert updated["spec"] == made["spec"]
    assert updated["metadata"]["labels"] == {"a": "b"}
    assert updated["status"] == {"phase": "On"}
    patch = {"metadata": {"finalizers": ["a.example/x"]}, "spec": {"size": 9}, "status": {"phase": "Off"}}
    patched = await client.patch(WIDGETS, namespace, "a", patch, subresource="status")
    assert patched["spec"] == made["spec"]
    assert "finalizers" not in patched["metadata"]
    assert patched["status"] == {"phase": "Off"}


async def test_status_is_replaced_whole_by_its_object_of_this_version_alone(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", label="abc"))
    at = {"name": "a", "namespace": namespace, "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    ready = {"phase": "On", "conditions": [{"type": "Ready", "status": "True"}]}
    first = await client.update(WIDGETS, {"metadata": at, "status": ready}, subresource="status", field_manager="op")
    assert (first["status"], first["spec"]) == (ready, made["spec"])
    with pytest.raises(Conflict):
        await client.update(WIDGETS, {"metadata": at, "status": {"phase": "Off"}}, subresource="status", field_manager="op")
    now = {**at, "resourceVersion": first["metadata"]["resourceVersion"]}
    another = {"metadata": {**now, "uid": "00000000-0000-0000-0000-000000000000"}, "status": {"phase": "Off"}}
    with pytest.raises(Conflict):
        await client.update(WIDGETS, another, subresource="status", field_manager="op")
    unversioned = {"metadata": {"name": "a", "namespace": namespace}, "status": {"phase": "Off"}}
    with pytest.raises(Invalid):
        await client.update(WIDGETS, unversioned, subresource="status", field_manager="op")
    body = {"metadata": now, "status": {"phase": "Off"}}
    answer = await client.update(WIDGETS, body, subresource="status", field_manager="op", metadata_only=True)
    stored = await client.get(WIDGETS, namespace, "a")
    assert answer == {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": stored["metadata"]}
    assert (stored["status"], stored["spec"]) == ({"phase": "Off"}, made["spec"])


async def test_status_is_validated(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    with pytest.raises(Invalid) as error:
        await client.patch(WIDGETS, namespace, "a", {"status": {"replicas": "many"}}, subresource="status")
    # One error from the schema, and one that says rules were not evaluated.
    assert {cause.field for cause in error.value.causes} == {"status.replicas", "<nil>"}


async def test_without_the_subresource_status_is_a_field_like_others(client: Client, namespace: str) -> None:
    made = await client.create(NOTES, {"metadata": {"generateName": "note-"}, "status": {"phase": "On"}})
    assert made["status"] == {"phase": "On"}
    with pytest.raises(NotFound):
        await client.patch(NOTES, "", made["metadata"]["name"], {"status": {}}, subresource="status")
    await client.delete(NOTES, "", made["metadata"]["name"])


async def test_status_of_pods_is_a_subresource(client: Client, namespace: str) -> None:
    made = await client.create(PODS, {**a_bare_pod(namespace, "a"), "status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"
    patch = {"status": {"phase": "Running", "podIP": "127.0.0.9"}}
    ignored = await client.patch(PODS, namespace, "a", patch)
    assert ignored["status"]["phase"] == "Pending"
    running = await client.patch(PODS, namespace, "a", patch, subresource="status")
    assert running["status"]["phase"] == "Running"
    assert running["spec"] == made["spec"]


async def test_status_of_nodes_is_a_subresource_but_may_come_with_the_node(client: Client, namespace: str) -> None:
    name = f"node-{namespace}"
    made = await client.create(NODES, {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}})
    assert made["status"]["capacity"] == {"cpu": "4"}
    changed = await client.patch(NODES, "", name, {"spec": {"unschedulable": True}, "status": {"capacity": None}})
    assert changed["status"]["capacity"] == {"cpu": "4"}
    status = await client.patch(NODES, "", name, {"status": {"capacity": {"cpu": "8"}}}, subresource="status")
    assert status["status"]["capacity"] == {"cpu": "8"}
    await client.delete(NODES, "", name)


async def test_patch_can_answer_with_the_metadata_alone(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    answers = [
        await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 4}}, metadata_only=True),
        await client.patch(WIDGETS, namespace, "a", {"status": {"phase": "Off"}}, subresource="status", metadata_only=True),
    ]
    now = await client.get(WIDGETS, namespace, "a")
    assert (now["spec"]["size"], now["status"]["phase"]) == (4, "Off")
    assert all(answer.keys() == {"apiVersion", "kind", "metadata"} for answer in answers)
    assert [answer["kind"] for answer in answers] == ["PartialObjectMetadata"] * 2
    assert answers[-1]["metadata"] == now["metadata"]


async def test_merge_patch_with_another_uid_is_rejected(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    patch = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "data": {"x": "1"}}
    with pytest.raises(Invalid) as error:
        await client.patch(CONFIG_MAPS, namespace, "a", patch)
    assert {cause.field for cause in error.value.causes} == {"metadata.uid"}
