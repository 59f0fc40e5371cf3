"""[int4-encode] and [int4-decode]: one thread codes a fragment's delta in int4, and decodes it, into new arrays as a learner does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
from diloco.algorithm.codec import Coding, decode, encode

from benchmarks.figure import Figure, rounded

LIMIT = 2.5
UNIT = "GiB of float32 a second and core"


def rates(run: Callable[[], object], gibibytes: float, runs: int) -> list[float]:
    """GiB/s of each run, after a first run that does not count."""
    by_run = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        run()
        by_run.append(gibibytes / (time.perf_counter() - start))
    return by_run[1:]


def measure(*, smoke: bool) -> Iterator[Figure]:
    n, runs = (1 << 18, 3) if smoke else (1 << 24, 15)
    gibibytes = 4 * n / (1 << 30)
    delta = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    payload = encode(Coding.INT4_DELTA, delta)
    copies = rates(delta.copy, gibibytes, runs)
    for name, run in (
        ("int4-encode", lambda: encode(Coding.INT4_DELTA, delta)),
        ("int4-decode", lambda: decode(Coding.INT4_DELTA, payload, n)),
    ):
        run_rates = rates(run, gibibytes, runs)
        value = median(run_rates)
        details = {"mebibytes": gibibytes * 1024, "all": rounded(run_rates, 2), "numpy_copy": round(median(copies), 2)}
        yield Figure(name, value, UNIT, LIMIT, value >= LIMIT, runs, details)
