"""[step-tax-*] What a step boundary costs: the time inside `step()` over the length of a step, with fragments of 64 MiB.

A learner in torch or in JAX trains a model of two fragments with steps of 100 ms, in a real job. Within 24 steps each fragment is read
once and adopted once. With `-axes` the parameters are transposed against their canonical form, so that each transfer transposes them.
A figure is the median of the runs. Its limit also requires that the longest boundary, as a median of the runs, is at most LONGEST.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded

LIMIT = 0.02
LONGEST = 0.02
"""Limit of the longest single boundary, seconds."""
CYCLE = 24
"""Outer steps from one exchange of a fragment to the next."""
PROGRAMS = {
    "step-tax-torch": ("--framework", "torch"),
    "step-tax-torch-axes": ("--framework", "torch", "--axes"),
    "step-tax-jax": ("--framework", "jax"),
    "step-tax-jax-axes": ("--framework", "jax", "--axes"),
}


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    runs: int
    cycles: int
    """Cycles that are measured, after one to warm up."""


FULL = Size(Workload(mebibytes=128, step_seconds=0.1), runs=3, cycles=4)
SMOKE = Size(Workload(mebibytes=1, step_seconds=0.02), runs=1, cycles=1)


def boundaries(directory: Path, size: Size, arguments: tuple[str, ...]) -> list[float]:
    """Seconds inside each `step()` of one run."""
    steps = CYCLE * (1 + size.cycles)
    with ExchangeRig(directory, size.workload, {"fragments": 2}) as rig:
        rig.start_syncer()
        rig.start_program("unit", "benchmarks.step_tax_learner", *arguments)
        rig.wait_for_steps(["unit"], steps)
        lines = rig.times("unit").with_suffix(".times.inside").read_text(encoding="ascii").split()
    return [float(line) for line in lines[CYCLE:steps]]


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    for name, arguments in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as directory:
            runs = [boundaries(Path(directory) / str(run), size, arguments) for run in range(size.runs)]
        shares = [fmean(run) / size.workload.step_seconds for run in runs]
        longest = [max(run) for run in runs]
        value = median(shares)
        details = {"shares": rounded(shares, 4), "longest_ms": rounded([1000 * seconds for seconds in longest], 2)}
        yield Figure(name, value, "share", LIMIT, value <= LIMIT and median(longest) <= LONGEST, size.runs, details)
