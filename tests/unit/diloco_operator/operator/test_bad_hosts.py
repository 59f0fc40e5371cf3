"""A node on which every program crashes, through the API: the running operator finds it, says so, and does without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response
from builders.fake_cluster import FakeCluster, FakeTelemetry
from builders.jobs import a_manifest, tpu_pool
from builders.nodes import a_node, a_tpu_node
from builders.operator_process import series
from builders.operator_run import an_api, an_operator, running
from builders.virtual_time import run_virtual
from diloco_operator.api import names
from diloco_operator.kube.client import Obj, PatchType
from diloco_operator.kube.memory import MemoryApi
from diloco_operator.operator.endpoints import metrics_app
from diloco_operator.operator.metrics import Metrics

EPOCH = 1_763_672_400.0


def wall_clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def the_job(units: int, **learners: Any) -> Obj:
    manifest = a_manifest(namespace="default", min=1, max=units, pools=[tpu_pool(topology="2x2x1", max=units)])
    manifest["spec"]["learners"] |= learners
    return manifest


def nodes(count: int) -> list[Obj]:
    return [a_node("cpu-0"), *(a_tpu_node(f"tpu-{i}") for i in range(count))]


async def status_when(api: MemoryApi, holds: Callable[[Obj], bool], tries: int = 2000) -> Obj:
    status: Obj = {}
    for _ in range(tries):
        status = (await api.get(names.DILOCO_JOBS, "default", "bytes-lm")).get("status", {})
        if holds(status):
            return status
        await asyncio.sleep(0.5)
    raise AssertionError(status)


def all_train(units: int) -> Callable[[Obj], bool]:
    return lambda status: [unit["state"] for unit in status.get("units", ())].count("Training") == units


def all_train_without(host: str, units: int) -> Callable[[Obj], bool]:
    return lambda status: all_train(units)(status) and host in [each["node"] for each in status.get("hosts", ()) if "avoidedUntil" in each]


async def events(api: MemoryApi, reason: str) -> list[str]:
    return [each["message"] for each in (await api.list(names.EVENTS, "default")).items if each["reason"] == reason]


async def scrape(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    app = metrics_app(metrics.registry)
    app.freeze()
    answer = await app._handle(make_mocked_request("GET", "/metrics", app=app))
    assert isinstance(answer, Response)
    assert isinstance(answer.body, bytes)
    return series(answer.body.decode())


@pytest.mark.parametrize("pause", ["0s", "30s"])
def test_one_bad_host_of_ten_costs_at_most_two_failures(pause: str) -> None:
    """Also without a pause between attempts, in which the unit could be granted another slice."""

    async def run() -> None:
        api = await an_api(wall_clock)
        metrics = Metrics()
        async with FakeCluster(api, wall_clock) as cluster:
            cluster.bad_nodes.add("tpu-3")
            await cluster.add(nodes(10))
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock, metrics=metrics)):
                restart = {"limit": 5, "window": "1h", "backoff": {"initial": pause, "max": "5m"}}
                await api.create(names.DILOCO_JOBS, the_job(9, restart=restart))
                status = await status_when(api, all_train_without("tpu-3", 9))
                assert sum(len(unit["failures"]) for unit in status["units"]) == 2
                assert "tpu-3" not in {unit["slice"] for unit in status["units"]}
                [host] = status["hosts"]
                assert (host["node"], len(host["failures"]), host["avoidances"]) == ("tpu-3", 2, 1)
                assert "uncorrectable ECC error" in host["message"]
                await asyncio.sleep(60)
                [note] = await events(api, "HostAvoided")
                assert note.startswith(f"node tpu-3: 2 attempts failed there; no unit starts there until {host['avoidedUntil']}")
                label = frozenset({("namespace", "default"), ("dilocojob", "bytes-lm")})
                seen = await scrape(metrics)
                assert seen["diloco_job_avoided_hosts", label] == 1
                assert seen["diloco_job_host_failures", label | {("node", "tpu-3")}] == 2
                await asyncio.sleep(7200)
                status = await status_when(api, all_train(9))
                assert "hosts" not in status, "a host without failures for long is as good as any other"
                assert (await scrape(metrics))["diloco_job_avoided_hosts", label] == 0

    run_virtual(run())


def test_unit_that_used_up_its_budget_on_one_host_returns_on_the_first_other_one() -> None:
    """No other host is free at first: the unit tries again on its own until the budget is used up, then it waits, and nothing is lost."""

    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            cluster.bad_nodes.add("tpu-1")
            await cluster.add(nodes(3))
            restart = {"limit": 2, "window": "1h", "backoff": {"initial": "1s", "max": "5s"}}
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job(3, restart=restart))
                status = await status_when(api, lambda s: any(p["reason"] == "NoFreeSlice" for p in s.get("pools", ())))
                assert status["learners"] == {"desired": 3, "placed": 2, "contributing": 2, "min": 1, "max": 3}
                assert "1 free, but avoided because attempts failed there: tpu-1 until" in status["pools"][0]["message"]
                [unit] = [unit for unit in status["units"] if unit["state"] != "Training"]
                assert unit["state"] in ("BackingOff", "Pending")
                assert "which is avoided until" in unit["message"]
                assert len(unit["failures"]) == 3
                await cluster.add([a_tpu_node("tpu-9")])
                status = await status_when(api, all_train(3))
                assert sorted(unit["slice"] for unit in status["units"]) == ["tpu-0", "tpu-2", "tpu-9"]

    run_virtual(run())


def test_restarted_operator_still_avoids_the_host() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            cluster.bad_nodes.add("tpu-0")
            await cluster.add(nodes(4))
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job(2))
                before = await status_when(api, all_train_without("tpu-0", 2))
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock, seed=8)):
                change = {"spec": {"learners": {"max": 3}, "pools": the_job(3)["spec"]["pools"]}}
                await api.patch(names.DILOCO_JOBS, "default", "bytes-lm", change, type=PatchType.MERGE)
                after = await status_when(api, all_train(3))
                assert after["hosts"] == before["hosts"]
                assert sorted(unit["slice"] for unit in after["units"]) == ["tpu-1", "tpu-2", "tpu-3"]

    run_virtual(run())


def test_learner_that_is_lost_for_good_is_still_desired_and_said_to_be_lost() -> None:
    async def run() -> None:
        api = await an_api(wall_clock)
        async with FakeCluster(api, wall_clock) as cluster:
            await cluster.add(nodes(4))
            async with running(an_operator(api, FakeTelemetry(cluster), now=wall_clock)):
                await api.create(names.DILOCO_JOBS, the_job(3))
                await status_when(api, all_train(3))
                await cluster.crash("bytes-lm-v5p-1-a1-0", exit_code=65)
                status = await status_when(api, lambda s: any(unit["state"] == "Failed" for unit in s["units"]))
                assert status["learners"] == {"desired": 3, "placed": 2, "contributing": 2, "min": 1, "max": 3}
                [degraded] = [each for each in status["conditions"] if each["type"] == "Degraded"]
                assert (degraded["status"], degraded["reason"]) == ("True", "LearnersLost")
                for part in ("1 of 3 learners is lost until a person acts: v5p-1: given up after attempt 1", "kubectl diloco retry"):
                    assert part in degraded["message"]
                await asyncio.sleep(60)
                assert [note.split(":")[0] for note in await events(api, "LearnersLost")] == ["Degraded=True"]

    run_virtual(run())
