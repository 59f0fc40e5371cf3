"""[rejoin-3GiB, donor-tax-3GiB] Like `benchmarks.rejoin`, with a state of 3 GiB (1 GiB of parameters, two moments) and steps of 1 s."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.rejoin import SMOKE, H, Size, figures

FULL = Size(3 << 10, runs=1, step_seconds=1.0, warm_up_steps=H + 6)


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield from figures("3GiB", SMOKE if smoke else FULL)
