"""[exchange-overhead-64MiB] and [exchange-overhead-1GiB]: like `exchange-overhead`, with larger models."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.exchange_overhead import SMOKE, figure
from benchmarks.exchange_rig import RunSize, Workload
from benchmarks.figure import Figure

FULL = {
    "exchange-overhead-64MiB": RunSize(Workload(mebibytes=64, step_seconds=0.05), runs=5, warm_up_steps=60, window=8.0),
    "exchange-overhead-1GiB": RunSize(Workload(mebibytes=1024, step_seconds=0.5), runs=3, warm_up_steps=48, window=24.0),
}


def measure(*, smoke: bool) -> Iterator[Figure]:
    for name, size in FULL.items():
        yield figure(name, SMOKE if smoke else size)
