"""Nodes that come, fail, come back and go, and what becomes of their pods."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.local import Holds, LocalNodes, NodeFailure, condition, is_gone, is_gone_after, is_true, local_nodes, wait_for
from builders.nodes import a_fleet_node
from builders.pods import a_pod
from diloco_local.nodes import BadNode, complete, this_machine
from diloco_local.supervisor import processes
from diloco_operator.api.names import NODES, PODS
from diloco_operator.kube.client import Obj


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[LocalNodes]:
    async with local_nodes(tmp_path, a_fleet_node("one", tpu=4, labels={"a": "b"}), a_fleet_node("two")) as nodes:
        yield nodes


def lives(local: LocalNodes, pod: Obj) -> bool:
    mark = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("local://").encode()
    return any(p.alive and mark in environ(p.pid) for p in processes())


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


async def started(local: LocalNodes, name: str = "pod", node: str = "one", **spec: Any) -> Obj:
    await local.create(PODS, a_pod(name, "sleep", "100", node=node, **spec))
    return await local.pod(name, is_true("Ready"))


def taints(node: Obj) -> set[tuple[str, str]]:
    return {(taint["key"].rpartition("/")[2], taint["effect"]) for taint in node["spec"].get("taints") or ()}


async def node(local: LocalNodes, name: str, holds: Holds = bool) -> Obj:
    return await wait_for(local.client, NODES, "", name, holds) or {}


@pytest.mark.slow
async def test_registered_node_is_ready_with_what_the_manifest_says(two: LocalNodes) -> None:
    one = await node(two, "one", is_true("Ready"))
    assert one["metadata"]["labels"]["a"] == "b"
    assert one["metadata"]["labels"]["kubernetes.io/hostname"] == "one"
    assert one["status"]["allocatable"] == {"google.com/tpu": "4"}
    assert one["status"]["addresses"][0]["address"].startswith("127.")


@pytest.mark.slow
async def test_dead_node_turns_unknown_and_its_pods_stay_terminating_with_stale_status(two: LocalNodes) -> None:
    pod = await started(two)
    await two.nodes.fail("one")
    assert not lives(two, pod)
    failed = await node(two, "one", lambda node: condition(node, "Ready")["status"] == "Unknown")
    assert taints(failed) >= {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
    pod = await two.pod("pod", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert condition(pod, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert condition(pod, "Ready")["status"] == "False"
    assert pod["status"]["phase"] == "Running"
    assert "running" in pod["status"]["containerStatuses"][0]["state"]


@pytest.mark.slow
async def test_node_that_comes_back_ends_what_was_marked_for_deletion(two: LocalNodes) -> None:
    await started(two)
    await two.nodes.fail("one")
    await two.pod("pod", lambda pod: "deletionTimestamp" in pod["metadata"])
    await two.nodes.recover("one")
    await two.pod("pod", is_gone)
    assert not taints(await node(two, "one", is_true("Ready")))


@pytest.mark.slow
async def test_partitioned_node_works_on_and_its_orphans_end_when_it_is_back(two: LocalNodes) -> None:
    pod = await started(two)
    await two.nodes.fail("one", NodeFailure.PARTITIONED)
    assert lives(two, pod)
    await two.client.delete(PODS, "default", "pod", grace_seconds=0)  # as the operator may with a learner
    await two.pod("pod", is_gone)
    assert lives(two, pod)
    await two.nodes.recover("one")
    successor = await started(two)  # waits for its predecessor of this name
    assert not lives(two, pod)
    assert lives(two, successor)


@pytest.mark.slow
async def test_pods_of_another_node_do_not_notice(two: LocalNodes) -> None:
    other = await started(two, "other", "two")
    await two.nodes.fail("one")
    assert lives(two, other)


@pytest.mark.slow
async def test_removed_node_takes_its_pods_out_of_the_api(two: LocalNodes) -> None:
    pod = await started(two)
    seen: list[Obj] = []
    await two.nodes.remove("one")
    await two.pod("pod", is_gone_after(seen))
    await node(two, "one", is_gone)
    assert not lives(two, pod)


@pytest.mark.slow
async def test_restored_node_takes_pods_again(two: LocalNodes) -> None:
    await two.nodes.remove("one")
    await two.nodes.restore()
    pod = await started(two)
    assert lives(two, pod)


@pytest.mark.slow
async def test_noexecute_taint_evicts_those_who_do_not_tolerate_it(two: LocalNodes) -> None:
    await started(two)
    await started(two, "tolerant", tolerations=[{"operator": "Exists"}])
    await two.nodes.taint("one", "cloud.google.com/impending-node-termination", "NoExecute")
    await two.pod("pod", is_gone)
    assert "deletionTimestamp" not in (await two.pod("tolerant", is_true("Ready")))["metadata"]


@pytest.mark.slow
async def test_pending_pod_is_told_why_and_bound_as_soon_as_there_is_room(tmp_path: Path) -> None:
    async with local_nodes(tmp_path, a_fleet_node("one", gpu=1)) as local:
        gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        for name in ("first", "second"):
            await local.create(PODS, a_pod(name, "sleep", "100", container=gpu))
            if name == "first":
                await local.pod("first", is_true("Ready"))
        waiting = await local.pod("second", lambda pod: condition(pod, "PodScheduled").get("reason") == "Unschedulable")
        assert condition(waiting, "PodScheduled")["message"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        await local.client.delete(PODS, "default", "first")
        bound = await local.pod("second", is_true("Ready"))
        assert bound["spec"]["nodeName"] == "one"
        assert condition(bound, "PodScheduled")["status"] == "True"


@pytest.mark.parametrize("speed", ["fast", "0", "-1", "1.5", ""])
def test_speed_that_makes_no_sense_is_refused_with_the_node_and_the_field(speed: str) -> None:
    manifest = a_fleet_node("slow", speed="x")
    manifest["metadata"]["annotations"]["local.diloco.dev/relative-speed"] = speed
    with pytest.raises(BadNode, match=r"node slow: metadata.annotations\[local.diloco.dev/relative-speed\]"):
        complete(manifest)


def test_built_in_fleet_is_this_machine_as_cpu_nodes() -> None:
    nodes = [complete(node) for node in this_machine()]
    assert len({node["metadata"]["name"] for node in nodes}) == len(nodes) > 1
    assert all(set(node["status"]["capacity"]) == {"cpu", "memory", "pods"} for node in nodes)
