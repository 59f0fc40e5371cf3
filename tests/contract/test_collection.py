"""Garbage collection by owner references, and namespaces."""

from __future__ import annotations

import pytest
from builders.kube_objects import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    WIDGETS,
    bound,
    changes,
    config_map,
    eventually,
    gone,
    owned_by,
    seen,
    until_gone,
    widget,
)
from builders.pods import a_bare_pod
from diloco_operator.kube.client import Client, Forbidden, NotFound, Obj

_FINALIZER = "contract.diloco.dev/hold"


async def _owner(client: Client, namespace: str, name: str = "owner", **meta: object) -> Obj:
    return await client.create(WIDGETS, widget(namespace, name, meta=dict(meta)))


async def _dependent(client: Client, namespace: str, name: str, *owners: Obj) -> Obj:
    refs = [owned_by(owner) for owner in owners]
    return await client.create(CONFIG_MAPS, config_map(namespace, name, meta={"ownerReferences": refs}))


async def test_dependents_follow_their_owner(client: Client, namespace: str) -> None:
    owner = await _owner(client, namespace)
    await _dependent(client, namespace, "a", owner)
    await _dependent(client, namespace, "b", owner)
    await client.create(CONFIG_MAPS, config_map(namespace, "free"))
    await client.delete(WIDGETS, namespace, "owner")
    await until_gone(client, CONFIG_MAPS, namespace, "a")
    await until_gone(client, CONFIG_MAPS, namespace, "b")
    assert not await gone(client, CONFIG_MAPS, namespace, "free")


async def test_running_pods_of_a_deleted_owner_terminate_gracefully(client: Client, namespace: str, node: str) -> None:
    owner = await _owner(client, namespace)
    refs = {"ownerReferences": [owned_by(owner, controller=True)]}
    await bound(client, a_bare_pod(namespace, "a", meta=refs, terminationGracePeriodSeconds=20), node)
    await client.delete(WIDGETS, namespace, "owner")

    async def terminating() -> bool:
        pod = await client.get(PODS, namespace, "a")
        return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 20)

    await eventually(terminating, "the pod is asked to terminate")
    await client.delete(PODS, namespace, "a", grace_seconds=0)


async def test_owner_held_by_a_finalizer_keeps_its_dependents(client: Client, namespace: str) -> None:
    owner = await _owner(client, namespace, finalizers=[_FINALIZER])
    await _dependent(client, namespace, "a", owner)
    await client.delete(WIDGETS, namespace, "owner")
    assert not await gone(client, CONFIG_MAPS, namespace, "a")
    await client.patch(WIDGETS, namespace, "owner", {"metadata": {"finalizers": None}})
    await until_gone(client, CONFIG_MAPS, namespace, "a")


async def test_dependent_created_after_its_owner_is_gone_is_collected(client: Client, namespace: str) -> None:
    owner = await _owner(client, namespace)
    await client.delete(WIDGETS, namespace, "owner")
    version = (await client.list(CONFIG_MAPS, namespace)).resource_version
    made = await _dependent(client, namespace, "late", owner)
    assert made["metadata"]["name"] == "late"  # the create itself succeeds
    await until_gone(client, CONFIG_MAPS, namespace, "late")
    assert seen(await changes(client, CONFIG_MAPS, namespace, version, 2)) == [("ADDED", "late"), ("DELETED", "late")]


async def test_owner_of_the_same_name_but_another_uid_is_no_owner(client: Client, namespace: str) -> None:
    first = await _owner(client, namespace)
    await client.delete(WIDGETS, namespace, "owner")
    await _owner(client, namespace)
    await _dependent(client, namespace, "a", first)
    await until_gone(client, CONFIG_MAPS, namespace, "a")


async def test_dependent_with_another_living_owner_stays_and_forgets_the_dead_one(client: Client, namespace: str) -> None:
    one, two = await _owner(client, namespace, "one"), await _owner(client, namespace, "two")
    await _dependent(client, namespace, "a", one, two)
    await client.delete(WIDGETS, namespace, "one")

    async def only_two() -> bool:
        refs = (await client.get(CONFIG_MAPS, namespace, "a"))["metadata"]["ownerReferences"]
        return [ref["name"] for ref in refs] == ["two"]

    await eventually(only_two, "the reference to the dead owner is removed")
    await client.delete(WIDGETS, namespace, "two")
    await until_gone(client, CONFIG_MAPS, namespace, "a")


async def test_owner_in_another_namespace_does_not_count(client: Client, namespace: str) -> None:
    owner = await client.create(WIDGETS, widget("default", f"owner-{namespace}"))
    await _dependent(client, namespace, "a", owner)
    await until_gone(client, CONFIG_MAPS, namespace, "a")
    await client.delete(WIDGETS, "default", f"owner-{namespace}")


async def test_nothing_can_be_created_in_a_namespace_that_does_not_exist(client: Client) -> None:
    with pytest.raises(NotFound) as error:
        await client.create(WIDGETS, widget("no-such-namespace", "a"))
    assert "no-such-namespace" in error.value.message


async def test_deleted_namespace_takes_its_content_with_it(client: Client) -> None:
    made = (await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}}))["metadata"]["name"]
    await client.create(WIDGETS, widget(made, "a"))
    await client.create(CONFIG_MAPS, config_map(made, "b"))
    await client.delete(NAMESPACES, "", made)
    await until_gone(client, NAMESPACES, "", made)
    assert await gone(client, WIDGETS, made, "a")
    assert await gone(client, CONFIG_MAPS, made, "b")


async def test_dying_namespace_waits_for_its_content_and_takes_nothing_new(client: Client) -> None:
    made = (await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}}))["metadata"]["name"]
    await client.create(WIDGETS, widget(made, "a", meta={"finalizers": [_FINALIZER]}))
    await client.delete(NAMESPACES, "", made)
    assert (await client.get(NAMESPACES, "", made))["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden):
        await client.create(WIDGETS, widget(made, "b"))

    async def terminating() -> bool:
        return "deletionTimestamp" in (await client.get(WIDGETS, made, "a"))["metadata"]

    await eventually(terminating, "the content is being deleted")
    await client.patch(WIDGETS, made, "a", {"metadata": {"finalizers": None}})
    await until_gone(client, NAMESPACES, "", made)
