"""Many jobs of one namespace beside one of another: what is decided before its own job is counted."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from unittest.mock import patch

import pytest
from builders.fake_cluster import FakeCluster, wall_clock
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node
from builders.operator_run import an_api
from builders.virtual_time import run_virtual
from diloco_operator.allotment import Allotment
from diloco_operator.allotment.decision import Steps as AllotmentSteps
from diloco_operator.api import names
from diloco_operator.operator import RunConfig, allotment_refresh
from diloco_operator.plan import Plan
from diloco_operator.reconcile import ObservedState

CROWD = 100
WORKERS = 4


async def crowd_of(api: Any, count: int) -> None:
    await api.create(names.NAMESPACES, {"metadata": {"name": "crowd"}})
    for index in range(count):
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=1)
        await api.create(names.DILOCO_JOBS, a_manifest(f"crowd-{index:04d}", namespace="crowd", min=1, max=1, pools=(pool,)))


@pytest.mark.slow
def test_a_job_of_another_namespace_is_decided_while_many_of_another_wait_at_the_start() -> None:
    decided: list[str] = []

    def decide(observed: ObservedState, now: datetime) -> Plan:
        decided.append(observed.job.namespace)
        return Plan()

    async def scenario() -> None:
        api = await an_api(wall_clock)
        await crowd_of(api, CROWD)
        await api.create(names.NAMESPACES, {"metadata": {"name": "quiet"}})
        await api.create(names.DILOCO_JOBS, a_manifest("lm", namespace="quiet"))  # the last one that the operator hears of
        async with FakeCluster(api) as cluster, cluster.operating(RunConfig(workers=WORKERS, stop_grace=0), decide=decide):
            await cluster.settle()

    run_virtual(scenario())
    assert decided.count("crowd") == CROWD
    assert decided.index("quiet") <= 1  # the second turn is that of the second namespace


async def competitors(api: Any, first: int, last: int) -> None:
    """Jobs of which no two are equal, and which all want the same slices."""
    for index in range(first, last):
        pool = tpu_pool("v6e", "tpu-v6e", "2x2", max=1 + index)
        await api.create(names.DILOCO_JOBS, a_manifest(f"crowd-{index:04d}", namespace="crowd", min=1, max=1 + index, pools=(pool,)))


class Steps:
    """Counts the steps of allotments."""

    def __init__(self) -> None:
        self.allotments = 0
        self.in_this_turn = 0
        self.most_in_a_turn = 0

    def counted(self, steps: AllotmentSteps[set[str]]) -> AllotmentSteps[set[str]]:
        self.allotments += 1
        found = None
        while True:
            try:
                problem = steps.send(found)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if not self.in_this_turn:
                asyncio.get_running_loop().call_soon(self.next_turn)
            self.in_this_turn += 1
            self.most_in_a_turn = max(self.most_in_a_turn, self.in_this_turn)
            found = yield problem

    def next_turn(self) -> None:
        self.in_this_turn = 0


def test_one_allotment_in_short_turns_serves_all_of_many_jobs_that_come() -> None:
    steps, in_steps = Steps(), Allotment.in_steps
    before, many = 20, 60

    async def scenario() -> None:
        api = await an_api(wall_clock)
        await crowd_of(api, 0)
        async with FakeCluster(api) as cluster:
            await cluster.add([a_node("cpu-0", resources={"cpu": "64"})])
            await cluster.add_slices("a", "b")
            await competitors(api, 0, before)
            async with cluster.operating():
                await cluster.settle()
                assert steps.allotments == 1  # that of the start
                await competitors(api, before, before + many)
                await cluster.settle()
                found = await api.list(names.PODS, "crowd")
                owners = {
                    pod["metadata"]["labels"][names.LABEL_JOB] for pod in found.items if names.LABEL_UNIT in pod["metadata"]["labels"]
                }
                assert owners == {"crowd-0000", "crowd-0001"}

    with (
        patch.object(Allotment, "in_steps", lambda self, component: steps.counted(in_steps(self, component))),
        patch.object(allotment_refresh, "AT_ONCE", before),
        patch.object(allotment_refresh, "_TURN_STEPS", 10),
    ):
        run_virtual(scenario())
    assert steps.most_in_a_turn == 10
    # More than one, as some jobs come while it is made; one for each job would be 60.
    assert 2 <= steps.allotments <= 8
