"""Watches: order and completeness from a version, selectors, bookmarks, time-outs, compaction."""

from __future__ import annotations

import asyncio

import pytest
from builders.kube_objects import CONFIG_MAPS, PODS, WIDGETS, changes, seen, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import ApiError, Client, EventType, Gone, WatchEvent

from .conftest import Backend


async def _set(client: Client, namespace: str, name: str, size: int) -> None:
    await client.patch(WIDGETS, namespace, name, {"spec": {"size": size}})


async def test_watch_delivers_all_changes_after_its_version_in_order(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "before"))
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget(namespace, "a"))
    await _set(client, namespace, "before", 2)
    await client.delete(WIDGETS, namespace, "a")
    found = await changes(client, WIDGETS, namespace, version, 3)
    assert seen(found) == [("ADDED", "a"), ("MODIFIED", "before"), ("DELETED", "a")]
    versions = [int(event.object["metadata"]["resourceVersion"]) for event in found]
    assert versions == sorted(set(versions))
    assert versions[0] > int(version)


async def test_watch_goes_on_with_what_comes_later(client: Client, namespace: str) -> None:
    version = (await client.list(WIDGETS, namespace)).resource_version
    watching = asyncio.create_task(changes(client, WIDGETS, namespace, version, 2))
    await client.create(WIDGETS, widget(namespace, "a"))
    await _set(client, namespace, "a", 2)
    found = await watching
    assert seen(found) == [("ADDED", "a"), ("MODIFIED", "a")]
    assert found[1].object["spec"]["size"] == 2


async def test_every_state_is_delivered_not_only_the_last(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a"))
    for size in (2, 3, 4):
        await _set(client, namespace, "a", size)
    found = await changes(client, WIDGETS, namespace, made["metadata"]["resourceVersion"], 3)
    assert [event.object["spec"]["size"] for event in found] == [2, 3, 4]


async def test_watch_of_a_namespace_sees_nothing_of_others_and_one_over_all_sees_each(client: Client, namespace: str) -> None:
    version = (await client.list(WIDGETS)).resource_version
    own = {"labels": {"test": namespace}}  # widgets of tests that ran before may still be going
    await client.create(WIDGETS, widget("default", f"x-{namespace}", meta=own))
    await client.create(WIDGETS, widget(namespace, "a", meta=own))
    assert seen(await changes(client, WIDGETS, namespace, version, 1)) == [("ADDED", "a")]
    found = await changes(client, WIDGETS, "", version, 2, label_selector=f"test={namespace}")
    assert seen(found) == [("ADDED", f"x-{namespace}"), ("ADDED", "a")]
    await client.delete(WIDGETS, "default", f"x-{namespace}")


async def test_two_watches_see_the_same_and_share_nothing(client: Client, namespace: str) -> None:
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget(namespace, "a"))
    one, two = [(await changes(client, WIDGETS, namespace, version, 1))[0] for _ in range(2)]
    assert one == two
    one.object["spec"]["size"] = 99
    assert two.object["spec"]["size"] == 1


async def test_object_that_enters_and_leaves_a_label_selector(client: Client, namespace: str) -> None:
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget(namespace, "a"))
    for color in ("red", "red", "blue"):
        patch = {"metadata": {"labels": {"color": color}, "annotations": {"n": str(color)}}}
        await client.patch(WIDGETS, namespace, "a", patch)
    await _set(client, namespace, "a", 2)
    await client.patch(WIDGETS, namespace, "a", {"metadata": {"labels": {"color": "red"}}})
    await client.delete(WIDGETS, namespace, "a")
    found = await changes(client, WIDGETS, namespace, version, 4, label_selector="color=red")
    assert [event.type.value for event in found] == ["ADDED", "DELETED", "ADDED", "DELETED"]


async def test_object_that_leaves_a_field_selector_is_deleted_for_it(client: Client, namespace: str, node: str) -> None:
    version = (await client.list(PODS, namespace)).resource_version
    await client.create(PODS, a_bare_pod(namespace, "a"))
    await client.bind(namespace, "a", node)
    unbound = await changes(client, PODS, namespace, version, 2, field_selector="spec.nodeName=")
    assert [event.type.value for event in unbound] == ["ADDED", "DELETED"]
    bound = await changes(client, PODS, namespace, version, 1, field_selector=f"spec.nodeName={node}")
    assert seen(bound) == [("ADDED", "a")]


async def test_deleted_event_has_the_last_state_and_a_new_version(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", size=7))
    await client.delete(WIDGETS, namespace, "a")
    found = (await changes(client, WIDGETS, namespace, made["metadata"]["resourceVersion"], 1))[0]
    assert found.type is EventType.DELETED
    assert found.object["spec"]["size"] == 7
    assert int(found.object["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


async def _to_the_end(client: Client, namespace: str, version: str, seconds: float, *, bookmarks: bool) -> list[WatchEvent]:
    stream = client.watch(WIDGETS, namespace, resource_version=version, timeout_seconds=seconds, allow_bookmarks=bookmarks)
    return [event async for event in stream]


_BOOKMARKED = 4
"""Seconds of a watch that is long enough for a bookmark: a real server sends one two seconds before the end, or up to one second later."""


async def _changed_elsewhere(client: Client, namespace: str) -> str:
    """A version. A widget of another namespace changed after it, so that a bookmark has a newer version."""
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget("default", f"x-{namespace}"))
    await client.delete(WIDGETS, "default", f"x-{namespace}")
    return version


async def test_watch_ends_by_itself_with_a_bookmark_that_can_be_gone_on_from(client: Client, namespace: str) -> None:
    found: list[WatchEvent] = []
    async with asyncio.timeout(180):
        while not found:  # the API promises no bookmark: a busy server may be too late with one for so short a watch
            version = await _changed_elsewhere(client, namespace)
            found = await _to_the_end(client, namespace, version, _BOOKMARKED, bookmarks=True)
    assert {event.type for event in found} == {EventType.BOOKMARK}
    bookmark = found[-1].object
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("Widget", WIDGETS.api_version)
    assert int(bookmark["metadata"]["resourceVersion"]) > int(version)
    await client.create(WIDGETS, widget(namespace, "a"))
    assert seen(await changes(client, WIDGETS, namespace, bookmark["metadata"]["resourceVersion"], 1)) == [("ADDED", "a")]


async def test_no_bookmarks_where_none_are_asked_for(client: Client, namespace: str) -> None:
    version = await _changed_elsewhere(client, namespace)
    assert await _to_the_end(client, namespace, version, _BOOKMARKED, bookmarks=False) == []


async def test_watch_from_a_version_of_the_future_is_silent_until_then(client: Client, namespace: str) -> None:
    version = int((await client.list(WIDGETS, namespace)).resource_version)
    await client.create(WIDGETS, widget(namespace, "a"))
    assert await _to_the_end(client, namespace, str(version + 1_000_000), 1, bookmarks=True) == []


async def test_object_as_big_as_objects_get_comes_in_one_piece(client: Client, namespace: str) -> None:
    version = (await client.list(CONFIG_MAPS, namespace)).resource_version
    data = {"text": "ü" * 400_000}  # 800 kB in UTF-8; a config map holds 1 MiB
    await client.create(CONFIG_MAPS, {"metadata": {"name": "big", "namespace": namespace}, "data": data})
    found = await changes(client, CONFIG_MAPS, namespace, version, 1, field_selector="metadata.name=big")
    assert found[0].object["data"] == data


async def test_watch_without_a_version_begins_with_what_there_is(client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await client.create(WIDGETS, widget(namespace, name))
    watching = asyncio.create_task(changes(client, WIDGETS, namespace, "", 3))
    await client.create(WIDGETS, widget(namespace, "c"))
    assert sorted(seen(await watching)) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


async def test_version_from_before_compaction_is_gone_and_a_list_gives_one_to_watch_from(backend: Backend, namespace: str) -> None:
    client = backend.client
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget(namespace, "a"))
    await client.create(WIDGETS, widget(namespace, "b"))
    await backend.forget()
    with pytest.raises(Gone) as error:
        await changes(client, WIDGETS, namespace, version, 1)
    assert error.value.code == 410
    version = (await client.list(WIDGETS, namespace)).resource_version
    await client.create(WIDGETS, widget(namespace, "c"))
    assert seen(await changes(client, WIDGETS, namespace, version, 1)) == [("ADDED", "c")]


async def test_open_watch_survives_compaction(backend: Backend, namespace: str) -> None:
    client = backend.client
    version = (await client.list(WIDGETS, namespace)).resource_version
    stream = aiter(client.watch(WIDGETS, namespace, resource_version=version, timeout_seconds=180, allow_bookmarks=False))
    await client.create(WIDGETS, widget(namespace, "a"))
    first = await anext(stream)
    await backend.compact()
    await client.create(WIDGETS, widget(namespace, "b"))
    assert seen([first, await anext(stream)]) == [("ADDED", "a"), ("ADDED", "b")]


async def test_watch_from_what_is_no_version_is_rejected(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError) as error:
        await _to_the_end(client, namespace, "abc", 1, bookmarks=False)
    assert error.value.code in (400, 500)
