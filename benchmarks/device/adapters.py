"""[adapters] Programs of many kinds, each with a session and without. Parameters must be the same, copies must wait for the device, and the
host must not.

Programs of one process get their messages from a script (`script`); units of two processes on one card join a real job.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from builders.child_processes import Launcher

from benchmarks import ROOT
from benchmarks.device.part import PartOptions, log, print_result, run
from benchmarks.device.script import STEPS
from benchmarks.exchange_rig import ExchangeRig, Workload

RANKS: Final = 2
BACKENDS: Final[Mapping[str, Sequence[str]]] = {"cpu": ("gloo",), "cuda": ("nccl", "gloo")}
"""Backends of torch.distributed, in the order in which they are tried: NCCL may refuse two ranks on one card."""
PROGRAMS: Final = (
    ("torch_variants", ("plain", "autocast-bfloat16", "gradscaler-float16", "fused-adamw", "bfloat16-with-masters")),
    ("torch_variants", ("compile",)),
    ("torch_variants", ("cuda-graphs",)),
    ("jax_variants", ("donated-float32", "donated-bfloat16-with-masters")),
)
"""Module -> kinds of programs. Each entry is a process of its own, since compilers take most of the time."""
SMALL_PROGRAMS: Final = (
    (PROGRAMS[0][0], (*PROGRAMS[0][1], *PROGRAMS[1][1], *PROGRAMS[2][1])),
    PROGRAMS[3],
)
JAX_SHARE: Final = "0.2"
"""JAX's share of the card's memory."""
TRAINING: Final = {"sync_interval": 16, "fragments": 2, "overlap_steps": 2, "quorum": 1}
JOIN_SECONDS: Final = 30.0
"""If two ranks on a card have not taken their steps after this time, their backend cannot do it."""


def kinds(given: PartOptions, launcher: Launcher, module: str, chosen: Sequence[str]) -> None:
    """Check programs of one process. They print their own lines. Raises RuntimeError if the outcome of one is not good."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": JAX_SHARE}
    if given.device == "cpu":
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", f"benchmarks.device.{module}", "--device", given.device, *chosen]
    process = launcher.start(lambda prepare: subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=prepare))
    if status := process.wait():
        raise RuntimeError(f"{module} {' '.join(chosen)} ended with {status}")


def ranks(given: PartOptions, wrap: str) -> None:
    """Check a unit of two processes, with the first backend that can do it. Raises RuntimeError if none can, or if steps differ."""
    for backend in BACKENDS[given.device]:
        with tempfile.TemporaryDirectory() as folder, ExchangeRig(Path(folder) / "job", Workload(1, 0.0), TRAINING) as rig:
            try:
                equal, adopted = steps_of_ranks(given, rig, wrap, backend)
            except (RuntimeError, ValueError) as error:
                log(f"{wrap} with {backend}: {error}")
                print_result(f"torch {wrap}", math.nan, "steps equal before the first adoption", backend=backend, error=str(error)[-500:])
                continue
        print_result(f"torch {wrap}", equal, f"of {adopted} steps before the first adoption equal", backend=backend, ranks=RANKS)
        if equal < adopted:
            raise RuntimeError(f"{wrap} with {backend}: {adopted - equal} steps differ from those without a session")
        return
    raise RuntimeError(f"{wrap}: no backend can do it")


def steps_of_ranks(given: PartOptions, rig: ExchangeRig, wrap: str, backend: str) -> tuple[int, int]:
    """(steps that are equal on all ranks, steps before the first adoption)."""
    rig.start_syncer()
    arguments = ("--wrap", wrap, "--backend", backend, "--device", given.device)
    rig.start_ranks("unit", RANKS, *arguments, module="benchmarks.device.rank_variant")
    limit = given.left if given.small else min(JOIN_SECONDS, given.left)
    rig.wait_for_steps(["unit"], STEPS, timeout=limit)
    others = [Path(f"{rig.times('unit')}.{rank}") for rank in range(1, RANKS)]
    deadline = time.monotonic() + limit
    while any(len(other.read_text(encoding="ascii").splitlines()) < STEPS for other in others):
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank 1 does not take {STEPS} steps\n{rig.logs()}")
        time.sleep(0.05)
    noted = [rig.noted("unit"), *([line.split() for line in other.read_text(encoding="ascii").splitlines()] for other in others)]
    # A program compares before the boundary of a step. So the step at whose end something is adopted still counts.
    before = sum(int(line[1]) == 0 for line in noted[0][:STEPS]) + 1
    compared = min(before, STEPS)
    return sum(all(of_rank[step][0] == "1" for of_rank in noted) for step in range(compared)), compared


def main(given: PartOptions) -> None:
    launcher = Launcher()
    of_one_process = SMALL_PROGRAMS if given.small else PROGRAMS
    work = [
        *(partial(kinds, given, launcher, module, chosen) for module, chosen in of_one_process),
        *(partial(ranks, given, wrap) for wrap in ("ddp", "fsdp")),
    ]
    with ThreadPoolExecutor(2 if given.small else len(work)) as threads:
        done = [threads.submit(check) for check in work]
    errors = [error for check in done if (error := check.exception()) is not None]
    for error in errors:
        log(f"{type(error).__name__}: {error}")
    if errors:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
