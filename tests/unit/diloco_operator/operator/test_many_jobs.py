"""Many jobs of one namespace beside one of another: what is decided before its own job is counted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, wall_clock
from builders.jobs import a_manifest, tpu_pool
from builders.operator_run import an_api
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.operator import RunConfig
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
