"""One job of real processes on the embedded control plane, and everything that may break under it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.exploration import ALL, full
from builders.local import Cluster, NodeFailure, condition, is_true, local_control_plane, unit_of
from builders.local_jobs import a_fleet, a_quadratic_job, learner_template
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile import OperatorConfig

PROMPT = OperatorConfig(progress_interval=0.2, unheard_tolerance=0.2, dead_node_force_delete=0.5)
COMPLETE = is_true("Complete")
ENOUGH = 150
"""Outer steps after which the loss is far below 0.1, also if a busy machine gives many of them the work of one unit only."""


def a_long_job(environment: Mapping[str, object] | None = None, **options: Any) -> Obj:
    """More steps than can be made before it is cut short, at a pace that leaves the processor to what breaks and mends."""
    return a_quadratic_job(steps=1_000_000, every_steps=5, environment={"QUADRATIC_STEP_MS": 50, **(environment or {})}, **options)


def on_attempt(number: int) -> Callable[[Obj], bool]:
    return lambda unit: bool(unit.get("state") == "Training" and unit["attempt"] == number)


def units_of(job: Obj | None) -> list[Obj]:
    return ((job or {}).get("status") or {}).get("units") or []


def snapshot_of(job: Obj | None) -> int:
    """The outer step of the newest durable snapshot; 0: there is none of a later step."""
    return int((((job or {}).get("status") or {}).get("model") or {}).get("step", 0))


def all_train(job: Obj | None, count: int) -> bool:
    return bool(((job or {}).get("status") or {}).get("learners", {}).get("contributing") == count)


async def completed(cluster: Cluster, name: str = "quad") -> Obj:
    job = await cluster.job(name, COMPLETE)
    assert job["status"]["progress"]["step"] == job["spec"]["training"]["steps"]
    assert job["status"]["progress"]["tokens"] == sum(unit.get("tokens", 0) for unit in job["status"]["units"])
    return job


async def completed_soon(cluster: Cluster) -> Obj:
    """The job is cut short: what was to be seen of it has been seen. The syncer may be some seconds ahead of the status, with 25 outer
    steps in each, and goes on until it is replaced: the new end must be beyond all that."""
    now = (await cluster.job("quad"))["status"]["progress"]["step"]
    await cluster.change("quad", {"training": {"steps": now + 150}})
    return await completed(cluster)


async def test_a_killed_learner_comes_back_and_the_job_completes(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(a_long_job())
        await cluster.job("quad", lambda job: all_train(job, 3))
        await cluster.kill("quad", "v5p-1")
        unit = await cluster.unit("quad", "v5p-1", on_attempt(2))
        assert unit["restarts"] == 1
        assert unit["recoverSeconds"] > 0
        recovery = (await cluster.job("quad"))["status"]["goodput"]["unitSeconds"]["recovery"]
        # Its process ended on a clock of whole seconds, and all that begins or ends with a report is as old as that.
        assert recovery == pytest.approx(unit["recoverSeconds"], abs=3.0)
        job = await completed_soon(cluster)  # restarts the syncer, from which all units recover
        assert [unit_of(job, name)["attempt"] for name in ("v5p-0", "v5p-1", "h100-0")] == [1, 2, 1]
        goodput = job["status"]["goodput"]
        assert goodput["interruptions"] == 1
        # Three units from the first status to the end; a unit is known some moments after the job.
        lasted = parse_timestamp(goodput["measuredAt"]) - parse_timestamp(job["metadata"]["creationTimestamp"])
        assert 0.8 * 3 * lasted < sum(goodput["unitSeconds"].values()) <= 3 * lasted + 3
        assert goodput["productiveShare"] == pytest.approx(
            goodput["unitSeconds"]["training"] / sum(goodput["unitSeconds"].values()), abs=0.001
        )


async def test_a_killed_syncer_resumes_from_its_snapshot_and_the_learners_stay(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(a_long_job())
        await cluster.job("quad", lambda job: all_train(job, 3))
        await cluster.job("quad", lambda job: snapshot_of(job) >= 5)
        killed = (await cluster.job("quad"))["status"]["progress"]["step"]
        syncer = await cluster.kill("quad", "syncer")
        await cluster.job("quad", lambda job: "goes on from" in cluster.log("quad-syncer") and all_train(job, 3))
        await cluster.step("quad", killed + 5)
        resumed = re.findall(r"goes on from outer step (\d+)", cluster.log(syncer["metadata"]["name"]))
        assert len(resumed) == 1, "it resumed once, and did not wait for a seed"
        assert int(resumed[0]) > 0, "there is a snapshot of step 5 or later"
        job = await completed_soon(cluster)
        assert {unit["attempt"] for unit in job["status"]["units"]} == {1}, "no learner was restarted for the syncer's sake"
        # The ledger's samples and the status' tokens are counted in different places: 16 tokens a sample, none twice, none lost.
        trained = re.findall(r"ledger: (\d+) samples", cluster.log(syncer["metadata"]["name"]))
        assert trained
        assert job["status"]["progress"]["tokens"] == 16 * int(trained[-1])


@pytest.mark.full
async def test_a_frozen_learner_is_replaced_after_the_stall_timeout(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(a_long_job(stall="10s"))  # a busy machine, too, takes a step in so long
        await cluster.job("quad", lambda job: all_train(job, 3))
        before = (await cluster.job("quad"))["status"]["progress"]["step"]
        await cluster.stop("quad", "h100-0")
        unit = await cluster.unit("quad", "h100-0", on_attempt(2))
        assert unit["restarts"] == 1
        assert (await cluster.job("quad"))["status"]["progress"]["step"] > before, "the others trained on"
        await completed_soon(cluster)


@pytest.mark.parametrize("failure", [NodeFailure.STOPPED, full(NodeFailure.PARTITIONED)])
async def test_a_lost_node_moves_its_unit_to_another_slice_without_a_restart_on_its_account(tmp_path: Path, failure: NodeFailure) -> None:
    async with local_control_plane(tmp_path, a_fleet(tpus=3), config=PROMPT, eviction_seconds=0.5) as cluster:
        await cluster.apply(a_long_job())
        await cluster.job("quad", lambda job: all_train(job, 3))
        lost = await cluster.node_of("quad", "v5p-0")
        await cluster.fail_node(lost, failure)
        unit = await cluster.unit("quad", "v5p-0", on_attempt(2))
        assert unit["slice"] != lost
        assert unit["failures"] == [], "a disruption is not the unit's fault"
        assert await cluster.node_of("quad", "v5p-0") != lost
        if ALL:  # as jobs complete after other faults
            await completed_soon(cluster)


async def test_a_learner_with_another_layout_fails_for_good_and_says_what_differs(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        job = a_long_job(units={"v5p": 1, "h100": 1})
        job["spec"]["pools"][1]["template"] = learner_template(QUADRATIC_LAYOUT="other")
        await cluster.apply(job)
        # The first to come gives the job its layout, and the other is refused, however late it comes.
        await cluster.job("quad", lambda job: any(unit["state"] == "Failed" for unit in units_of(job)))
        done = await completed_soon(cluster)
        states = {unit["name"]: unit["state"] for unit in done["status"]["units"]}
        assert sorted(states.values()) == ["Completed", "Failed"]
        failed = next(unit for unit in done["status"]["units"] if unit["state"] == "Failed")
        assert (failed["attempt"], failed["restarts"]) == (1, 0), "restarting cannot help"
        assert "tensor layer00" in failed["message"] or "tensor embedding" in failed["message"], failed["message"]


def is_saved(job: Obj | None) -> bool:
    """Whether the newest snapshot on record holds all that was merged."""
    status = (job or {}).get("status", {})
    return bool(status.get("model", {}).get("step") == status.get("progress", {}).get("step"))


async def test_suspend_releases_every_learner_and_resume_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        # With a quorum of all three each of them trains before it is suspended.
        await cluster.apply(a_long_job(min=3, training={"quorum": 3}))
        await cluster.step("quad", 10)
        await cluster.change("quad", {"suspend": True})
        # The syncer writes a snapshot before it ends; what it says of that may be read after its pod has gone.
        suspended = await cluster.job("quad", lambda job: is_true("Suspended")(job) and is_saved(job))
        stopped_at = suspended["status"]["progress"]["step"]
        assert await cluster.pods("quad") == []
        await cluster.change("quad", {"suspend": False})
        job = await cluster.job("quad", lambda job: condition(job, "Suspended").get("status") == "False" and all_train(job, 3))
        assert job["status"]["progress"]["step"] >= stopped_at
        await cluster.step("quad", stopped_at + 10)
        if ALL:
            await completed_soon(cluster)


async def test_units_come_and_go_while_the_job_trains(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(tpus=3), config=PROMPT) as cluster:
        job = a_long_job(units={"v5p": 3, "h100": 1})
        job["spec"]["learners"]["max"] = 2
        await cluster.apply(job)
        await cluster.job("quad", lambda job: all_train(job, 2))
        await cluster.change("quad", {"learners": {"max": 4}})
        await cluster.job("quad", lambda job: all_train(job, 4))
        await cluster.change("quad", {"learners": {"max": 1}})
        shrunk = await cluster.job("quad", lambda job: all_train(job, 1))
        assert condition(shrunk, "Training")["status"] == "True"
        assert shrunk["status"]["learners"]["max"] == 1
        await cluster.step("quad", shrunk["status"]["progress"]["step"] + 10)
        if ALL:
            done = await completed_soon(cluster)
            assert done["status"]["learners"]["max"] == 1


@pytest.mark.full
async def test_a_unit_out_of_restarts_fails_and_the_job_goes_on_degraded(tmp_path: Path) -> None:
    async with local_control_plane(tmp_path, a_fleet(gpus=1), config=PROMPT) as cluster:
        job = a_long_job(min=3, limit=1)
        await cluster.apply(job)  # the pool h100 has no other host that could be better
        await cluster.job("quad", lambda job: all_train(job, 3))
        await cluster.kill("quad", "h100-0")
        await cluster.unit("quad", "h100-0", on_attempt(2))
        await cluster.kill("quad", "h100-0")
        degraded = await cluster.job("quad", lambda job: unit_of(job, "h100-0").get("state") == "Failed" and is_true("Degraded")(job))
        assert "h100-0" in condition(degraded, "Degraded")["message"]
        assert condition(degraded, "Training")["status"] == "True"
        await completed_soon(cluster)
