"""[rank-tax] What the session costs a step of a unit of four ranks.

The median step of a unit whose model is exchanged in 24 fragments, over the median step of the same four processes with a `BareExchange` in
each: gRPC with as many bytes, and nothing else of the session. Steps have a fixed length and one collective. Both units run side by side,
so that a busy machine slows both, and the threads of gRPC cost both the same on a machine with few cores. What is left is our own code in
the step and the messages between ranks. The limit is for that: 15 % more of it than is reached. `over_alone` in the line is the same over a
third unit, which runs without gRPC beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exchange_rig import ExchangeRig, RunSize, Taxes, Workload, each_run, tax_figure
from benchmarks.figure import Figure

LIMIT = 1.07
RANKS = 4


@dataclass(frozen=True, slots=True)
class Size(RunSize):
    ranks: int


FULL = Size(Workload(mebibytes=4, step_seconds=0.1), ranks=RANKS, runs=3, warm_up_steps=40, window=10.0)
SMOKE = Size(Workload(mebibytes=4, step_seconds=0.1), ranks=2, runs=1, warm_up_steps=5, window=1.0)


def taxes(directory: Path, size: Size) -> Taxes:
    with ExchangeRig(directory, size.workload) as rig:
        rig.start_syncer()
        rig.start_ranks("with", size.ranks)
        rig.start_ranks("bare", size.ranks, "--bare", address=rig.start_bare("-m", "benchmarks.bare_exchange"))
        rig.start_ranks("without", size.ranks, "--alone")
        return rig.taxes(size.warm_up_steps, size.window)


def measure(*, smoke: bool) -> Iterator[Figure]:
    size = SMOKE if smoke else FULL
    measured = each_run(size.runs, lambda folder: taxes(folder, size))
    yield tax_figure("rank-tax", measured, LIMIT)
