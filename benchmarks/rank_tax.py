"""[rank-tax] What the session costs a step of a unit of four ranks.

The median step of the unit, of a fixed length and with one collective, with a model exchanged in 24 fragments, over the median step of the
same four processes without a session. Both units run side by side, so that a busy machine slows both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.exchange_rig import ExchangeRig, Workload
from benchmarks.figure import Figure, rounded

LIMIT = 1.03
RANKS = 4


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    ranks: int
    runs: int
    warm_up_steps: int
    window: float
    """Seconds that are measured."""


FULL = Size(Workload(mebibytes=4, step_seconds=0.1), RANKS, runs=3, warm_up_steps=40, window=10.0)
SMOKE = Size(Workload(mebibytes=4, step_seconds=0.1), 2, runs=1, warm_up_steps=5, window=1.0)


def ratio(directory: Path, size: Size) -> tuple[float, dict[str, dict[str, float]]]:
    """Measure one run, with the processor time of each program."""
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        rig.start_ranks("with", size.ranks)
        rig.start_ranks("without", size.ranks, alone=True)
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
    yield Figure("rank-tax", value, "ratio", LIMIT, value <= LIMIT, size.runs, details)
