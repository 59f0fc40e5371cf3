"""[guard-false] How often the guards refuse a contribution of a job whose units are all well.

Eight learners train a small model in lock step with the real coordinator and shard, over six patterns: 1 % of the batches with a loss a
hundred times as high, lognormal losses, a part of the model whose gradient begins late and at another time in each unit, a learning rate
that warms up from zero and begins again, a unit with ten times the batch, and a unit that joins late with a new optimizer. Each pattern has
both merge rules in BFloat16 and in Int4, in turn. The value is the number of refusals in all runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from builders.healthy_runs import PATTERNS, refusals

from benchmarks.figure import Figure

RUNS_OF_A_PATTERN = 34


def measure(*, smoke: bool) -> Iterator[Figure]:
    seeds = 1 if smoke else RUNS_OF_A_PATTERN
    found = {name: sum(refusals(name, seed) for seed in range(seeds)) for name in PATTERNS}
    refused = sum(found.values())
    yield Figure("guard-false", refused, "refusals", 0, not refused, seeds * len(PATTERNS), {"refused": found})
