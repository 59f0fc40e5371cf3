"""What programs say of their pauses and of the end of the job, and what users see of it: real processes on the embedded control plane."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from builders.local import condition, is_true, local_control_plane
from builders.local_jobs import a_fleet, a_quadratic_job
from diloco_operator.api.names import PODS
from diloco_operator.kube.client import Obj
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile import OperatorConfig

PROMPT = OperatorConfig(progress_interval=0.2, unheard_tolerance=0.2, dead_node_force_delete=0.5, early_end_grace=1.0)
COMPLETE = is_true("Complete")


def complete(job: Obj) -> tuple[str, str]:
    found = next(each for each in job["status"]["conditions"] if each["type"] == "Complete")
    return found["reason"], found["message"]


async def test_compiling_and_pauses_are_no_stalls_and_a_program_ends_the_job_for_all(tmp_path: Path) -> None:
    environment = {
        # Each of the two takes longer than the stall time-out of 10 s, in which a busy machine, too, takes a step.
        "QUADRATIC_COMPILE_SECONDS": 13,
        "QUADRATIC_PAUSE_AT_STEP": 20,
        "QUADRATIC_PAUSE_SECONDS": 13,
        "QUADRATIC_PAUSE_UNIT": "v5p-0",
        "QUADRATIC_FINISH_AT_STEP": 40,
        "QUADRATIC_FINISH_UNIT": "v5p-0",
        "QUADRATIC_STEP_MS": 50,
    }
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(a_quadratic_job(steps=1_000_000, stall="10s", environment=environment))
        compiles = await cluster.unit("quad", "v5p-0", lambda unit: unit.get("reason") == "FirstStep")
        assert (compiles["state"], "compiles" in compiles["message"]) == ("Joining", True)
        paused = await cluster.unit("quad", "v5p-0", lambda unit: unit.get("reason") == "Paused")
        assert paused["state"] == "Training"
        assert re.fullmatch("its program takes no steps for a while, until 20.*Z at most: evaluation", paused["message"])
        assert paused["pausedUntil"] > paused["since"]
        job = await cluster.job("quad", COMPLETE)
    reason, message = complete(job)
    assert reason == "FinishedByProgram"
    assert "ended by unit v5p-0: as requested at this step" in message
    assert job["status"]["progress"]["step"] < 1_000_000
    assert {unit["name"]: (unit["state"], unit["restarts"]) for unit in job["status"]["units"]} == dict.fromkeys(
        ("v5p-0", "v5p-1", "h100-0"), ("Completed", 0)
    )


@pytest.mark.full
async def test_a_program_that_leaves_early_is_started_again_and_the_job_ends_at_its_token_budget(tmp_path: Path) -> None:
    environment = {"QUADRATIC_LEAVE_AT_STEP": 10, "QUADRATIC_LEAVE_UNIT": "v5p-0", "QUADRATIC_STEP_MS": 50}
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        budget = {"tokens": 1_000_000_000}
        await cluster.apply(a_quadratic_job(steps=1_000_000, units={"v5p": 2}, environment=environment, training=budget))
        unit = await cluster.unit("quad", "v5p-0", lambda unit: unit.get("lastFailure", "").startswith("LeftEarly: "))
        assert "end the job for all units with session.finish" in unit["lastFailure"]
        await cluster.unit("quad", "v5p-0", lambda unit: unit.get("state") == "Training" and unit["attempt"] == 2)
        tokens = (await cluster.job("quad"))["status"]["progress"]["tokens"] + 2_000
        await cluster.change("quad", {"training": {"tokens": tokens}})
        done = await cluster.job("quad", COMPLETE)
    assert complete(done)[0] == "TokensReached"
    progress = done["status"]["progress"]
    assert (progress["tokenBudget"], progress["tokens"] >= tokens) == (tokens, True)
    assert progress["tokens"] == sum(unit.get("tokens", 0) for unit in done["status"]["units"])


async def test_a_job_whose_units_feed_themselves_is_warned_and_one_that_leases_is_not(tmp_path: Path) -> None:
    advice = (
        "2 units feed themselves, and nothing keeps them from training the same samples: let each read its own part by DILOCO_UNIT, or "
        "draw what it trains with session.numbers or session.shards"
    )

    def is_warned(job: Obj | None) -> bool:
        return str(condition(job, "Training").get("message", "")).endswith(f"; {advice}")

    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        own: dict[str, object] = {"QUADRATIC_OWN_DATA": 1, "QUADRATIC_STEP_MS": 50}
        await cluster.apply(a_quadratic_job("own", steps=1_000_000, units={"v5p": 2}, environment=own))
        await cluster.apply(a_quadratic_job("leases", steps=1_000_000, units={"h100": 2}, environment={"QUADRATIC_STEP_MS": 50}))
        warned = await cluster.job("own", is_warned)
        # The status of `leases` holds what its syncer reported of both units once both have tokens.
        leases = await cluster.job(
            "leases", lambda job: [bool(unit.get("tokens")) for unit in ((job or {}).get("status") or {}).get("units", ())] == [True, True]
        )
        events = await cluster.events("OwnData")
    assert [unit.get("ownData") for unit in warned["status"]["units"]] == [True, True]
    assert [unit.get("ownData") for unit in leases["status"]["units"]] == [None, None]
    assert "feed themselves" not in condition(leases, "Training")["message"]
    assert Counter((event["involvedObject"]["name"], event["type"], event["message"]) for event in events) == {
        ("own", "Warning", advice): 1
    }


async def test_a_drained_program_that_ends_without_close_is_not_at_fault_and_its_recovery_counts_from_its_end(tmp_path: Path) -> None:
    environment: dict[str, object] = {"QUADRATIC_NO_CLOSE": 1, "QUADRATIC_STEP_MS": 50}
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        # One failure on its account and the unit would have been given up.
        await cluster.apply(a_quadratic_job(steps=1_000_000, units={"v5p": 2}, limit=0, environment=environment))
        await cluster.unit("quad", "v5p-0", lambda unit: unit.get("state") == "Training")
        pod = (await cluster.pod_of("quad", "v5p-0"))["metadata"]["name"]
        await cluster.client.delete(PODS, "default", pod)
        ended = await cluster.unit("quad", "v5p-0", lambda unit: "endedAt" in unit)
        back = await cluster.unit("quad", "v5p-0", lambda unit: unit.get("state") in ("Training", "Failed") and unit["attempt"] > 1)
    assert (back["state"], back["attempt"], back["failures"]) == ("Training", 2, []), back
    assert (back["restarts"], "lastFailure" in back) == (1, False), "a disruption is counted, and is not the unit's fault"
    passed = parse_timestamp(back["since"]) - parse_timestamp(ended["endedAt"])
    assert abs(back["recoverSeconds"] - passed) < 0.001, "it is rounded to milliseconds, timestamps to microseconds"
