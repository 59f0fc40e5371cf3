"""[survivor-gap-64MiB] and [survivor-gap-1GiB]: like `survivor-gap-1MiB`, with larger models. A step of the largest takes 500 ms: even then
a learner sends and receives 100 MiB a second."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.exchange_rig import RunSize, Workload
from benchmarks.figure import Figure
from benchmarks.survivor_gap import SMOKE, figure

FULL = {
    "survivor-gap-64MiB": RunSize(Workload(mebibytes=64, step_seconds=0.05), runs=5, warm_up_steps=60, window=8.0),
    "survivor-gap-1GiB": RunSize(Workload(mebibytes=1024, step_seconds=0.5), runs=3, warm_up_steps=48, window=24.0),
}
"""Each window covers a cycle of 24 steps, in which every fragment is exchanged once."""


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in FULL.items():
        yield figure(name, SMOKE if smoke else size)
