"""Reconciles of a job with many units are expensive: there are few, with few status writes, and other jobs go on. On virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_slice
from builders.operator_run import an_operator, running
from builders.virtual_time import run_virtual, until
from diloco_local.memory import MemoryApi
from diloco_operator.api import names
from diloco_operator.api.crd import build_crd
from diloco_operator.kube.client import Obj
from diloco_operator.operator import DecisionOptions, RunConfig
from diloco_operator.operator.reconciler import Judge
from diloco_operator.reconcile import Judged, ObservedState, OperatorConfig, judge

START = 1_800_000_000.0
UNITS = 60
"""More units than a job that is reconciled at once may have."""


class CountingApi(MemoryApi):
    """Records when the status of a job is written. A create takes 10 ms."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(clock=lambda: datetime.fromtimestamp(now(), tz=UTC), random=random.Random(1))
        self.status_writes: list[float] = []

    async def create(self, *args: Any, **how: Any) -> Obj:
        await asyncio.sleep(0.01)
        return await super().create(*args, **how)

    async def update(self, *args: Any, subresource: str = "", **how: Any) -> Obj:
        if args[0] is names.DILOCO_JOBS and subresource == "status":
            self.status_writes.append(asyncio.get_running_loop().time())
        return await super().update(*args, subresource=subresource, **how)


class Stand:
    """An operator beside an API server in memory whose nodes have room for `slices` units."""

    def __init__(self, api: CountingApi, cluster: FakeCluster) -> None:
        self.api = api
        self.cluster = cluster

    async def apply(self, name: str, units: int) -> None:
        budget = {"limit": 10, "window": "1h", "backoff": {"initial": "0s", "max": "0s"}}
        manifest = a_manifest(name, min=1, max=units, pools=[tpu_pool("v6e", "tpu-v6e", "2x2", max=units)])
        manifest["spec"]["learners"]["restart"] = budget
        manifest["metadata"]["namespace"] = "default"
        await self.api.create(names.DILOCO_JOBS, manifest)

    async def trains(self, name: str, units: int) -> None:
        await until(lambda: len(self.cluster.attempts(("default", name))) == units)

    def learners(self, name: str, attempt: int) -> list[Obj]:
        pods = self.cluster.pods(("default", name))
        return [pod for pod in pods if pod["metadata"]["labels"].get(names.LABEL_ATTEMPT) == str(attempt)]

    async def on_record(self, name: str, *, restarts: int) -> None:
        for _ in range(600):
            if sum(unit["restarts"] for unit in (await self.status(name))["units"]) == restarts:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"status never had {restarts} restarts on record")

    async def status(self, name: str) -> Obj:
        found: Obj = (await self.api.get(names.DILOCO_JOBS, "default", name))["status"]
        return found


@asynccontextmanager
async def stand(slices: int, *, offload: Any = None, judge: Judge = judge, run: RunConfig | None = None) -> AsyncIterator[Stand]:
    loop = asyncio.get_running_loop()

    def now() -> float:
        return START + loop.time()

    api = CountingApi(now)
    await api.create(names.CUSTOM_RESOURCES, build_crd())
    async with FakeCluster(api, now) as cluster:
        await cluster.add(
            [a_node("cpu"), *(node for i in range(slices) for node in a_tpu_slice(f"np-{i}", kind="tpu-v6e-slice", topology="2x2"))]
        )
        # Where the class is known, learners come in the first plan: they need not wait for what the cluster makes of the volume claim.
        config = OperatorConfig(storage_class_name="standard")
        options: dict[str, Any] = {"decisions": DecisionOptions(config, judge, offload), **({"run": run} if run else {})}
        async with running(an_operator(api, FakeTelemetry(cluster), now=now, **options)) as task:
            yield Stand(api, cluster)
            assert not task.done()


@pytest.mark.slow
def test_failures_that_come_one_by_one_are_written_down_together() -> None:
    async def scenario() -> None:
        async with stand(UNITS) as there:
            await there.apply("big", UNITS)
            await there.trains("big", UNITS)
            await asyncio.sleep(30)
            before = len(there.api.status_writes)
            for pod in there.learners("big", 1):
                await there.cluster.crash(pod["metadata"]["name"])
                await asyncio.sleep(0.003)  # 0.18 s in all
            assert there.learners("big", 2), "successors are not kept waiting until the last has failed"
            await until(lambda: len(there.learners("big", 2)) == UNITS)
            await there.trains("big", UNITS)
            await there.on_record("big", restarts=UNITS)
            # Without a delay there would be a write for nearly each failure.
            assert len(there.api.status_writes) - before <= 8
            await asyncio.sleep(5)
            units = (await there.status("big"))["units"]
            assert Counter((unit["state"], unit["restarts"], len(unit["failures"])) for unit in units) == {("Training", 1, 1): UNITS}

    run_virtual(scenario())


def test_a_job_of_few_pods_is_reconciled_at_once() -> None:
    async def scenario() -> None:
        async with stand(4) as there:
            await there.apply("small", 4)
            await there.trains("small", 4)
            await asyncio.sleep(30)
            begun = asyncio.get_running_loop().time()
            await there.cluster.crash("small-v6e-0-a1-0")
            await until(lambda: there.learners("small", 2), step=0.001)
            assert asyncio.get_running_loop().time() - begun < 0.015  # 10 ms of it for the create

    run_virtual(scenario())


@pytest.mark.slow
def test_the_first_decision_for_a_job_that_becomes_big_is_offloaded_and_a_small_jobs_is_not() -> None:
    async def scenario() -> None:
        pods_then: list[int] = []

        async def offload[T](work: Callable[[], T]) -> T:
            pods_then.append(len(there.learners("big", 1)))
            return work()

        async with stand(UNITS + 4, offload=offload) as there:
            await there.apply("small", 4)
            await there.trains("small", 4)
            assert pods_then == []
            await there.apply("big", UNITS)
            await there.trains("big", UNITS)
            assert pods_then[0] == 0

    run_virtual(scenario())


async def slowly[T](work: Callable[[], T]) -> T:
    """A thread that answers after other tasks have run, and long after it got its input."""
    await asyncio.sleep(0.2)
    found = work()
    await asyncio.sleep(0.2)
    return found


@pytest.mark.slow
def test_a_slice_that_another_job_reserved_during_an_offloaded_decision_is_not_given_twice() -> None:
    async def scenario() -> None:
        sizes, free = {"big": UNITS, "small": 4}, 20
        async with stand(sum(sizes.values()) + free, offload=slowly) as there:
            for name, units in sizes.items():
                await there.apply(name, units)
                await there.trains(name, units)
            await asyncio.sleep(30)
            for name, units in sizes.items():  # each would take all remaining slices
                body = {"spec": {"learners": {"max": units + free}, "pools": (await _pools(there, name, units + free))}}
                await there.api.patch(names.DILOCO_JOBS, "default", name, body)
                await asyncio.sleep(0.05)  # the decision for the big job runs when the small job is reconciled
            await there.trains("small", 4 + free)
            await asyncio.sleep(10)
            pods = [pod for name in sizes for pod in there.learners(name, 1)]
            assert len(pods) == sum(sizes.values()) + free
            assert max(Counter(pod["spec"]["nodeName"] for pod in pods).values()) == 1

    run_virtual(scenario())


@pytest.mark.slow
def test_a_decision_includes_what_happens_while_it_waits_for_its_turn() -> None:
    async def scenario() -> None:
        async with stand(2 * UNITS, offload=slowly) as there:
            for name in ("first", "second"):
                await there.apply(name, UNITS)
                await there.trains(name, UNITS)
            await asyncio.sleep(30)
            await there.cluster.crash("first-v6e-0-a1-0")
            await asyncio.sleep(0.05)  # the decision for the first job takes 0.4 s
            await there.cluster.crash("second-v6e-0-a1-0")
            await asyncio.sleep(0.1)  # the second waits for that
            for unit in (1, 2):
                await there.cluster.crash(f"second-v6e-{unit}-a1-0")
            assert not there.learners("first", 2)
            await until(lambda: there.learners("second", 2), step=0.001)
            await asyncio.sleep(0.05)  # no time for another decision
            assert len(there.learners("second", 2)) == 3

    run_virtual(scenario())


@pytest.mark.slow
def test_what_was_decided_gets_going_before_the_next_decision_begins() -> None:
    """An offloaded decision slows down everything else, so an equally long pause follows it."""

    async def scenario() -> None:
        decided: dict[str, tuple[float, int]] = {}

        def judging(observed: ObservedState, now: datetime) -> Judged:
            moment = asyncio.get_running_loop().time()
            decided.setdefault(observed.job.name, (moment, len(there.cluster.pods(("default", "first")))))
            return judge(observed, now)

        async with stand(2 * UNITS, offload=slowly, judge=judging) as there:
            for name in ("first", "second"):
                await there.apply(name, UNITS)
            await there.trains("second", UNITS)
            (first, pods), (second, pods_then) = decided["first"], decided["second"]
            # The rest of judging and the plan, a pause as long as both, and what `slowly` waits before it judges the second.
            assert second - first == pytest.approx(0.2 + 0.4 + 0.8 + 0.2)
            assert (pods, pods_then > UNITS) == (0, True)

    run_virtual(scenario())


async def _pools(there: Stand, name: str, max: int) -> list[Obj]:
    [pool] = (await there.api.get(names.DILOCO_JOBS, "default", name))["spec"]["pools"]
    return [{**pool, "learners": {"min": 0, "max": max}}]
