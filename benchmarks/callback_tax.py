"""[callback-tax] What the callback for the Trainer of transformers costs an update.

The median update of a Trainer in a job, whose model is exchanged in 24 fragments, over the median update of the same Trainer alone. Both
run side by side, so that a busy machine slows both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded

LIMIT = 1.05


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    warm_up_steps: int
    window: float
    """Seconds that are measured."""


WORKLOAD = Workload(mebibytes=4, step_seconds=0.05)
FULL = Size(runs=3, warm_up_steps=40, window=10.0)
SMOKE = Size(runs=1, warm_up_steps=3, window=1.0)


def ratio(directory: Path, size: Size) -> tuple[float, dict[str, dict[str, float]]]:
    """Measure one run, with the processor time of each program."""
    with ExchangeRig(directory, WORKLOAD) as rig:
        rig.start_syncer()
        rig.start_program("with", "benchmarks.trainer_learner")
        rig.start_program("without", "benchmarks.trainer_learner", "--alone")
        value = rig.with_over_without(size.warm_up_steps, size.window)
        return value, {unit: rig.processor_ms(unit) for unit in ("with", "without")}


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the median of the runs."""
    size = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory() as directory:
        measured = [ratio(Path(directory) / str(run), size) for run in range(size.runs)]
    ratios = [found for found, _ in measured]
    value = median(ratios)
    details = {"ratios": rounded(ratios, 4), "processor_ms": measured[-1][1]}
    yield Figure("callback-tax", value, "ratio", LIMIT, value <= LIMIT, size.runs, details)
