"""What the units of a job share comes with its first slice, and not while it waits for hardware; the whole operator."""

from __future__ import annotations

import asyncio

from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import gpu_pool
from builders.nodes import a_gpu_node
from diloco_operator.api import names
from diloco_operator.kube.client import Obj

KINDS = (names.CONFIG_MAPS, names.SECRETS, names.SERVICES, names.VOLUME_CLAIMS, names.PODS)
SLICES = [f"np-{index}" for index in range(3)]
NODES = [f"{slice_}-0" for slice_ in SLICES]


async def objects(cluster: FakeCluster, job: str = "lm") -> list[str]:
    """Kind and name of all that the job has beside itself."""
    found = []
    for kind in KINDS:
        items = (await cluster.api.list(kind, NS, label_selector=f"{names.LABEL_JOB}={job}")).items
        found += [f"{kind.kind} {each['metadata']['name']}" for each in items]
    return sorted(found)


def is_queued(status: Obj) -> bool:
    return bool(status.get("state") == "Queued")


def condition(status: Obj, type_: str) -> Obj:
    found: Obj = next(each for each in status["conditions"] if each["type"] == type_)
    return found


def of_shared(job: str) -> list[str]:
    secrets = [f"Secret {job}-ca", f"Secret {job}-learners-v6e-0", f"Secret {job}-syncer-tls"]
    return [f"ConfigMap {job}-job", f"PersistentVolumeClaim {job}-syncer", f"Pod {job}-syncer", *secrets, f"Service {job}"]


@operated(slices=[])
async def test_a_job_that_waits_for_hardware_has_nothing_beside_it_and_trains_once_it_gets_a_slice(cluster: FakeCluster) -> None:
    await cluster.apply("lm")
    status = await cluster.when("lm", is_queued)
    await asyncio.sleep(600)
    assert await objects(cluster) == []
    assert status["reason"] == "WaitingForHardware"
    assert condition(status, "Training")["message"] == "no unit has hardware, training.quorum is 1; see Placed"
    assert "needs 1 more slice of tpu-v6e-slice 2x2" in condition(status, "Placed")["message"].replace("tpu-v6e 2x2", "tpu-v6e-slice 2x2")
    await cluster.add_slices("np-0")
    await cluster.trains("lm")
    assert await objects(cluster) == sorted([*of_shared("lm"), "Pod lm-v6e-0-a1-0"])


@operated(slices=[])
async def test_a_waiting_job_is_suspended_and_resumed_without_anything_beside_it(cluster: FakeCluster) -> None:
    await cluster.apply("lm")
    await cluster.when("lm", is_queued)
    await cluster.edit("lm", suspend=True)
    await cluster.when("lm", lambda status: status.get("state") == "Suspended")
    await cluster.edit("lm", suspend=False)
    await cluster.when("lm", is_queued)
    await cluster.settle()
    assert await objects(cluster) == []
    await cluster.add_slices("np-0")
    await cluster.trains("lm")


@operated(slices=SLICES)
async def test_of_many_jobs_for_which_a_unit_would_leave_few_get_a_syncer(cluster: FakeCluster) -> None:
    await cluster.apply("lm", min=2, max=3)
    await cluster.trains_on("lm", *NODES)
    for index in range(16):
        await cluster.apply(f"waits-{index}")
    await cluster.trains("lm", 2)
    await cluster.settle(600)
    await cluster.trains("waits-0")
    # A job gets ready if of all whose dry run has been admitted by then it would get the slice: the oldest, and those answered before it.
    there = [await objects(cluster, f"waits-{index}") for index in range(16)]
    assert sum(found != [] for found in there) < 12
    assert all(not found or f"Pod waits-{index}-syncer" in found for index, found in enumerate(there))


@operated(slices=["np-0"])
async def test_what_is_there_stays_while_a_job_has_lost_all_its_slices(cluster: FakeCluster) -> None:
    await cluster.apply("lm")
    await cluster.trains("lm")
    await cluster.lose_node("np-0-0")
    await cluster.when("lm", lambda status: condition(status, "Training")["reason"] == "WaitingForHardware")
    await cluster.api.delete(names.PODS, NS, "lm-syncer", grace_seconds=0)
    await cluster.settle(60)
    found = await objects(cluster)
    assert [each for each in of_shared("lm") if each not in found] == []
    await cluster.add_slices("np-1")
    await cluster.trains_on("lm", "np-1-0")


@operated(slices=[], runs=False)
async def test_an_operator_that_died_after_the_first_object_leaves_the_others_to_the_next_one(cluster: FakeCluster) -> None:
    await cluster.start()
    cluster.client.rejects_in_earnest = lambda obj: "no" if obj["metadata"]["name"] == "lm-syncer" else ""
    await cluster.apply("lm")
    await cluster.add_slices("np-0")
    await cluster.when("lm", lambda status: "conditions" in status and condition(status, "Training")["reason"] == "WriteRefused")
    await cluster.lose_node("np-0-0")
    cluster.client.rejects_in_earnest = lambda _: ""
    await cluster.restart()
    await cluster.settle(60)
    found = await objects(cluster)
    assert "Pod lm-syncer" in found
    assert "PersistentVolumeClaim lm-syncer" in found
    await cluster.stop()


@operated(slices=[])
async def test_a_syncer_comes_at_once_where_learners_outside_the_cluster_are_expected(cluster: FakeCluster) -> None:
    await cluster.apply("lm", learners={"outside": ["berlin"]}, spec={"syncer": {"externalAddress": "syncer.example.com"}})
    await cluster.settle()
    assert "Pod lm-syncer" in await objects(cluster)
    assert "Secret lm-outside-tls" in await objects(cluster)


@operated(a_gpu_node("gpu-0"), slices=[])
async def test_a_unit_that_asks_for_a_node_and_its_syncer_come_together(cluster: FakeCluster) -> None:
    pool = gpu_pool("big", accelerator="nvidia-a100-80gb", provisioning={"mode": "Autoscaler"})
    await cluster.apply("lm", pool)
    await cluster.settle()
    found = await objects(cluster)
    assert "Pod lm-syncer" in found
    assert "Pod lm-big-0-a1-0" in found
