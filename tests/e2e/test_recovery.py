"""A unit of a job of real processes dies, and its next attempt begins with the state of a peer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from builders.jobs import JobBuilder, Obj, gpu_pool, template, tpu_pool
from builders.local import Cluster, local_control_plane
from builders.local_jobs import a_fleet
from diloco_cli.kubectl.explain import explained
from diloco_cli.kubectl.explanation_text import explanation_text
from diloco_operator.reconcile import OperatorConfig

PROGRAMS = Path(__file__).parents[1] / "programs"
PROMPT = OperatorConfig(progress_interval=0.2, unheard_tolerance=0.2, dead_node_force_delete=0.5)
INITIAL_RATE = 1e-3


def a_long_job(command: list[str], environment: dict[str, object], processes: int = 1, fragments: int = 8) -> Obj:
    """A unit on v5p and one on an H100 host, of so many processes, which train for longer than the test lasts."""
    learner = template(command=command, env=environment, terminationGracePeriodSeconds=5)
    return (
        JobBuilder("adamw")
        .with_learners(1, 2)
        .with_restarts(5, initial="0s", max="1m")
        .with_pools(
            tpu_pool(topology="2x2x1", max=1, template=learner),
            gpu_pool(hosts=1, acceleratorsPerHost=8, max=1, processesPerHost=processes, template=learner),
        )
        .with_training(steps=1_000_000, syncInterval=8, fragments=fragments, overlapSteps=2)
        .build()
    )


def an_adamw_job(trace: Path, program: str, processes: int = 1) -> Obj:
    environment: dict[str, object] = {"ADAMW_TRACE": str(trace), "OPTAX_TRACE": str(trace), "JAX_PLATFORMS": "cpu"}
    return a_long_job(["diloco-launch", str(PROGRAMS / f"{program}_learner.py")], environment, processes)


def begun(trace: Path) -> dict[tuple[str, int], Obj]:
    found = (json.loads(line) for line in trace.read_text().splitlines())
    return {(one["unit"], one["attempt"]): one for one in found}


async def killed_when_both_train(cluster: Cluster) -> None:
    """Kill v5p-0, and wait until it trains again: it must have begun with the state of the other unit, and people must be told."""
    await cluster.job("adamw", lambda job: ((job or {}).get("status") or {}).get("learners", {}).get("contributing") == 2)
    await cluster.step("adamw", 40)
    await cluster.kill("adamw", "v5p-0")
    unit = await cluster.unit("adamw", "v5p-0", lambda one: one.get("state") == "Training" and one["attempt"] == 2 and "beganWith" in one)
    assert unit["beganWith"].startswith("the state of h100-0")
    explanation = await explained(cluster.client, "default", "adamw", time.time)
    assert "the state of" in explanation_text(explanation, time.time())


async def test_a_killed_unit_begins_with_momentum_and_steps_of_a_peer(tmp_path: Path) -> None:
    """In numpy. What torch and JAX hand over is tested without a job in tests/frameworks, and with stored states in test_up.py."""
    states = tmp_path / "states"
    states.mkdir()
    command = ["python", str(PROGRAMS / "quadratic_ranks.py"), "0", "1"]
    async with local_control_plane(tmp_path / "state", a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(a_long_job(command, {"RANKS_STATES": str(states), "RANKS_STEP_MS": "20"}, fragments=2))
        await killed_when_both_train(cluster)
    [begun] = [line for line in map(json.loads, (states / "v5p-0.2.0").read_text().splitlines()) if "began" in line]
    # The clock takes an outer step for each mean local step of the two, of which neither is twice as fast as the other: 40 are 20 and more.
    assert begun["steps"] > 20
    assert any(np.frombuffer(bytes.fromhex(values), np.float32).any() for _, values in begun["momentum"].values())


@pytest.mark.full
@pytest.mark.parametrize("program", ["adamw", "optax"])
async def test_a_killed_unit_begins_with_moments_steps_schedule_and_generator_of_a_peer(program: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(an_adamw_job(trace, program))
        await killed_when_both_train(cluster)
    first, second = begun(trace)["v5p-0", 1], begun(trace)["v5p-0", 2]
    steps = second["steps"]
    # On a busy machine the first process may begin late, with the state of the other unit.
    assert first["warm"] == min(1.0, (max(first["steps"], default=0) + 1) / 20)
    assert second["warm"] == 1.0, "more than 20 steps are behind the state of the peer: it does not warm up again"
    if program == "optax":
        assert min(steps) > 20
        assert second["moments"] > 0
        assert second["key"] != first["key"]
        return
    assert len(steps) == 16  # weights and biases of eight layers
    # A copy may be read over several boundaries, each of a step more.
    assert min(steps) > 20
    assert max(steps) - min(steps) <= len(steps)
    # The rest is of the last boundary: as many steps of the schedule as of the parameter that was read last.
    assert second["rate"] == pytest.approx(INITIAL_RATE * 0.999 ** max(steps), rel=1e-6)
    assert second["draw"] != first["draw"]


@pytest.mark.full
@pytest.mark.timeout(1200)  # beside other work four processes take several times their usual minute until they train
@pytest.mark.parametrize("program", ["adamw", "optax"])
async def test_a_killed_unit_of_two_processes_begins_with_the_state_of_a_peer_of_one(program: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with local_control_plane(tmp_path, a_fleet(), config=PROMPT) as cluster:
        await cluster.apply(an_adamw_job(trace, program, processes=2))
        await cluster.job("adamw", lambda job: ((job or {}).get("status") or {}).get("learners", {}).get("contributing") == 2, timeout=300)
        await cluster.step("adamw", 40)
        await cluster.kill("adamw", "h100-0")
        unit = await cluster.unit(
            "adamw", "h100-0", lambda one: one.get("state") == "Training" and one["attempt"] == 2 and "beganWith" in one, timeout=300
        )
        assert unit["beganWith"].startswith("the state of v5p-0")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    ranks = [line for line in lines if (line["unit"], line["attempt"]) == ("h100-0", 2)]
    assert sorted(line["rank"] for line in ranks) == [0, 1]
    for line in ranks:
        assert min(line["steps"]) > 20
        assert line["warm"] == 1.0
        assert line["moments"] > 0  # of the whole unit: each rank has a part of it
        if program == "adamw":
            # Of a unit of another number of processes all take what the first one counted.
            assert line["rate"] == pytest.approx(INITIAL_RATE * 0.999 ** max(line["steps"]), rel=1e-6)
    assert ranks[0]["moments"] == ranks[1]["moments"]
