"""[exchange-overhead*] What the exchange costs a training step, by the size of the model.

The median step of a learner whose model is exchanged in 24 fragments, over the median step of the same loop without a session. Steps have a
fixed length. Both run side by side, so that a busy machine slows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, RunSize, Workload, each_run
from benchmarks.figure import Figure, ratio_figure

LIMIT = 1.03


FULL = RunSize(Workload(mebibytes=4, step_seconds=0.05), runs=5, warm_up_steps=40, window=8.0)
SMOKE = RunSize(Workload(mebibytes=4, step_seconds=0.05), runs=1, warm_up_steps=5, window=1.0)


def ratio(directory: Path, size: RunSize) -> float:
    """The ratio of one run."""
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        rig.start_learner("with")
        rig.start_learner("without", alone=True)
        return rig.with_over_without(size.warm_up_steps, size.window)


def figure(name: str, size: RunSize) -> Figure:
    """The median of the runs."""
    ratios = each_run(size.runs, lambda folder: ratio(folder, size))
    return ratio_figure(name, ratios, LIMIT)


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield figure("exchange-overhead", SMOKE if smoke else FULL)
