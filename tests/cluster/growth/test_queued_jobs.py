"""Jobs whose units the real Kueue gives quota to, on nodes that are there."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from builders.control_plane import ControlPlane
from builders.growing_cluster import GrowingCluster, growing_cluster
from builders.jobs import JobBuilder, gpu_pool, tpu_pool
from builders.kube_jobs import operator
from builders.kueue import Kueue, condition
from builders.local import has_phase, is_gone, wait_for
from builders.local_jobs import learner_template
from builders.nodes import GPU, TPU, a_fleet_gpu_node, a_fleet_tpu_node
from diloco_operator.api import names
from diloco_operator.api.names import DILOCO_JOBS, NODE_POOL, NODES
from simulated_nodes.names import ANNOTATION_SIMULATE

type Obj = dict[str, Any]


H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
V5P = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}
ONE, TWO = "h100-0", "h100-1"


def a_fleet() -> list[Obj]:
    """Three hosts of eight H100, and two slices of two hosts each."""
    tpus = []
    for pool in ("np-a", "np-b"):
        for host in range(2):
            node = a_fleet_tpu_node(f"{pool}-{host}", topology="2x2x2")
            node["metadata"]["labels"][NODE_POOL] = pool
            tpus.append(node)
    return [*(a_fleet_gpu_node(f"gpu-{index}") for index in range(3)), *tpus]


@pytest.fixture
async def cluster(plane: ControlPlane, queues: Kueue, tmp_path: Path) -> AsyncIterator[GrowingCluster]:
    """With the operator of the chart."""
    async with growing_cluster(plane, tmp_path, nodes="made-by=nobody", fleet=a_fleet()) as found:
        with operator(plane, tmp_path):
            yield found


def a_queue(queues: Kueue, name: str, units: int, *, tpus: bool = False, **spec: Any) -> str:
    """A queue of its own with quota for so many units: of eight GPUs, or of eight chips on two hosts."""
    resource, labels = (TPU, V5P) if tpus else (GPU, H100)
    queues.flavor(name, labels)
    queues.cluster_queue(name, {name: {resource: str(8 * units)}}, **spec)
    queues.local_queue(name, name)
    return name


def a_job(name: str, queue: str, *pools: Obj, min: int = 2, restarts: int = 5) -> Obj:
    """A job that never ends, of two units with one host each, unless `pools` says otherwise. One unit trains alone, too."""
    template = learner_template(60, QUADRATIC_STEP_MS=100)
    wanted = pools or (gpu_pool("h100", hosts=1, acceleratorsPerHost=8, max=2, template=template),)
    training = {"steps": 1_000_000, "syncInterval": 8, "fragments": 8, "overlapSteps": 2, "quorum": 1}
    builder = JobBuilder(name).with_learners(min, 2).with_restarts(restarts, initial="0s").with_spec(queueName=queue)
    return builder.with_pools(*wanted).with_training(**training).build()


async def trains(cluster: GrowingCluster, job: str, unit: str, attempt: int = 1) -> Obj:
    return await cluster.unit(job, unit, lambda found: found.get("state") == "Training" and found["attempt"] == attempt)


async def kill(cluster: GrowingCluster, job: str, unit: str) -> None:
    pod = await cluster.pod_of(job, unit)
    assert await cluster.simulated.kubelet.signal("default", pod["metadata"]["name"], signal.SIGKILL)


async def group(cluster: GrowingCluster, job: str, unit: str) -> str:
    """The pod group of the unit's newest attempt."""
    found: str = (await cluster.pod_of(job, unit))["metadata"]["labels"][names.KUEUE_GROUP]
    return found


def waits(unit: Obj) -> bool:
    """Kueue 0.19 says nothing of a unit like one that did not fit."""
    return bool(unit.get("reason") == "WaitingForQuota" and re.search("Kueue (says: |has said nothing)", unit["message"]))


async def one_trains(cluster: GrowingCluster, job: str) -> tuple[Obj, Obj]:
    """The unit that trains, and the one that waits: either may come first to Kueue."""

    def found(obj: Obj | None) -> tuple[list[Obj], list[Obj]]:
        units = ((obj or {}).get("status") or {}).get("units", ())
        return [unit for unit in units if unit["state"] == "Training"], [unit for unit in units if waits(unit)]

    job_of_both = await cluster.job(job, lambda obj: [len(each) for each in found(obj)] == [1, 1])
    [first], [second] = found(job_of_both)
    return first, second


async def test_a_unit_keeps_its_quota_over_a_crash_while_another_waits(cluster: GrowingCluster, queues: Kueue) -> None:
    await cluster.apply(a_job("shared", a_queue(queues, "one", units=1)))
    first, waiting = await one_trains(cluster, "shared")
    one, two = first["name"], waiting["name"]
    assert "insufficient" in waiting["message"], "Kueue's words"
    assert first["slice"] == (await cluster.pod_of("shared", one))["spec"]["nodeName"], "the operator learned it from the binding"
    granted = await group(cluster, "shared", one)
    await kill(cluster, "shared", one)
    await trains(cluster, "shared", one, attempt=2)
    assert await group(cluster, "shared", one) == granted
    assert queues.is_admitted(granted)
    assert waits(await cluster.unit("shared", two, bool))


async def test_a_unit_on_a_lost_node_starts_again_with_its_quota_while_another_waits(cluster: GrowingCluster, queues: Kueue) -> None:
    await cluster.apply(a_job("lost", a_queue(queues, "kept", units=1)))
    first, waiting = await one_trains(cluster, "lost")
    one, node = first["name"], first["slice"]
    granted = await group(cluster, "lost", one)
    await cluster.kubectl("annotate", "node", node, f"{ANNOTATION_SIMULATE}=stopped")
    await cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    again = await trains(cluster, "lost", one, attempt=2)
    assert (again["slice"] != node, again["failures"]) == (True, [])
    assert await group(cluster, "lost", one) == granted
    assert queues.is_admitted(granted)
    assert waits(await cluster.unit("lost", waiting["name"], bool))
    await cluster.pod(f"lost-{one}-a1-0", is_gone)  # though no kubelet has said that it ended


async def test_a_unit_that_is_given_up_leaves_its_quota_to_the_one_that_waits(cluster: GrowingCluster, queues: Kueue) -> None:
    await cluster.apply(a_job("given", a_queue(queues, "another", units=1), restarts=0))
    first, waiting = await one_trains(cluster, "given")
    await kill(cluster, "given", first["name"])
    await cluster.unit("given", first["name"], lambda unit: unit.get("state") == "Failed")
    await trains(cluster, "given", waiting["name"])


async def test_a_preempted_unit_drains_the_job_goes_on_and_the_unit_comes_back(cluster: GrowingCluster, queues: Kueue) -> None:
    queues.priority_class("urgent", 1000)
    queue = a_queue(queues, "two", units=2, preemption={"withinClusterQueue": "LowerPriority"})
    await cluster.apply(a_job("preempted", queue))
    for unit in (ONE, TWO):
        await trains(cluster, "preempted", unit)
    labels = {names.KUEUE_QUEUE: queue, names.KUEUE_GROUP: "stranger", names.KUEUE_PRIORITY: "urgent"}
    alone = {names.KUEUE_GROUP_COUNT: "1", names.KUEUE_RETRIABLE: "false"}
    await cluster.run_pod("stranger", {GPU: "8"}, labels=labels, annotations=alone)
    await cluster.pod("stranger", has_phase("Running"))

    def one_waits(job: Obj | None) -> bool:
        return sorted(unit["state"] for unit in ((job or {}).get("status") or {}).get("units", ())) == ["Starting", "Training"]

    job = await cluster.job("preempted", one_waits)
    [out] = [unit["name"] for unit in job["status"]["units"] if unit["state"] == "Starting"]
    again = await cluster.unit("preempted", out, waits)
    assert (again["failures"], again["restarts"], again["attempt"]) == ([], 1, 2)
    assert "drained after" in cluster.log(f"preempted-{out}-a1-0")
    assert condition(job, "Training")["status"] == "True"
    await cluster.delete_pod("stranger")
    await trains(cluster, "preempted", out, attempt=2)


async def test_a_quota_that_shrinks_takes_nothing_until_its_queue_is_drained_and_units_come_back_with_it(
    cluster: GrowingCluster, queues: Kueue
) -> None:
    queue = a_queue(queues, "shrinks", units=2)
    await cluster.apply(a_job("shrunk", queue))
    for unit in (ONE, TWO):
        await trains(cluster, "shrunk", unit)
    queues.set_quota(queue, queue, GPU, "8")  # Kueue admits nothing beyond it, and leaves what is admitted alone
    await kill(cluster, "shrunk", TWO)
    await trains(cluster, "shrunk", TWO, attempt=2)

    queues.stop(queue, "HoldAndDrain")
    for unit in (ONE, TWO):
        found = await cluster.unit("shrunk", unit, waits)
        assert len(found["failures"]) == (unit == TWO), "a drained unit has not failed"
        assert "ClusterQueue" in found["message"], "Kueue's words: that it is stopped, or inactive"
    assert "drained after" in cluster.log(f"shrunk-{ONE}-a1-0")

    queues.stop(queue, "None")
    _, waiting = await one_trains(cluster, "shrunk")
    assert "insufficient" in waiting["message"]
    queues.set_quota(queue, queue, GPU, "16")
    await trains(cluster, "shrunk", waiting["name"], attempt=waiting["attempt"])


async def test_two_hosts_of_a_unit_are_never_in_two_slices(cluster: GrowingCluster, queues: Kueue) -> None:
    template = learner_template(QUADRATIC_STEP_MS=100)
    pool = tpu_pool("v5p", topology="2x2x2", max=2, template=template)
    await cluster.apply(a_job("slices", a_queue(queues, "tpus", units=2, tpus=True), pool))
    slices = set()
    for name in ("v5p-0", "v5p-1"):
        unit = await cluster.unit("slices", name, lambda found: bool(found.get("slice")))
        hosts = [pod for pod in await cluster.pods("slices") if pod["metadata"]["labels"].get(names.LABEL_UNIT) == name]
        pools = [(await cluster.client.get(NODES, "", pod["spec"]["nodeName"]))["metadata"]["labels"][NODE_POOL] for pod in hosts]
        assert pools == [pools[0]] * 2
        assert unit["slice"] == pools[0]
        slices.add(pools[0])
    assert slices == {"np-a", "np-b"}


async def test_a_job_that_is_deleted_gives_its_quota_to_the_next_one(cluster: GrowingCluster, queues: Kueue) -> None:
    queue = a_queue(queues, "next", units=1)
    await cluster.apply(a_job("first", queue))
    await one_trains(cluster, "first")
    groups = [await group(cluster, "first", unit) for unit in (ONE, TWO)]
    await cluster.apply(a_job("second", queue, min=1))
    await cluster.unit("second", ONE, waits)
    await cluster.kubectl("delete", "dlj", "first", "--wait=false")
    await wait_for(cluster.client, DILOCO_JOBS, "default", "first", is_gone)
    await trains(cluster, "second", ONE)
    assert not any(queues.is_admitted(each) for each in groups)
