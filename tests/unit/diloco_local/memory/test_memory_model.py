"""Random runs of the in-memory server against its invariants."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from builders.kube_objects import CONFIG_MAPS, config_map, owned_by
from diloco_local.memory import MemoryApi
from diloco_local.memory.api import merge_patch
from diloco_operator.kube.client import AlreadyExists, EventType, NotFound, Obj
from hypothesis import given
from hypothesis import strategies as st

_NAMES = st.sampled_from(["a", "b", "c"])
_LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y"]), max_size=2)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "label", "finalize", "release", "delete"]), _NAMES, _LABELS),
    max_size=25,
)


async def _step(api: MemoryApi, verb: str, name: str, labels: dict[str, str]) -> None:
    try:
        if verb == "create":
            await api.create(CONFIG_MAPS, config_map("default", name, meta={"labels": labels}))
        elif verb == "delete":
            await api.delete(CONFIG_MAPS, "default", name)
        elif verb == "label":
            whole: Obj = {"app": None, "tier": None, **labels}
            await api.patch(CONFIG_MAPS, "default", name, {"metadata": {"labels": whole}})
        else:
            finalizers = ["a.example/hold"] if verb == "finalize" else None
            current = await api.get(CONFIG_MAPS, "default", name)
            if verb == "release" or "deletionTimestamp" not in current["metadata"]:
                await api.patch(CONFIG_MAPS, "default", name, {"metadata": {"finalizers": finalizers}})
    except (AlreadyExists, NotFound):
        pass  # the run is random; rejected writes change nothing


@given(steps=_STEPS, cut=st.integers(0, 25), selector=st.sampled_from(["", "app=x", "app!=x", "tier,app in (x,y)"]))
def test_list_and_watch_from_any_moment_lead_to_the_present(steps: list[tuple[str, str, dict[str, str]]], cut: int, selector: str) -> None:
    async def run() -> None:
        api = MemoryApi()
        known: dict[str, Obj] = {}
        version = ""
        for index, step in enumerate([*steps, None]):
            if index == min(cut, len(steps)):
                listed = await api.list(CONFIG_MAPS, "default", label_selector=selector)
                known, version = {each["metadata"]["name"]: each for each in listed.items}, listed.resource_version
            if step:
                await _step(api, *step)
        last = int(version)
        async for event in api.watch(CONFIG_MAPS, "default", resource_version=version, label_selector=selector, timeout_seconds=0):
            at = int(event.object["metadata"]["resourceVersion"])
            assert at > last or (event.type is EventType.BOOKMARK and at >= last)
            last = at
            name = event.object["metadata"].get("name", "")
            if event.type is EventType.ADDED:
                assert name not in known
                known[name] = event.object
            elif event.type is EventType.MODIFIED:
                assert name in known
                known[name] = event.object
            elif event.type is EventType.DELETED:
                del known[name]
        now = (await api.list(CONFIG_MAPS, "default", label_selector=selector)).items
        assert [known[name] for name in sorted(known)] == now

    asyncio.run(run())


@given(edges=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14), root=st.integers(0, 7), seed=st.integers(0, 99))
def test_collection_leaves_exactly_what_has_a_living_owner(edges: list[tuple[int, int]], root: int, seed: int) -> None:
    """Objects 0..7; an edge (a, b) with a < b: a owns b. Deleting one deletes all whose every owner is deleted, and nothing else."""
    owners: dict[int, set[int]] = {node: {a for a, b in edges if b == node and a < b} for node in range(8)}

    async def run() -> set[str]:
        api = MemoryApi(random=random.Random(seed))
        made: dict[int, Obj] = {}
        for node in range(8):
            refs = {"ownerReferences": [owned_by(made[owner]) for owner in sorted(owners[node])]} if owners[node] else {}
            made[node] = await api.create(CONFIG_MAPS, config_map("default", f"c{node}", meta=refs))
        await api.delete(CONFIG_MAPS, "default", f"c{root}")
        return {each["metadata"]["name"] for each in (await api.list(CONFIG_MAPS, "default")).items}

    dead = {root}
    for node in range(8):  # edges go upwards, so one sweep is enough
        if owners[node] and owners[node] <= dead:
            dead.add(node)
    assert asyncio.run(run()) == {f"c{node}" for node in range(8) if node not in dead}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@given(target=_JSON, patch=_JSON)
def test_merge_patch_twice_is_merge_patch_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
