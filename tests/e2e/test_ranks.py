"""Units of many processes and hosts, in torch and JAX, beside one of a single process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.exploration import XLA_FLAGS, full
from builders.jobs import JobBuilder, Obj, cpu_pool, template
from builders.local import is_true, local_control_plane
from builders.nodes import a_fleet_node
from diloco_local.environment import LIBRARY_THREADS

pytestmark = [pytest.mark.timeout(2400), pytest.mark.xdist_group("many-learners")]

SLOW = 1000
"""Seconds. Nine processes import torch or JAX, four of them twice, at the low priority of containers."""
OF_PODS = f"{LIBRARY_THREADS['XLA_FLAGS']} {XLA_FLAGS}"
"""The flags that every pod has here, and those of the tests."""
PROGRAM = str(Path(__file__).parents[1] / "programs" / "unit_learner.py")
FLEET = [a_fleet_node(f"cpu-{index}", cpu=8, memory="64Gi", pods=110) for index in range(6)]


def a_pool(
    kind: str, count: int = 1, *, hosts: int = 1, processes: int = 1, name: str = "", environment: dict[str, str] | None = None
) -> Obj:
    command = ["diloco-launch", PROGRAM, kind]
    learner = template(
        command=command, env={"UNIT_STEP_MS": "100", "XLA_FLAGS": OF_PODS, **(environment or {})}, terminationGracePeriodSeconds=5
    )
    return cpu_pool(name or kind, hosts=hosts, max=count, template=learner, processesPerHost=processes)


def a_job(name: str, units: int, *pools: Obj) -> Obj:
    """Units that all wait for each other."""
    return (
        JobBuilder(name)
        .with_learners(units, units, timeouts={"join": "5m"}, stallTimeout="5m")
        .with_restarts(2, initial="0s")
        .with_pools(*pools)
        .with_training(steps=120, syncInterval=8, fragments=2, overlapSteps=4, quorum=units)
        .build()
    )


def results(text: str) -> list[Obj]:
    """What the ranks said at the end."""
    return [json.loads(line[line.index("{") :]) for line in text.splitlines() if '"digest"' in line]


@pytest.mark.parametrize(
    "kinds",
    [
        {"jax": (2, 1), "numpy": (1, 1)},
        full({"fsdp": (2, 2), "ddp": (1, 2), "jax": (1, 2), "single": (1, 1)}),
    ],
    ids=lambda kinds: ", ".join(kinds),
)
async def test_units_of_every_kind_train_one_model_and_a_killed_rank_costs_its_unit_one_restart(
    tmp_path: Path, kinds: dict[str, tuple[int, int]]
) -> None:
    """`kinds`: hosts of the one unit of each kind, and the processes of a host. The last rank of the first is killed."""
    trace = tmp_path / "trace"
    killed, ranks = next(iter(kinds)), {kind: hosts * processes for kind, (hosts, processes) in kinds.items()}
    attempts = {kind: 2 if kind == killed else 1 for kind in kinds}
    fault = {"UNIT_DIE": f"{killed}-0:{ranks[killed] - 1}:30", "UNIT_TRACE": str(trace)}
    async with local_control_plane(tmp_path / "state", FLEET) as cluster:
        pools = [a_pool(kind, hosts=hosts, processes=processes, environment=fault) for kind, (hosts, processes) in kinds.items()]
        await cluster.apply(a_job("islands", len(kinds), *pools))
        job = await cluster.job("islands", is_true("Complete"), timeout=SLOW)
        assert {unit["name"]: unit["attempt"] for unit in job["status"]["units"]} == {f"{kind}-0": attempts[kind] for kind in kinds}

        first = "".join(cluster.log(f"islands-{killed}-0-a1-{host}") for host in range(kinds[killed][0]))
        assert f"rank {ranks[killed] - 1} of unit {killed}-0 is lost" in first, "the others have named it"
        pods = [f"{kind}-0-a{attempts[kind]}-{host}" for kind, (hosts, _) in kinds.items() for host in range(hosts)]
        found = [result for pod in pods for result in results(cluster.log(f"islands-{pod}"))]
        assert sorted((result["unit"], result["rank"]) for result in found) == sorted(
            (f"{kind}-0", rank) for kind in kinds for rank in range(ranks[kind])
        )
        assert len({result["digest"] for result in found}) == 1, "all ranks of all units end with the same bytes"
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        trained = [(number, line["attempt"]) for line in lines for number in line["numbers"]]
        assert len(trained) == len(set(trained)), "no two ranks train the same sample, but those that came back"

        await cluster.apply(a_job("twin", len(kinds), a_pool("numpy", len(kinds), name="cpu")))
        twin = await cluster.job("twin", is_true("Complete"), timeout=SLOW)
        islands_loss, twin_loss = (float(each["status"]["progress"]["heldOutLoss"]) for each in (job, twin))
        # Both begin at 1.44 and take as many outer steps with as many units; how many local steps these trained differs, also by the
        # restart. So they must have learnt the same but for a twentieth: a rank whose part of the batch or of the model did not count
        # would show.
        assert islands_loss == pytest.approx(twin_loss, abs=0.07)
