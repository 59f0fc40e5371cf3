"""Deletion: preconditions, finalizers, graceful termination of pods."""

from __future__ import annotations

from datetime import datetime

import pytest
from builders.kube_objects import CONFIG_MAPS, PODS, WIDGETS, bound, changes, config_map, gone, seen, until_gone, widget
from builders.pods import a_bare_pod
from diloco_operator.kube.client import Client, Conflict, NotFound, Obj

_FINALIZER = "contract.diloco.dev/hold"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def _running_pod(
    client: Client, namespace: str, node: str, name: str = "a", *, grace: int = 30, finalizers: tuple[str, ...] = ()
) -> str:
    meta = {"finalizers": list(finalizers)} if finalizers else {}
    return await bound(client, a_bare_pod(namespace, name, meta=meta, terminationGracePeriodSeconds=grace), node)


async def test_deleted_object_is_gone_and_its_name_free(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a"))
    await client.delete(WIDGETS, namespace, "a")
    assert await gone(client, WIDGETS, namespace, "a")
    again = await client.create(WIDGETS, widget(namespace, "a"))
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


async def test_uid_precondition_spares_the_successor(client: Client, namespace: str) -> None:
    first = await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    await client.delete(CONFIG_MAPS, namespace, "a", uid=first["metadata"]["uid"])
    await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, namespace, "a", uid=first["metadata"]["uid"])
    assert not await gone(client, CONFIG_MAPS, namespace, "a")


async def test_finalizer_holds_a_deleted_object_until_it_is_removed(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a", meta={"finalizers": [_FINALIZER]}))
    await client.delete(WIDGETS, namespace, "a")
    held = await client.get(WIDGETS, namespace, "a")
    assert held["metadata"]["deletionTimestamp"]
    await client.patch(WIDGETS, namespace, "a", {"spec": {"size": 2}})  # it can still be changed
    await client.patch(WIDGETS, namespace, "a", {"metadata": {"finalizers": None}})
    assert await gone(client, WIDGETS, namespace, "a")


async def test_removal_of_the_last_finalizer_is_seen_as_deleted(client: Client, namespace: str) -> None:
    made = await client.create(WIDGETS, widget(namespace, "a", meta={"finalizers": [_FINALIZER, "contract.diloco.dev/other"]}))
    await client.delete(WIDGETS, namespace, "a")
    for rest in (["contract.diloco.dev/other"], []):
        held = await client.get(WIDGETS, namespace, "a")
        await client.update(WIDGETS, {**held, "metadata": {**held["metadata"], "finalizers": rest}})
    found = await changes(client, WIDGETS, namespace, made["metadata"]["resourceVersion"], 3)
    assert [kind for kind, _ in seen(found)][:2] == ["MODIFIED", "MODIFIED"]
    assert await gone(client, WIDGETS, namespace, "a")


async def test_deleting_twice_does_not_move_the_time(client: Client, namespace: str) -> None:
    await client.create(WIDGETS, widget(namespace, "a", meta={"finalizers": [_FINALIZER]}))
    await client.delete(WIDGETS, namespace, "a")
    first = await client.get(WIDGETS, namespace, "a")
    await client.delete(WIDGETS, namespace, "a")
    assert await client.get(WIDGETS, namespace, "a") == first
    await client.patch(WIDGETS, namespace, "a", {"metadata": {"finalizers": None}})


async def test_running_pod_stays_until_its_kubelet_says_it_is_over(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node, grace=25)
    await client.delete(PODS, namespace, "a")
    dying = await client.get(PODS, namespace, "a")
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 25
    await client.patch(PODS, namespace, "a", {"status": {"phase": "Running"}}, subresource="status")
    await client.delete(PODS, namespace, "a", grace_seconds=0)
    assert await gone(client, PODS, namespace, "a")


async def test_deletion_time_of_a_pod_is_when_its_grace_ends(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node)
    await client.delete(PODS, namespace, "a", grace_seconds=100)
    meta = (await client.get(PODS, namespace, "a"))["metadata"]
    ahead = (_time(meta["deletionTimestamp"]) - _time(meta["creationTimestamp"])).total_seconds()
    assert 100 <= ahead < 100 + 60  # created less than a minute ago
    await client.delete(PODS, namespace, "a", grace_seconds=0)


async def test_grace_can_be_shortened_never_lengthened(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node)
    await client.delete(PODS, namespace, "a", grace_seconds=60)
    first = (await client.get(PODS, namespace, "a"))["metadata"]
    await client.delete(PODS, namespace, "a", grace_seconds=10)
    shorter = (await client.get(PODS, namespace, "a"))["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 10
    assert (_time(first["deletionTimestamp"]) - _time(shorter["deletionTimestamp"])).total_seconds() == 50
    await client.delete(PODS, namespace, "a", grace_seconds=90)
    await client.delete(PODS, namespace, "a")
    assert (await client.get(PODS, namespace, "a"))["metadata"] == shorter
    await client.delete(PODS, namespace, "a", grace_seconds=0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_pod_that_has_ended_goes_at_once(client: Client, namespace: str, node: str, phase: str) -> None:
    await _running_pod(client, namespace, node)
    await client.patch(PODS, namespace, "a", {"status": {"phase": phase}}, subresource="status")
    await client.delete(PODS, namespace, "a")
    assert await gone(client, PODS, namespace, "a")


async def test_pod_with_finalizer_needs_both_its_kubelet_and_the_finalizer(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node, "a", finalizers=(_FINALIZER,))
    await _running_pod(client, namespace, node, "b", finalizers=(_FINALIZER,))
    for name in ("a", "b"):
        await client.delete(PODS, namespace, name)
    await client.delete(PODS, namespace, "a", grace_seconds=0)
    assert (await client.get(PODS, namespace, "a"))["metadata"]["deletionGracePeriodSeconds"] == 0
    await client.patch(PODS, namespace, "b", {"metadata": {"finalizers": None}})
    assert not await gone(client, PODS, namespace, "b")
    await client.patch(PODS, namespace, "a", {"metadata": {"finalizers": None}})
    await client.delete(PODS, namespace, "b", grace_seconds=0)
    assert await gone(client, PODS, namespace, "a")
    assert await gone(client, PODS, namespace, "b")


async def test_grace_zero_of_a_dead_pod_does_not_hit_its_successor(client: Client, namespace: str, node: str) -> None:
    old = await _running_pod(client, namespace, node)
    await client.delete(PODS, namespace, "a", grace_seconds=0)
    new = await _running_pod(client, namespace, node)
    with pytest.raises(Conflict):
        await client.delete(PODS, namespace, "a", grace_seconds=0, uid=old)
    assert (await client.get(PODS, namespace, "a"))["metadata"]["uid"] == new
    await client.delete(PODS, namespace, "a", grace_seconds=0)


async def test_pod_deletion_is_seen_as_modified_then_deleted(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node)
    version = (await client.get(PODS, namespace, "a"))["metadata"]["resourceVersion"]
    await client.delete(PODS, namespace, "a")
    await client.delete(PODS, namespace, "a", grace_seconds=0)
    found = await changes(client, PODS, namespace, version, 3)
    assert seen(found) == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [event.object["metadata"]["deletionGracePeriodSeconds"] for event in found] == [30, 0, 0]


async def test_pod_that_goes_at_once_is_seen_as_being_deleted_before(client: Client, namespace: str) -> None:
    made = await client.create(PODS, a_bare_pod(namespace, "a"))
    await client.delete(PODS, namespace, "a")
    found = await changes(client, PODS, namespace, made["metadata"]["resourceVersion"], 2)
    assert seen(found) == [("MODIFIED", "a"), ("DELETED", "a")]
    assert "deletionTimestamp" in found[0].object["metadata"]


def _disruption(pod: Obj) -> list[tuple[str, str]]:
    return [(each["status"], each["reason"]) for each in pod["status"].get("conditions", ()) if each["type"] == "DisruptionTarget"]


async def test_evicted_pod_is_marked_as_disrupted_and_terminates(client: Client, namespace: str, node: str) -> None:
    await _running_pod(client, namespace, node, grace=25)
    await client.patch(PODS, namespace, "a", {"status": {"phase": "Running"}}, subresource="status")
    version = (await client.get(PODS, namespace, "a"))["metadata"]["resourceVersion"]
    await client.evict(namespace, "a")
    found = await changes(client, PODS, namespace, version, 2)
    assert seen(found) == [("MODIFIED", "a"), ("MODIFIED", "a")]
    assert [_disruption(event.object) for event in found] == [[("True", "EvictionByEvictionAPI")]] * 2
    assert ["deletionTimestamp" in event.object["metadata"] for event in found] == [False, True]
    assert found[1].object["metadata"]["deletionGracePeriodSeconds"] == 25
    await client.delete(PODS, namespace, "a", grace_seconds=0)


async def test_eviction_takes_grace_and_spares_a_successor(client: Client, namespace: str, node: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "b"))
    with pytest.raises(Conflict):
        await client.evict(namespace, "b", uid="00000000-0000-0000-0000-000000000000")  # a real server tries for 10 s before it says so
    assert _disruption(await client.get(PODS, namespace, "b")) == []
    uid = await _running_pod(client, namespace, node)
    await client.patch(PODS, namespace, "a", {"status": {"phase": "Running"}}, subresource="status")
    await client.evict(namespace, "a", grace_seconds=3, uid=uid)
    evicted = await client.get(PODS, namespace, "a")
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 3
    await client.delete(PODS, namespace, "a", grace_seconds=0)


async def test_pod_that_does_not_exist_cannot_be_evicted(client: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await client.evict(namespace, "a")


async def test_pod_that_is_being_deleted_cannot_be_bound(client: Client, namespace: str) -> None:
    await client.create(PODS, a_bare_pod(namespace, "a", meta={"finalizers": [_FINALIZER]}))
    await client.delete(PODS, namespace, "a")
    with pytest.raises(Conflict):
        await client.bind(namespace, "a", "node-1")
    await client.patch(PODS, namespace, "a", {"metadata": {"finalizers": None}})
    await until_gone(client, PODS, namespace, "a")
    with pytest.raises(NotFound):
        await client.bind(namespace, "a", "node-1")
