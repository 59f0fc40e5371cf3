"""What only the in-memory server has: injected clock and rng, hooks for faults, dumps, a bounded history."""

from __future__ import annotations

import enum
import json
import random
from datetime import UTC, datetime, timedelta

import pytest
from builders.kube_objects import (
    CONFIG_MAPS,
    CUSTOM_RESOURCES,
    NAMESPACES,
    PODS,
    WIDGETS,
    config_map,
    names,
    owned_by,
    widget,
    widget_definition,
)
from builders.pods import a_bare_pod
from builders.virtual_time import run_virtual
from diloco_local.memory import WRITE_VERBS, MemoryApi
from diloco_operator.kube.client import ApiError, BadRequest, EventType, Gone, Resource, Unavailable, WatchEvent


class _Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


async def _with_widgets(**options: object) -> MemoryApi:
    api = MemoryApi(**options)  # type: ignore[arg-type]
    await api.create(CUSTOM_RESOURCES, widget_definition())
    return api


async def _watched(api: MemoryApi, resource: Resource, version: str, seconds: float = 0) -> list[WatchEvent]:
    return [each async for each in api.watch(resource, resource_version=version, timeout_seconds=seconds, allow_bookmarks=False)]


async def test_every_timestamp_is_the_clocks() -> None:
    clock = _Clock()
    api = await _with_widgets(clock=clock)
    clock.now += timedelta(days=1)
    made = await api.create(PODS, a_bare_pod("default", "a"))
    assert made["metadata"]["creationTimestamp"] == "2026-01-02T00:00:00Z"
    await api.bind("default", "a", "node-1")
    clock.now += timedelta(seconds=5)
    await api.delete(PODS, "default", "a", grace_seconds=60)
    assert (await api.get(PODS, "default", "a"))["metadata"]["deletionTimestamp"] == "2026-01-02T00:01:05Z"
    clock.now += timedelta(seconds=7)
    await api.delete(PODS, "default", "a", grace_seconds=20)  # 20 s from when the deletion began
    assert (await api.get(PODS, "default", "a"))["metadata"]["deletionTimestamp"] == "2026-01-02T00:00:25Z"


async def test_same_seed_makes_the_same_server() -> None:
    async def run() -> str:
        api = await _with_widgets(clock=_Clock(), random=random.Random(7))
        owner = await api.create(WIDGETS, widget("default", meta={"generateName": "w-"}))
        await api.create(PODS, a_bare_pod("default", "a", meta={"ownerReferences": [owned_by(owner)]}))
        return json.dumps(api.dump())

    assert await run() == await run()


@pytest.mark.parametrize(("changes", "bookmarks"), [(1, 5), (0, 0)], ids=["each minute and at the end", "none without a newer version"])
def test_idle_watch_gets_bookmarks_on_the_way(changes: int, bookmarks: int) -> None:
    async def scenario() -> list[WatchEvent]:
        api = await _with_widgets(bookmark_seconds=60)
        version = (await api.list(WIDGETS)).resource_version
        for index in range(changes):
            await api.create(PODS, a_bare_pod("default", f"p{index}"))
        return [each async for each in api.watch(WIDGETS, resource_version=version, timeout_seconds=300)]

    assert [each.type for each in run_virtual(scenario())] == [EventType.BOOKMARK] * bookmarks


async def test_error_from_before_rejects_the_request() -> None:
    def reject(verb: str, resource: Resource, namespace: str, name: str) -> None:
        if (verb, resource, namespace, name) == ("create", PODS, "default", "a"):
            raise Unavailable(503, "ServiceUnavailable", "down")

    api = MemoryApi(before=reject)
    with pytest.raises(Unavailable):
        await api.create(PODS, a_bare_pod("default", "a"))
    await api.create(PODS, a_bare_pod("default", "b"))
    with pytest.raises(ApiError):
        await api.create(PODS, a_bare_pod("default", "B"))
    assert names((await api.list(PODS)).items) == ["b"]
    assert api.writes == 1, "without those that were rejected"


async def test_error_from_after_loses_the_answer_not_the_write() -> None:
    def lose(verb: str, resource: Resource, namespace: str, name: str) -> None:
        if verb in WRITE_VERBS:
            raise Unavailable(503, "ServiceUnavailable", "connection reset")

    api = MemoryApi(after=lose)
    with pytest.raises(Unavailable):
        await api.create(PODS, a_bare_pod("default", "a"))
    assert names((await api.list(PODS)).items) == ["a"]
    assert api.writes == 1


async def test_hooks_see_every_verb() -> None:
    seen: list[str] = []
    api = MemoryApi(before=lambda verb, *_: seen.append(verb))
    made = await api.create(PODS, a_bare_pod("default", "a"))
    await api.get(PODS, "default", "a")
    await api.update(PODS, made)
    await api.patch(PODS, "default", "a", {})
    await api.bind("default", "a", "node-1")
    await api.list(PODS)
    await _watched(api, PODS, "")
    await api.delete(PODS, "default", "a")
    await api.create(PODS, a_bare_pod("default", "b"))
    await api.evict("default", "b")
    assert seen == ["create", "get", "update", "patch", "bind", "list", "watch", "delete", "create", "evict"]
    assert api.writes == 7


async def test_history_is_bounded_and_older_versions_are_gone() -> None:
    api = MemoryApi(window=8)
    version = (await api.list(CONFIG_MAPS)).resource_version
    for index in range(8):
        await api.create(CONFIG_MAPS, config_map("default", f"c{index}"))
    assert len(await _watched(api, CONFIG_MAPS, version)) == 8
    await api.create(CONFIG_MAPS, config_map("default", "one-more"))
    with pytest.raises(Gone):
        await _watched(api, CONFIG_MAPS, version)


async def test_history_of_more_than_ten_minutes_is_gone_and_that_of_five_is_not() -> None:
    clock = _Clock()
    api = MemoryApi(clock=clock)
    old = (await api.list(CONFIG_MAPS)).resource_version
    await api.create(CONFIG_MAPS, config_map("default", "first"))
    clock.now += timedelta(minutes=6)
    kept = (await api.create(CONFIG_MAPS, config_map("default", "second")))["metadata"]["resourceVersion"]
    assert len(await _watched(api, CONFIG_MAPS, old)) == 2
    clock.now += timedelta(minutes=4, seconds=59)
    await api.create(CONFIG_MAPS, config_map("default", "third"))
    with pytest.raises(Gone):
        await _watched(api, CONFIG_MAPS, old)
    assert [event.object["metadata"]["name"] for event in await _watched(api, CONFIG_MAPS, kept)] == ["third"]


async def test_watcher_that_falls_behind_gets_an_error() -> None:
    api = MemoryApi(window=4)
    version = (await api.list(CONFIG_MAPS)).resource_version
    await api.create(CONFIG_MAPS, config_map("default", "first"))
    stream = aiter(api.watch(CONFIG_MAPS, resource_version=version, timeout_seconds=60))
    assert (await anext(stream)).object["metadata"]["name"] == "first"
    for index in range(10):
        await api.create(CONFIG_MAPS, config_map("default", f"c{index}"))
    with pytest.raises(Gone):
        await anext(stream)


async def test_busy_kind_does_not_push_out_the_history_of_a_quiet_one() -> None:
    api = MemoryApi(window=4)
    version = (await api.list(PODS)).resource_version
    for index in range(20):
        await api.create(CONFIG_MAPS, config_map("default", f"c{index}"))
    await api.create(PODS, a_bare_pod("default", "a"))
    assert len(await _watched(api, PODS, version)) == 1


async def test_interrupted_watches_break_and_later_ones_work() -> None:
    api = MemoryApi()
    version = (await api.list(PODS)).resource_version
    await api.create(PODS, a_bare_pod("default", "a"))
    stream = aiter(api.watch(PODS, resource_version=version, timeout_seconds=60))
    assert (await anext(stream)).type is EventType.ADDED
    api.interrupt_watches()
    with pytest.raises(Unavailable):
        await anext(stream)
    assert len(await _watched(api, PODS, version)) == 1


async def test_restored_server_continues_where_the_dump_was_made() -> None:
    first = await _with_widgets()
    owner = await first.create(WIDGETS, widget("default", "owner", parts=[{"name": "x"}]))
    await first.create(PODS, a_bare_pod("default", "a", meta={"ownerReferences": [owned_by(owner)]}))
    await first.create(NAMESPACES, {"metadata": {"name": "other"}})
    dumped = json.loads(json.dumps(first.dump()))
    second = MemoryApi.restore(dumped)
    assert second.dump() == dumped
    with pytest.raises(Gone):
        await _watched(second, PODS, "1")
    version = (await second.list(PODS)).resource_version
    await second.create(WIDGETS, widget("other", "later"))  # defined, and in a namespace of the dump
    await second.delete(WIDGETS, "default", "owner")  # still owns
    assert [each.type for each in await _watched(second, PODS, version)] == [EventType.MODIFIED, EventType.DELETED]


class _Phase(enum.StrEnum):
    ON = "On"


async def test_enums_and_tuples_are_stored_as_plain_json() -> None:
    api = await _with_widgets()
    made = await api.create(WIDGETS, widget("default", "a", extra={"phase": _Phase.ON, "list": (1, 2)}))
    assert type(made["spec"]["extra"]["phase"]) is str
    assert made["spec"]["extra"]["list"] == [1, 2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes", {1: "x"}])
async def test_what_is_not_json_is_a_bad_request(value: object) -> None:
    api = await _with_widgets()
    with pytest.raises(BadRequest):
        await api.create(WIDGETS, widget("default", "a", extra={"x": value}))


async def test_malformed_built_in_objects_are_bad_requests() -> None:
    api = MemoryApi()
    for spec in ({"containers": "main"}, {"containers": [{"name": "a", "image": "x", "env": "A=1"}]}, {"containers": [1]}):
        with pytest.raises(ApiError) as error:
            await api.create(PODS, {"metadata": {"namespace": "default", "name": "a"}, "spec": spec})
        assert error.value.code in (400, 422)
    with pytest.raises(BadRequest):
        await api.create(PODS, {"metadata": "x", "spec": {}})


async def test_update_of_a_pod_does_not_change_history() -> None:
    api = MemoryApi()
    made = await api.create(
        PODS, a_bare_pod("default", "a", containers=[{"name": "main", "image": "x:1", "resources": {"limits": {"cpu": "1"}}}])
    )
    version = made["metadata"]["resourceVersion"]
    for index in range(3):
        await api.patch(PODS, "default", "a", {"metadata": {"labels": {"n": str(index)}}})
    found = await _watched(api, PODS, version)
    assert [each.object["metadata"]["labels"] for each in found] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
