"""A unit of a minimum moves to a better slice: its successor trains before it leaves, whenever the operator starts anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from builders.cluster_scenes import a_cluster
from builders.fake_cluster import FakeCluster
from builders.jobs import Obj, tpu_pool
from builders.nodes import a_tpu_slice
from builders.virtual_time import run_virtual

pytestmark = pytest.mark.slow
"""The operator itself runs."""
MINIMUM_HOLD = 60.0
"""Seconds: the operator's default. No unit leaves a slice that it has had for less."""


def slow() -> Obj:
    """459 TFLOP/s for each of its 4 chips, says the catalogue."""
    return tpu_pool("slow", "tpu-v5p", "2x2x1")


def fast() -> Obj:
    """918 for each of 4."""
    return tpu_pool("fast", "tpu-v6e", "2x2")


async def a_full_fleet(cluster: FakeCluster, *, min: int, max: int) -> None:
    """`early` has its minimum on the slow slice, `late` waits and takes either kind as it comes."""
    await cluster.add(a_tpu_slice("slow", topology="2x2x1"))
    await cluster.apply("early", fast(), slow(), min=min, max=max)
    await cluster.trains_on("early", "slow-0")
    await cluster.apply("late", slow(), fast(), min=1, max=1, spec={"placement": {"objective": "Preference"}})
    await cluster.settle(MINIMUM_HOLD + 30.0)


def training(status: Obj) -> list[str]:
    return sorted(unit["slice"] for unit in status.get("units", ()) if unit["state"] == "Training")


async def nothing(cluster: FakeCluster) -> None:
    pass


async def the_operator_restarts(cluster: FakeCluster) -> None:
    await cluster.when("early", lambda status: len(status.get("units", ())) == 2, what="a successor")
    await cluster.restart()


@pytest.mark.parametrize("meanwhile", [nothing, the_operator_restarts])
def test_the_minimum_trains_all_the_time_and_the_other_job_gets_the_slice_that_was_left(
    meanwhile: Callable[[FakeCluster], Awaitable[None]],
) -> None:
    async def work() -> None:
        seen: list[list[str]] = []

        def moved(status: Obj) -> bool:
            seen.append(training(status))
            return seen[-1] == ["fast-0"]

        async with a_cluster(scheduler=True) as cluster:
            await cluster.start()
            await a_full_fleet(cluster, min=1, max=2)
            await cluster.add_slices("fast")
            await meanwhile(cluster)
            await cluster.when("early", moved, what="its successor on the fast slice alone")
            assert all(seen), "the job was below its minimum"
            await cluster.trains_on("late", "slow-0")
            await cluster.stop()

    run_virtual(work())


def test_a_job_at_its_maximum_has_no_room_for_a_successor_and_stays() -> None:
    async def work() -> None:
        async with a_cluster(scheduler=True) as cluster, cluster.operating():
            await a_full_fleet(cluster, min=1, max=1)
            await cluster.add_slices("fast")
            await cluster.trains_on("late", "fast-0")
            assert training(await cluster.status("early")) == ["slow-0"]

    run_virtual(work())


def test_a_successor_that_fails_leaves_its_slice_to_the_other_job_and_does_not_come_back() -> None:
    async def work() -> None:
        async with a_cluster(scheduler=True) as cluster, cluster.operating():
            await a_full_fleet(cluster, min=1, max=2)
            await cluster.add_slices("fast")
            for attempt in (1, 2):  # the first failure has no pause, and the second leaves the slice

                def starts(status: Obj, attempt: int = attempt) -> bool:
                    return any((unit["slice"], unit["attempt"]) == ("fast-0", attempt) for unit in status["units"])

                await cluster.when("early", starts)
                await cluster.crash(f"early-fast-0-a{attempt}-0")
            await cluster.trains_on("late", "fast-0")
            assert training(await cluster.status("early")) == ["slow-0"]

    run_virtual(work())
