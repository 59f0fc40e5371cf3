"""[guard-false] How often the guards refuse a contribution of a job whose units are all well.

Eight learners train a small model in lock step with the real coordinator and shard. There are six patterns: 1 % of the batches have a loss
a hundred times as high; losses are lognormal; the gradient of a part of the model begins late, at another time in each unit; the learning
rate warms up from zero and begins again; one unit has ten times the batch; one unit joins late with a new optimizer. Each pattern runs with
both merge rules, in BFloat16 and in Int4, in turn. The value is the number of refusals in all runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from builders.healthy_runs import PATTERNS, refusals

from benchmarks.figure import Figure

RUNS_OF_A_PATTERN = 34


def measure(*, smoke: bool) -> Iterator[Figure]:
    seeds = 1 if smoke else RUNS_OF_A_PATTERN
    by_pattern = {name: sum(refusals(name, seed) for seed in range(seeds)) for name in PATTERNS}
    refused = sum(by_pattern.values())
    yield Figure("guard-false", refused, "refusals", 0, not refused, seeds * len(PATTERNS), {"refused": by_pattern})
