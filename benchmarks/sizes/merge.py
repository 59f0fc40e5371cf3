"""[merge] Speed of merging eight learners' outer gradients of one fragment by RDA, as a share of the speed of memory.

The value is the time in which each gradient is read once (for its maximum) and one array of the result's size is written, over the time of
the merge. The norms come with the contributions, as in the syncer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.merge import merge, norms
from diloco.kernels import Vector

from benchmarks.figure import Figure, rounded

LIMIT = 0.5
LEARNERS = 8
TENSORS = 4


def measure(*, smoke: bool) -> Iterator[Figure]:
    side, runs = (128, 3) if smoke else (2048, 15)
    (fragment,) = make_fragments(Layout(TensorSpec(f"w{i}", (side, side)) for i in range(TENSORS)), 1)
    rng = np.random.default_rng(0)
    deltas = [rng.standard_normal(fragment.size, dtype=np.float32) for _ in range(LEARNERS)]
    lengths = [norms(fragment, delta) for delta in deltas]
    weights = [float(m + 1) for m in range(LEARNERS)]
    shares, rates = [], []
    for _ in range(runs + 1):  # the first does not count
        start = time.perf_counter()
        for delta in deltas:
            delta.max()
        np.full(fragment.size, 1, np.float32)
        between = time.perf_counter()
        merge(fragment, [Vector.of_values(delta) for delta in deltas], lengths, weights, "RDA", "RDA")
        end = time.perf_counter()
        shares.append((between - start) / (end - between))
        rates.append(4 * fragment.size * LEARNERS / (1 << 30) / (end - between))
    value = median(shares[1:])
    details = {
        "mebibytes": 4 * fragment.size / (1 << 20),
        "all": rounded(shares[1:], 2),
        "gibibytes_per_second": round(median(rates[1:]), 2),
    }
    yield Figure("merge", value, "merge ÷ reading once and writing the result", LIMIT, value >= LIMIT, runs, details)
