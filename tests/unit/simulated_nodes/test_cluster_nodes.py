"""Simulated nodes of an API server that is not their own, on the in-memory one; tests/cluster/test_kube_nodes.py has the real one."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from builders.local import WAIT_SECONDS, condition, has_phase, is_true, wait_for
from builders.nodes import a_fleet_node
from builders.pods import a_pod
from diloco_local.addresses import Addresses, Network
from diloco_local.kubelet import Kubelet
from diloco_local.kubelet_context import KubeletContext
from diloco_local.memory import MemoryApi
from diloco_local.nodes import BadNode
from diloco_local.processes import Supervisor
from diloco_operator.api.names import LABEL_JOB, NODES, PODS, VOLUME_CLAIMS
from diloco_operator.kube.client import NotFound, Obj
from simulated_nodes.cluster_nodes import ClusterNodes, ForeignNodes, registration
from simulated_nodes.names import LABEL_SERVER
from simulated_nodes.provisioner import volume


@contextlib.asynccontextmanager
async def serving(client: MemoryApi, state_dir: Path, *fleet: Obj, server: str = "me") -> AsyncIterator[ClusterNodes]:
    network = Network.reserve(random.Random())
    async with Supervisor() as supervisor:
        context = KubeletContext(client, supervisor, Addresses(network.second), state_dir, state_dir, volume_sync=0.05)
        kubelet = Kubelet(context)
        nodes = ClusterNodes(client, kubelet, context, fleet or [a_fleet_node("one")], server=server, heartbeat=0.05)
        await nodes.register()
        parts = [asyncio.create_task(part) for part in (kubelet.run(), nodes.run())]
        try:
            yield nodes
        finally:
            for part in parts:
                part.cancel()
            ended = await asyncio.gather(*parts, return_exceptions=True)
            network.close()
    failures = [error for error in ended if isinstance(error, Exception)]
    assert not failures, failures


@pytest.mark.slow
async def test_a_node_that_was_marked_not_ready_posts_its_status_again(tmp_path: Path) -> None:
    client = MemoryApi()
    async with serving(client, tmp_path):
        node = await wait_for(client, NODES, "", "one", is_true("Ready"))
        assert node is not None
        ready = condition(node, "Ready")
        others = [each for each in node["status"]["conditions"] if each["type"] != "Ready"]
        node["status"]["conditions"] = [*others, {**ready, "status": "Unknown", "reason": "NodeStatusUnknown"}]
        written = await client.update(NODES, node, subresource="status")
        await wait_for(
            client, NODES, "", "one",
            lambda node: is_true("Ready")(node) and node["metadata"]["resourceVersion"] != written["metadata"]["resourceVersion"],
        )  # fmt: skip


@pytest.mark.slow
async def test_nodes_of_another_state_directory_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    client = MemoryApi()
    await client.create(NODES, registration(a_fleet_node("two"), "another"))
    with pytest.raises(ForeignNodes, match="two"):
        async with serving(client, tmp_path, a_fleet_node("one"), a_fleet_node("two")):
            pass
    with pytest.raises(NotFound):
        await client.get(NODES, "", "one")


@pytest.mark.slow
async def test_an_earlier_runs_node_is_taken_up_with_what_the_fleet_says_now(tmp_path: Path) -> None:
    client = MemoryApi()
    async with serving(client, tmp_path, a_fleet_node("one", labels={"zone": "a"})):
        before = await client.get(NODES, "", "one")
    async with serving(client, tmp_path, a_fleet_node("one", labels={"zone": "b"}, tpu=4)):
        node = await client.get(NODES, "", "one")
        assert node["metadata"]["uid"] == before["metadata"]["uid"]
        assert node["metadata"]["labels"]["zone"] == "b"
        assert node["status"]["allocatable"]["google.com/tpu"] == "4"


@pytest.mark.slow
async def test_a_deleted_node_stays_away_until_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = MemoryApi()
    async with serving(client, tmp_path, a_fleet_node("one"), a_fleet_node("two")) as nodes:
        await client.delete(NODES, "", "one")
        async with asyncio.timeout(WAIT_SECONDS):
            while "node one was deleted" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)
        stranger = await client.create(NODES, a_fleet_node("one"))
        await nodes.leave()
        assert (await client.get(NODES, "", "one"))["metadata"]["uid"] == stranger["metadata"]["uid"], "it is not ours"
        with pytest.raises(NotFound):
            await client.get(NODES, "", "two")


@pytest.mark.slow
async def test_leaving_deletes_the_pods_that_run(tmp_path: Path) -> None:
    client = MemoryApi()
    async with serving(client, tmp_path) as nodes:
        running = a_pod("running", "sh", "-c", "trap 'exit 143' TERM; while true; do sleep 0.02; done", node="one")
        for pod in (a_pod("over", "true", node="one"), running):
            await client.create(PODS, {**pod, "metadata": {**pod["metadata"], "labels": {LABEL_JOB: "job"}}})
        await wait_for(client, PODS, "default", "running", is_true("Ready"))
        over = await wait_for(client, PODS, "default", "over", has_phase("Succeeded"))
        await nodes.leave()
    with pytest.raises(NotFound):
        await client.get(PODS, "default", "running")
    assert await client.get(PODS, "default", "over") == over, "what was over before stays as it was"


@pytest.mark.slow
async def test_an_unknown_simulated_failure_leaves_the_node_healthy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = MemoryApi()
    odd = a_fleet_node("one")
    odd["metadata"]["annotations"] = {"local.diloco.dev/simulate": "dead"}
    async with serving(client, tmp_path, odd):
        await wait_for(client, NODES, "", "one", is_true("Ready"))
        async with asyncio.timeout(WAIT_SECONDS):
            while "write 'stopped' or 'partitioned'" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)


def test_registration_fills_in_a_machine_like_this_one_and_keeps_what_is_said() -> None:
    node = registration(a_fleet_node("one", cpu=1, tpu=4), "me")
    assert node["metadata"]["labels"][LABEL_SERVER] == "me"
    assert node["status"]["capacity"]["cpu"] == "1"
    assert {"memory", "pods", "ephemeral-storage", "google.com/tpu"} < set(node["status"]["allocatable"])
    with pytest.raises(BadNode, match=r"without metadata\.name"):
        registration({"metadata": {}}, "me")


def test_a_volume_is_for_one_claim_and_fits_every_node_of_its_server() -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "diloco-local"}
    claim = {"kind": VOLUME_CLAIMS.kind, "metadata": {"namespace": "default", "name": "state", "uid": "u"}, "spec": spec}
    made = volume(claim, Path("/state/volumes/default/pvc-u"), "me")
    assert made["metadata"]["name"] == "pvc-u"
    assert made["spec"]["claimRef"]["uid"] == "u"
    [term] = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": LABEL_SERVER, "operator": "In", "values": ["me"]}]
