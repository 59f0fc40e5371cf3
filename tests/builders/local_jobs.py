"""Jobs for the embedded control plane whose learners are tests/programs/quadratic_learner.py: real processes, real wire, tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from builders.jobs import JobBuilder, Obj, gpu_pool, template, tpu_pool
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_fleet_tpu_node

PROGRAM = Path(__file__).parents[1] / "programs" / "quadratic_learner.py"


def a_fleet(*, tpus: int = 2, gpus: int = 2) -> list[Obj]:
    """One cpu node for syncers, single-host v5p slices `tpu-<i>` and H100 hosts `gpu-<i>`."""
    return [
        a_fleet_node("cpu-0", cpu=32, memory="64Gi", pods=110),
        *(a_fleet_tpu_node(f"tpu-{i}") for i in range(tpus)),
        *(a_fleet_gpu_node(f"gpu-{i}") for i in range(gpus)),
    ]


def learner_template(grace: int = 5, /, **environment: object) -> Obj:
    """`grace`: seconds to drain in. Few, so that what is frozen is soon killed; a test that wants to see a drain gives more."""
    return template(command=["python", str(PROGRAM)], env=environment, terminationGracePeriodSeconds=grace)


def a_quadratic_job(
    name: str = "quad",
    *,
    steps: int = 200,
    units: dict[str, int] | None = None,
    min: int = 1,
    backoff: str = "0s",
    stall: str = "2m",
    join: str = "10m",
    limit: int = 5,
    every_steps: int = 20,
    environment: dict[str, object] | None = None,
    training: Obj | None = None,
) -> Obj:
    """`units`: units of the pools v5p and h100, such as {"v5p": 2, "h100": 1}; `every_steps`: outer steps between snapshots."""
    wanted = units or {"v5p": 2, "h100": 1}
    learner = learner_template(**(environment or {}))
    pools = {
        "v5p": lambda count: tpu_pool(topology="2x2x1", max=count, template=learner),
        "h100": lambda count: gpu_pool(hosts=1, acceleratorsPerHost=8, max=count, template=learner),
    }
    checkpoint = {"everySteps": every_steps, "keep": 3}
    defaults = {"steps": steps, "syncInterval": 8, "fragments": 8, "overlapSteps": 2, "checkpoint": checkpoint}
    return (
        JobBuilder(name)
        .with_learners(min, sum(wanted.values()), timeouts={"join": join}, stallTimeout=stall)
        .with_restarts(limit, initial=backoff, max="1m")
        .with_pools(*(pools[pool](count) for pool, count in wanted.items()))
        .with_training(**{**defaults, **(training or {})})
        .build()
    )


def steps_taken(trace: Path) -> dict[tuple[str, int], list[Obj]]:
    """The trace of every process by (unit, attempt), in the order of its steps."""
    taken: dict[tuple[str, int], list[Obj]] = {}
    for line in trace.read_text().splitlines():
        step = json.loads(line)
        taken.setdefault((step["unit"], step["attempt"]), []).append(step)
    return taken


def samples_drawn(trace: Path) -> Counter[int]:
    """How often each sequence number was trained on, whether or not it was committed."""
    return Counter(number for steps in steps_taken(trace).values() for step in steps for number in step["numbers"])
