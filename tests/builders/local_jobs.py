"""Jobs for the embedded control plane whose learners are tests/programs/quadratic_learner.py: real processes, real wire, tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from builders.local import a_node, gpu_node, tpu_node
from diloco_operator.api.names import API_VERSION, KIND

type Obj = dict[str, Any]

PROGRAM = Path(__file__).parents[1] / "programs" / "quadratic_learner.py"


def a_fleet(*, tpus: int = 2, gpus: int = 2) -> list[Obj]:
    """One cpu node for syncers, single-host v5p slices `tpu-<i>` and H100 hosts `gpu-<i>`."""
    return [
        a_node("cpu-0", cpu=32, memory="64Gi", pods=110),
        *(tpu_node(f"tpu-{i}") for i in range(tpus)),
        *(gpu_node(f"gpu-{i}") for i in range(gpus)),
    ]


def learner_template(**environment: object) -> Obj:
    variables = [{"name": name, "value": str(value)} for name, value in environment.items()]
    container = {"name": "learner", "image": "none", "command": ["python", str(PROGRAM)], "env": variables}
    return {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container]}}


def a_quadratic_job(
    name: str = "quad",
    *,
    steps: int = 200,
    units: dict[str, int] | None = None,
    least: int = 1,
    backoff: str = "0s",
    stall: str = "2m",
    join: str = "1m",
    limit: int = 5,
    every_steps: int = 20,
    environment: dict[str, object] | None = None,
    training: Obj | None = None,
) -> Obj:
    """`units`: units of the pools v5p and h100, such as {"v5p": 2, "h100": 1}; `every_steps`: outer steps between snapshots."""
    wanted = units or {"v5p": 2, "h100": 1}
    template = learner_template(**(environment or {}))
    kinds: dict[str, Obj] = {
        "v5p": {"accelerator": "tpu-v5p", "topology": "2x2x1"},
        "h100": {"accelerator": "nvidia-h100-80gb", "hosts": 1, "acceleratorsPerHost": 8},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "learners": {
                "min": least,
                "max": sum(wanted.values()),
                "joinTimeout": join,
                "stallTimeout": stall,
                "restart": {"limit": limit, "window": "1h", "backoff": {"initial": backoff, "max": "1m"}},
            },
            "pools": [
                {"name": pool, **kinds[pool], "learners": {"min": 0, "max": count}, "template": template} for pool, count in wanted.items()
            ],
            "training": {
                "steps": steps,
                "syncInterval": 8,
                "fragments": 8,
                "overlapSteps": 2,
                "checkpoint": {"everySteps": every_steps, "keep": 3},
                **(training or {}),
            },
        },
    }


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
