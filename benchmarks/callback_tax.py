"""[callback-tax] What the callback for the Trainer of transformers costs an update.

The median update of a Trainer in a job, whose model is exchanged in 24 fragments, over the median update of the same Trainer with a
`BareExchange`: gRPC with as many bytes, and nothing else of the session. Both run side by side, so that a busy machine slows both, and the
threads of gRPC cost both the same on a machine with few cores. What is left is our own code in the update, and the limit is for that. It
allows more than 15 % above what is reached (1.037), because three runs differ by 0.04. `over_alone` in the line is the same over a third
Trainer, which runs without gRPC beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, RunSize, Taxes, Workload, each_run, tax_figure
from benchmarks.figure import Figure

LIMIT = 1.05


WORKLOAD = Workload(mebibytes=4, step_seconds=0.05)
FULL = RunSize(WORKLOAD, runs=3, warm_up_steps=40, window=10.0)
SMOKE = RunSize(WORKLOAD, runs=1, warm_up_steps=3, window=1.0)


def taxes(directory: Path, size: RunSize) -> Taxes:
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        rig.start_program("with", "benchmarks.trainer_learner")
        rig.start_program("bare", "benchmarks.trainer_learner", "--bare", address=rig.start_bare("-m", "benchmarks.bare_exchange"))
        rig.start_program("without", "benchmarks.trainer_learner", "--alone")
        return rig.taxes(size.warm_up_steps, size.window)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    measured = each_run(size.runs, lambda folder: taxes(folder, size))
    yield tax_figure("callback-tax", measured, LIMIT)
