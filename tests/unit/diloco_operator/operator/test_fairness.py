"""A thousand failures of one job must not delay another job. On virtual time: a request takes 10 ms, a decision as long as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.operator_run import an_api, an_operator, running
from builders.scripted_api import ScriptedApi
from builders.virtual_time import VirtualLoop, run_virtual
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.operator.events import EventRecorder, Subject
from diloco_operator.operator.executor import Executor
from diloco_operator.plan import Create, Delete, Plan, ReplaceStatus
from diloco_operator.reconcile import ObservedState

pytestmark = pytest.mark.slow

REQUEST = 0.01


def replacement(name: str, pods: int) -> Plan:
    """The plan after failures: a successor for each pod, the status, the deletes of the old pods."""
    creates = tuple(Create(names.PODS, {"metadata": {"namespace": "ns", "name": f"{name}-{i}-a2"}}) for i in range(pods))
    deletes = tuple(Delete(names.PODS, "ns", f"{name}-{i}-a1", uid=f"{name}-{i}") for i in range(pods))
    return Plan(creates=creates, status=ReplaceStatus(names.DILOCO_JOBS, "ns", name, f"uid-{name}", {}), deletes=deletes)


def seconds_of_replacement(others: int) -> list[float]:
    """How long each of 20 replacements of one pod takes while another job replaces `others` pods."""

    async def run() -> list[float]:
        client: Any = ScriptedApi()
        executor = Executor(client, EventRecorder(client, lambda: datetime(2026, 1, 1, tzinfo=UTC)))
        loop = asyncio.get_running_loop()
        big = asyncio.create_task(executor.execute(Subject("ns", "big", "uid-big"), replacement("big", others)))
        taken = []
        for index in range(20):
            begun = loop.time()
            await executor.execute(Subject("ns", "small", "uid-small"), replacement(f"small-{index}", 1))
            taken.append(loop.time() - begun)
        assert others == 0 or not big.done()  # else some replacements had no contention
        await big
        return taken

    return run_virtual(run())


def test_the_writes_of_a_thousand_failures_do_not_delay_those_of_one_of_another_job() -> None:
    quiet, noisy = seconds_of_replacement(0), seconds_of_replacement(2000)
    assert max(quiet) < 3 * REQUEST + 0.001  # a create, the status, a delete
    assert max(noisy) <= 2 * max(quiet)


def test_a_job_with_long_decisions_leaves_time_for_the_others() -> None:
    deciding = 0.2  # seconds for the big job
    seconds = 20
    decided: dict[str, list[float]] = {"big": [], "small": []}
    asked: list[float] = []

    def decide(observed: ObservedState, now: datetime) -> Plan:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if observed.job.name == "big":
            loop._jumping.now += deciding
        decided[observed.job.name].append(loop.time())
        return Plan()

    async def touch(api: MemoryApi, name: str, until: float, pause: float, note: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        while loop.time() < until:
            count += 1
            note(loop.time())
            patch = {"metadata": {"annotations": {"touched": str(count)}}}
            await api.patch(names.DILOCO_JOBS, "default", name, patch)
            await asyncio.sleep(pause)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        api = await an_api(loop.time)
        async with (
            FakeCluster(api, loop.time) as cluster,
            running(an_operator(api, FakeTelemetry(cluster), now=loop.time, decide=decide)),
        ):
            for name in decided:
                manifest = a_manifest(name, namespace="default", pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=6)])
                await api.create(names.DILOCO_JOBS, manifest)
            await asyncio.sleep(1)
            end = loop.time() + seconds
            await asyncio.gather(touch(api, "big", end, 0.05, lambda _: None), touch(api, "small", end, 0.7, asked.append))

    run_virtual(run())
    begun = asked[0]
    share = sum(deciding for at in decided["big"] if at >= begun) / seconds
    assert 0.2 <= share <= 0.25 + deciding / seconds + 1e-9  # a quarter, plus or minus one decision at the edges
    waits = [min(at for at in decided["small"] if at >= moment) - moment for moment in asked]
    assert max(waits) <= deciding + 0.01  # at most one decision for the big job runs
