"""[exchange-overhead*] What the exchange costs a training step, by the size of the model.

The median step of a learner whose model is exchanged in 24 fragments, over the median step of the same loop without a session. Steps have a
fixed length. Both run side by side, so that a busy machine slows both.
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


@dataclass(frozen=True, slots=True)
class Size:
    workload: Workload
    runs: int
    warm_up_steps: int
    window: float
    """Seconds that one run measures."""


FULL = Size(Workload(mebibytes=4, step_seconds=0.05), runs=5, warm_up_steps=40, window=8.0)
SMOKE = Size(Workload(mebibytes=4, step_seconds=0.05), runs=1, warm_up_steps=5, window=1.0)


def ratio(directory: Path, size: Size) -> float:
    """The ratio of one run."""
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        rig.start_learner("with")
        rig.start_learner("without", alone=True)
        return rig.with_over_without(size.warm_up_steps, size.window)


def figure(name: str, size: Size) -> Figure:
    """The median of the runs."""
    with tempfile.TemporaryDirectory() as directory:
        ratios = [ratio(Path(directory) / str(run), size) for run in range(size.runs)]
    value = median(ratios)
    return Figure(name, value, "ratio", LIMIT, value <= LIMIT, size.runs, {"ratios": rounded(ratios, 4)})


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield figure("exchange-overhead", SMOKE if smoke else FULL)
