"""Jobs that wait for a minimum of several slices are not passed for ever by those behind them. The operator runs."""

from __future__ import annotations

import asyncio
import logging

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import NS, FakeCluster
from builders.jobs import Obj, gpu_pool, tpu_pool
from builders.nodes import a_gpu_node
from diloco_operator.api import names

pytestmark = pytest.mark.slow


async def urgent(cluster: FakeCluster) -> None:
    """The PriorityClass `urgent`, of value 1000."""
    meta = {"metadata": {"name": "urgent"}, "value": 1000}
    await cluster.api.create(names.PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta})


async def apply(cluster: FakeCluster, name: str, *pools: Obj, min: int = 1, priority_class: str = "") -> None:
    spec: Obj = {"priorityClassName": priority_class} if priority_class else {}
    await cluster.apply(name, *pools, min=min, spec=spec)


async def waits(cluster: FakeCluster, name: str) -> None:
    await cluster.when(name, lambda status: {unit["state"] for unit in status.get("units", ())} == {"Pending"}, what="waiting")


@pytest.mark.parametrize(("priority_class", "slices"), [("urgent", 2), ("urgent", 4), ("", 2)])
@operated()
async def test_a_job_of_several_slices_starts_although_small_ones_come_whenever_a_slice_is_freed(
    cluster: FakeCluster, priority_class: str, slices: int
) -> None:
    """It needs all slices, each of which a job of one unit has. Of equal priority it is the older one."""
    await urgent(cluster)
    await cluster.add_slices(*(f"np-{index}" for index in range(slices)))
    for index in range(slices):
        await apply(cluster, f"small-{index}")
        await cluster.trains(f"small-{index}", 1)
    await asyncio.sleep(65)
    await apply(cluster, "big", min=slices, priority_class=priority_class)
    await waits(cluster, "big")
    await asyncio.sleep(65)
    for index in range(slices):
        await cluster.complete((NS, f"small-{index}"))
        await apply(cluster, f"late-{index}")
        await asyncio.sleep(65)
    await cluster.trains("big", slices)
    assert {name: await cluster.units(name) for name in (f"late-{index}" for index in range(slices))} == {
        f"late-{index}": {"v6e-0": ("", "Pending")} for index in range(slices)
    }


@pytest.mark.parametrize("hosts", [2, 8])
@operated()
async def test_free_hosts_go_to_the_job_of_higher_priority_when_units_have_several_sizes(cluster: FakeCluster, hosts: int) -> None:
    await urgent(cluster)
    await cluster.add([a_gpu_node(f"gpu-{index}") for index in range(hosts)])
    await apply(cluster, "first", gpu_pool(hosts=2, acceleratorsPerHost=8, max=hosts // 2), min=hosts // 2)
    await cluster.trains("first", hosts // 2)
    await apply(cluster, "small", gpu_pool(hosts=1, acceleratorsPerHost=8, max=1))
    await asyncio.sleep(5)
    await apply(cluster, "big", gpu_pool(hosts=2, acceleratorsPerHost=8, max=hosts // 2), min=hosts // 2, priority_class="urgent")
    for name in ("small", "big"):
        await waits(cluster, name)
    await asyncio.sleep(65)
    await cluster.complete((NS, "first"))
    await cluster.trains("big", hosts // 2)
    await waits(cluster, "small")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("priority_class", ["", "urgent"])
@operated()
async def test_a_minimum_comes_before_surplus_in_whatever_order_the_pools_of_the_other_job_stand(
    cluster: FakeCluster, priority_class: str, turned: bool
) -> None:
    """The other job has its minimum without the host that this one needs."""
    await urgent(cluster)
    await cluster.add([a_gpu_node(f"gpu-{index}") for index in range(2)])
    await cluster.add_slices("np-0", "np-1", "np-2")
    pools = [gpu_pool(hosts=1, acceleratorsPerHost=8, max=1), tpu_pool("v6e", "tpu-v6e", "2x2", max=3)]
    await cluster.apply("many", *(reversed(pools) if turned else pools), min=3, max=4)
    await cluster.trains("many", 4)
    await asyncio.sleep(65)
    await apply(cluster, "two-hosts", gpu_pool(hosts=2, acceleratorsPerHost=8, max=1), priority_class=priority_class)
    await cluster.trains("two-hosts", 1)
    assert len(await cluster.trains("many", 3)) == 3


@operated()
async def test_a_unit_of_several_hosts_starts_although_units_of_one_come_whenever_a_host_is_freed(cluster: FakeCluster) -> None:
    await urgent(cluster)
    await cluster.add([a_gpu_node(f"gpu-{index}") for index in range(2)])
    one = gpu_pool(hosts=1, acceleratorsPerHost=8, max=1)
    for index in range(2):
        await apply(cluster, f"small-{index}", one)
        await cluster.trains(f"small-{index}", 1)
    await apply(cluster, "big", gpu_pool(hosts=2, acceleratorsPerHost=8, max=1), priority_class="urgent")
    await waits(cluster, "big")
    await asyncio.sleep(65)
    for index in range(2):
        await apply(cluster, f"late-{index}", one)
        await cluster.complete((NS, f"small-{index}"))
        await asyncio.sleep(65)
    await cluster.trains("big", 1)


@operated(slices=["a", "b"])
async def test_the_log_at_level_debug_tells_what_each_pass_found_and_decided_and_who_was_allotted_what(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "diloco_operator")
    await urgent(cluster)
    for index in range(2):
        await apply(cluster, f"small-{index}")
        await cluster.trains(f"small-{index}", 1)
    await apply(cluster, "big", min=2, priority_class="urgent")
    await waits(cluster, "big")
    await cluster.complete((NS, "small-0"))
    await cluster.settle()
    said = caplog.messages
    for line in (
        "found generation 1; pods: none; report of the syncer: none",
        "allotted to job default/small-0: 1 free for pool v6e",
        "allotted to job default/big: asks about pods of v6e; 1 free stay for its minimum",
        "decided: ask whether pods of v6e are admitted; write status Queued; want slices: 2 of v6e",
    ):
        assert any(line in each for each in said), (line, "\n".join(said))
    assert any(each.startswith("decided: create Pod small-0-v6e-0-a1-0") for each in said), said


@operated(slices=["a", "b"])
async def test_no_slice_stays_free_for_a_minimum_that_is_larger_than_the_cluster(cluster: FakeCluster) -> None:
    await urgent(cluster)
    for index in range(2):
        await apply(cluster, f"small-{index}")
        await cluster.trains(f"small-{index}", 1)
    await apply(cluster, "huge", min=3, priority_class="urgent")
    await waits(cluster, "huge")
    await cluster.complete((NS, "small-0"))
    await apply(cluster, "late")
    await cluster.trains("late", 1)


@operated()
async def test_no_host_stays_free_for_pools_that_share_hosts_and_whose_minimum_is_larger_than_the_cluster(cluster: FakeCluster) -> None:
    """Two units of two hosts and four of one would need eight hosts of six."""
    await cluster.add([a_gpu_node(f"gpu-{index}") for index in range(6)])
    wide, narrow = gpu_pool("wide", hosts=2, acceleratorsPerHost=8, max=2), gpu_pool("narrow", hosts=1, acceleratorsPerHost=8, max=4)
    await cluster.apply("huge", wide, narrow, min=6, max=6)
    await waits(cluster, "huge")
    await cluster.apply("late", narrow, wide, min=5, max=6)
    await cluster.trains("late", 5)


@operated(slices=["a", "b"], runs=False)
async def test_a_slice_that_stays_free_for_a_minimum_does_so_while_the_operator_restarts(cluster: FakeCluster) -> None:
    """Of those that wait the operator looks at the one of lower priority first, by its name."""
    await urgent(cluster)
    await cluster.start()
    await apply(cluster, "small")
    await cluster.trains("small", 1)
    await apply(cluster, "big", min=2, priority_class="urgent")
    await waits(cluster, "big")
    await apply(cluster, "another")
    await waits(cluster, "another")
    await cluster.restart()
    await waits(cluster, "another")
    await cluster.complete((NS, "small"))
    await cluster.trains("big", 2)
    await cluster.stop()
