"""Create, read and replace single objects; versions, and fields that only the server sets."""

from __future__ import annotations

import re

import pytest
from builders.kube_objects import CONFIG_MAPS, NOTES, PODS, WIDGETS, config_map, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import AlreadyExists, ApiError, BadRequest, Client, Conflict, Invalid, NotFound, Resource


async def test_created_object_has_identity_and_version(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a"))
    meta = made["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", meta["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", meta["creationTimestamp"])
    assert int(meta["resourceVersion"]) > 0
    assert meta["generation"] == 1
    assert (made["apiVersion"], made["kind"]) == (WIDGETS.api_version, "Widget")
    assert await client.get(WIDGETS, namespace, "a") == made


async def test_create_can_answer_with_the_metadata_alone(client: Client, namespace: str) -> None:
    for resource, obj in (
        (WIDGETS, widget(namespace, "a")),
        (PODS, a_bare_pod(namespace, "a")),
        (CONFIG_MAPS, config_map(namespace, "a")),
    ):
        answer = await client.create(resource, obj, field_manager="me", metadata_only=True)
        there = await client.get(resource, namespace, "a")
        assert answer == {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": there["metadata"]}


async def test_an_error_is_complete_even_if_only_metadata_is_requested(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"), metadata_only=True)
    with pytest.raises(AlreadyExists, match='"a" already exists'):
        await client.create(WIDGETS, widget(namespace, "a"), metadata_only=True)


async def test_a_dry_run_of_a_create_stores_nothing(client: Client, namespace: str) -> None:
    for resource, obj in ((WIDGETS, widget(namespace, "a")), (PODS, a_bare_pod(namespace, "a"))):
        answer = await client.create(resource, obj, dry_run=True, metadata_only=True)
        assert (answer["kind"], answer["metadata"]["name"]) == ("PartialObjectMetadata", "a")
        with pytest.raises(NotFound):
            await client.get(resource, namespace, "a")
        made = await client.create(resource, obj)
        assert made["metadata"]["name"] == "a"


async def test_a_dry_run_of_a_create_is_refused_as_the_create_would_be(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    with pytest.raises(AlreadyExists):
        await client.create(WIDGETS, widget(namespace, "a"), dry_run=True)
    with pytest.raises(Invalid):
        await client.create(WIDGETS, widget(namespace, "b", size=-1), dry_run=True)
    with pytest.raises(NotFound):
        await client.create(CONFIG_MAPS, config_map("not-there", "a"), dry_run=True)


async def test_identity_sent_by_a_client_is_ignored(client: Client, namespace: str) -> None:
    meta = {"uid": "mine", "generation": 7, "creationTimestamp": "2000-01-01T00:00:00Z", "deletionTimestamp": "2000-01-01T00:00:00Z"}
    made = await client.create(WIDGETS, widget(namespace, "a", meta=meta))
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["creationTimestamp"] > "2001"
    assert "deletionTimestamp" not in made["metadata"]


async def test_name_taken_is_already_exists(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    with pytest.raises(AlreadyExists) as error:
        await client.create(WIDGETS, widget(namespace, "a", size=2))
    assert (error.value.code, error.value.reason) == (409, "AlreadyExists")
    assert (await client.get(WIDGETS, namespace, "a"))["spec"]["size"] == 1


async def test_missing_object_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound) as error:
        await client.get(WIDGETS, namespace, "a")
    assert (error.value.code, error.value.reason) == (404, "NotFound")
    with pytest.raises(NotFound):
        await client.update(CONFIG_MAPS, config_map(namespace, "a"))
    with pytest.raises(NotFound):
        await client.delete(WIDGETS, namespace, "a")
    with pytest.raises(NotFound):
        await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 2}})


async def test_kind_that_is_not_served_is_not_found(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.list(Resource("unknown.example", "v1", "Nothing", "nothings"), namespace)


async def test_object_of_another_kind_is_a_bad_request(client: Client, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await client.create(CONFIG_MAPS, {**config_map(namespace, "a"), "kind": "Secret"})


async def test_version_must_not_be_set_on_create(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as error:
        await client.create(CONFIG_MAPS, config_map(namespace, "a", meta={"resourceVersion": "1"}))
    assert error.value.code == 500  # Kubernetes answers so, although it is the client's error
    assert "resourceVersion should not be set" in error.value.message


async def test_generated_names_differ_and_keep_their_base(client: Client, namespace: str) -> None:
    made = [await client.create(WIDGETS, widget(namespace, meta={"generateName": "unit-"})) for _ in range(5)]
    found = {each["metadata"]["name"] for each in made}
    assert len(found) == 5
    assert all(re.fullmatch(r"unit-[a-z0-9]{5}", name) for name in found)


@pytest.mark.parametrize("name", ["Upper", "a..b", "x" * 254])
async def test_name_that_is_no_dns_subdomain_is_invalid(client: Client, namespace: str, name: str) -> None:
    with pytest.raises(Invalid) as error:
        await client.create(CONFIG_MAPS, config_map(namespace, name))
    assert [cause.field for cause in error.value.causes] == ["metadata.name"]


async def test_wrong_labels_are_invalid(client: Client, namespace: str) -> None:
    for labels in ({"a": "no spaces"}, {"-a": "x"}, {"a/b/c": "x"}):
        with pytest.raises(Invalid) as error:
            await client.create(CONFIG_MAPS, config_map(namespace, "a", meta={"labels": labels}))
        assert error.value.causes[0].field == "metadata.labels"


async def test_update_with_an_old_version_conflicts_and_changes_nothing(client: Client, namespace: str) -> None:
    old = await client.create(WIDGETS, widget(namespace, "a"))
    new = await client.update(WIDGETS, {**old, "spec": {**old["spec"], "size": 2}})
    with pytest.raises(Conflict) as error:
        await client.update(WIDGETS, {**old, "spec": {**old["spec"], "size": 3}})
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    assert await client.get(WIDGETS, namespace, "a") == new


async def test_custom_objects_need_a_version_to_be_updated(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    with pytest.raises(Invalid) as error:
        await client.update(WIDGETS, widget(namespace, "a", size=2))
    assert error.value.causes[0].field == "metadata.resourceVersion"


async def test_config_map_without_a_version_is_updated_unconditionally(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace, "a", x="1"))
    made = await client.update(CONFIG_MAPS, config_map(namespace, "a", x="2"))
    assert made["data"] == {"x": "2"}


async def test_update_of_another_incarnation_conflicts(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    with pytest.raises(Conflict):
        await client.update(CONFIG_MAPS, config_map(namespace, "a", meta={"uid": "00000000-0000-0000-0000-000000000000"}, x="1"))


async def test_write_that_changes_nothing_makes_no_version(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a"), field_manager="me")
    assert await client.update(WIDGETS, made, field_manager="me") == made
    patched = await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 1}}, field_manager="me")
    assert patched["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_generation_counts_changes_of_spec_only(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a"))
    labelled = await client.patch(WIDGETS, namespace, "a", {"metadata": {"labels": {"x": "y"}}})
    assert labelled["metadata"]["generation"] == 1
    status = await client.patch(WIDGETS, namespace, "a", {"status": {"phase": "On"}}, subresource="status")
    assert status["metadata"]["generation"] == 1
    changed = await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 2}})
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize("mark", [{"deletionTimestamp": "2000-01-01T00:00:00Z"}, {"deletionGracePeriodSeconds": 5}])
async def test_no_write_marks_an_object_as_deleted(client: Client, namespace: str, mark: dict[str, object]) -> None:
    made = await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    with pytest.raises(Invalid) as error:
        await client.update(CONFIG_MAPS, {**made, "metadata": {**made["metadata"], **mark}})
    assert {cause.field for cause in error.value.causes} == {f"metadata.{name}" for name in mark}
    with pytest.raises(Invalid):
        await client.patch(CONFIG_MAPS, namespace, "a", {"metadata": mark})


async def test_what_a_client_gets_is_its_own(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", parts=[{"name": "x"}]))
    made["spec"]["parts"][0]["name"] = "changed"
    made["metadata"]["name"] = "changed"
    read = await client.get(WIDGETS, namespace, "a")
    read["spec"]["parts"].clear()
    again = await client.get(WIDGETS, namespace, "a")
    assert again["spec"]["parts"] == [{"name": "x", "count": 1}]


async def test_what_a_client_sends_stays_its_own(client: Client, namespace: str) -> None:
    sent = widget(namespace, "a", extra={"list": [1]})
    before = {**sent, "metadata": dict(sent["metadata"])}
    await client.create(WIDGETS, sent)
    assert sent == before
    sent["spec"]["extra"]["list"].append(2)
    assert (await client.get(WIDGETS, namespace, "a"))["spec"]["extra"] == {"list": [1]}


async def test_cluster_scoped_objects_live_in_no_namespace(client: Client, namespace: str) -> None:
    made = await client.create(NOTES, {"metadata": {"name": f"note-{namespace}"}, "anything": {"goes": [1, "two"]}})
    assert "namespace" not in made["metadata"]
    assert (await client.get(NOTES, "", f"note-{namespace}"))["anything"] == {"goes": [1, "two"]}
    await client.delete(NOTES, "", f"note-{namespace}")
