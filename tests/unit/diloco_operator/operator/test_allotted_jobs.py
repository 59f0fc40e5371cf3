"""Several jobs and too few slices, with the operator running: who gets the slices, and whose units leave theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from builders.cluster_scenes import operated
from builders.fake_cluster import NS, STOP, FakeCluster
from builders.jobs import gpu_pool, tpu_pool
from builders.nodes import a_gpu_node
from diloco_operator.allotment import allotment
from diloco_operator.allotment.decision import Decided, Steps, decide
from diloco_operator.allotment.supply import Supply
from diloco_operator.api import names
from diloco_operator.kube.client import Obj
from diloco_operator.operator import allotment_refresh
from diloco_operator.placement import JobRequest


async def apply(cluster: FakeCluster, name: str, max: int, *, min: int = 1, priority_class: str = "", **pool: str) -> None:
    spec: Obj = {"priorityClassName": priority_class} if priority_class else {}
    await cluster.apply(name, {**tpu_pool("v6e", "tpu-v6e", "2x2", max=max), **pool}, min=min, max=max, spec=spec)


async def urgent(cluster: FakeCluster, value: int) -> None:
    """The PriorityClass `urgent`."""
    meta = {"metadata": {"name": "urgent"}, "value": value}
    await cluster.api.create(names.PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **meta})


async def states(cluster: FakeCluster, name: str) -> list[str]:
    return sorted(state for _, state in (await cluster.units(name)).values())


async def until(cluster: FakeCluster, name: str, wanted: list[str]) -> None:
    await cluster.when(name, lambda status: sorted(unit["state"] for unit in status.get("units", ())) == wanted, what=str(wanted))


@pytest.mark.slow
@operated(slices=["np-a", "np-b", "np-c"])
async def test_scavenged_job_gives_one_slice_back_for_one_missing_slice_and_takes_it_again_later(cluster: FakeCluster) -> None:
    await apply(cluster, "scavenger", 3, capacity="Scavenged")
    await until(cluster, "scavenger", ["Training"] * 3)
    await apply(cluster, "paid", 1)
    await until(cluster, "paid", ["Training"])
    assert await states(cluster, "scavenger") == ["Pending", "Training", "Training"]
    await asyncio.sleep(600)
    assert await states(cluster, "scavenger") == ["Pending", "Training", "Training"]
    await cluster.api.delete(names.DILOCO_JOBS, NS, "paid")
    await until(cluster, "scavenger", ["Training"] * 3)


async def restarts(cluster: FakeCluster, name: str) -> int:
    return sum(unit.get("restarts", 0) for unit in (await cluster.status(name))["units"])


@pytest.mark.slow
@pytest.mark.parametrize("priority", [0, 1_000_000])
@operated(slices=["a", "b", "c"])
async def test_a_younger_job_gets_its_minimum_although_an_older_one_takes_every_slice(cluster: FakeCluster, priority: int) -> None:
    await urgent(cluster, priority)
    await apply(cluster, "old", 10)
    await until(cluster, "old", ["Training"] * 3)
    await apply(cluster, "young", 1, priority_class="urgent")
    await until(cluster, "young", ["Training"])
    assert (await states(cluster, "old")).count("Training") == 2
    assert await restarts(cluster, "old") == 0
    await asyncio.sleep(600)
    assert ((await states(cluster, "old")).count("Training"), await states(cluster, "young")) == (2, ["Training"])


@pytest.mark.slow
@operated(slices=["a", "b", "c", "d"])
async def test_jobs_of_equal_priority_share_what_is_beyond_their_minima(cluster: FakeCluster) -> None:
    await apply(cluster, "first", 10)
    await until(cluster, "first", ["Training"] * 4)
    await apply(cluster, "second", 10)
    await until(cluster, "second", ["Training"] * 2)
    assert (await states(cluster, "first")).count("Training") == 2
    before = await cluster.pod_phases()
    await asyncio.sleep(600)
    assert await cluster.pod_phases() == before, "the jobs exchange slices"


@pytest.mark.slow
@operated(slices=["a"], runs=False)
async def test_an_operator_that_restarts_keeps_a_slice_for_the_job_that_waits_for_its_minimum(cluster: FakeCluster) -> None:
    async with cluster.operating():
        await apply(cluster, "old", 10)
        await until(cluster, "old", ["Training"])
        await apply(cluster, "young", 1)
        await until(cluster, "young", ["Pending"])
    await cluster.add_slices("b")
    async with cluster.operating():
        await until(cluster, "young", ["Training"])
        assert await states(cluster, "old") == ["Training"]


ALL: Obj = {"suspend": False, "learners": {"max": 4}}
"""The job of the next test wants all four slices."""


@pytest.mark.slow
@pytest.mark.parametrize("fewer", [{"suspend": True}, {"learners": {"max": 1}}], ids=["suspended", "scaled down"])
@operated(slices=["a", "b", "c", "d"])
async def test_units_that_left_their_slices_start_again_only_on_those_that_they_may_keep(cluster: FakeCluster, fewer: Obj) -> None:
    await apply(cluster, "old", 4)
    await until(cluster, "old", ["Training"] * 4)
    await asyncio.sleep(100)  # longer than a unit may keep slices that it has just got
    await apply(cluster, "young", 4)
    await cluster.edit("old", **fewer)
    await asyncio.sleep(STOP - 0.05)
    await cluster.edit("old", **ALL)  # just before the pods have ended
    await until(cluster, "young", ["Training"] * 2)
    await until(cluster, "old", ["Pending", "Pending", "Training", "Training"])
    await cluster.settle(200)
    # Two for each job. A unit that leaves for `young` makes no attempt after its first; of those that stay each makes one more at most.
    units = (await cluster.status("old"))["units"]
    assert [unit["attempt"] for unit in units if unit["state"] == "Pending"] == [1, 1]
    assert all(unit["attempt"] <= 2 for unit in units)


async def until_said(cluster: FakeCluster, name: str, text: str) -> Obj:
    """The status of the job once its first pool says this."""
    return await cluster.when(name, lambda status: status.get("pools", [{}])[0].get("message", "").endswith(text), what=repr(text))


@pytest.mark.slow
@operated(slices=["a", "b", "c"])
async def test_pool_that_waits_names_the_job_that_holds_the_slices_and_what_of_them_is_surplus(cluster: FakeCluster) -> None:
    await urgent(cluster, 1000)
    await apply(cluster, "llama", 10, priority_class="urgent")
    await until(cluster, "llama", ["Training"] * 3)
    await apply(cluster, "gemma", 3)
    held = "1 of this job; 2 held by job default/llama (1 of them surplus, beyond its minimum; its priority is 1000, this job's 0)"
    await until_said(cluster, "gemma", held)
    await until_said(cluster, "llama", "2 of this job; 1 held by job default/gemma (none surplus)")
    await apply(cluster, "late", 2, min=2)
    await until_said(  # it gets both slices or none, so the one that is surplus stays
        cluster,
        "late",
        "the fleet has 3: 3 held by 2 jobs: 2 by default/llama (1 of them surplus, beyond its minimum; its priority is 1000, "
        "this job's 0), 1 by default/gemma (none surplus)",
    )


@operated(slices=["a"])
async def test_status_explains_once_why_slices_are_lacking(cluster: FakeCluster) -> None:
    pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=3)
    await cluster.apply("lm", pool, {**pool, "name": "more"}, min=6)
    status = await until_said(cluster, "lm", "the fleet has 1: 1 free, but too few for its minimum, which it gets as a whole")
    said = {each["type"]: each.get("message", "") for each in status["conditions"]}
    assert [kind for kind, message in said.items() if "the fleet has" in message] == ["Placed"]
    assert said["Placed"] == (
        "0 of 6 units have hardware, learners.min is 6; pool v6e needs 3 more slices of tpu-v6e 2x2, pool more needs 3 more slices of "
        "tpu-v6e 2x2; the fleet has 1: 1 free, but too few for its minimum, which it gets as a whole. Add nodes, or lower "
        "learners.min or pools[].learners.min"
    )
    assert said["Degraded"].endswith("v6e-0, v6e-1, v6e-2, more-0 and 2 more wait for slices, see Placed")
    assert all("fleet" not in unit["message"] for unit in status["units"])


@pytest.mark.parametrize("large", [False, True])
@operated(a_gpu_node("gpu-0"), slices=["a"], runs=False)
async def test_a_defect_in_the_allotment_is_told_to_its_jobs_and_tried_again_and_stops_no_others(cluster: FakeCluster, large: bool) -> None:
    """`large`: nothing is decided at once."""
    fails = [True]

    def defective(component: int, requests: Sequence[JobRequest], supply: Supply) -> Steps[Decided]:
        if fails and any("/bad/" in request.job for request in requests):
            raise ZeroDivisionError
        return decide(component, requests, supply)

    await cluster.apply("bad", gpu_pool(acceleratorsPerHost=8), min=1, max=1)
    with patch.object(allotment, "decide", defective), patch.object(allotment_refresh, "AT_ONCE", 0 if large else 30):
        async with cluster.operating():
            await apply(cluster, "good", 1)
            await until(cluster, "good", ["Training"])
            await asyncio.sleep(60)
            [told] = await cluster.events("OperatorDefect")
            assert told["involvedObject"]["name"] == "bad"
            assert told["message"].startswith("hardware cannot be allotted (ZeroDivisionError) and is tried again")
            assert 4 <= told["count"] <= 12, "after 1, 2, 4, 8 s, and then each 10 s"
            fails.clear()
            await until(cluster, "bad", ["Training"])
