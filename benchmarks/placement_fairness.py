"""[fairness] How evenly surplus is shared: Jain's index over jobs, and the share of jobs without surplus, on random fleets from seeds.

The value of a unit is relative to its job's own mean. Beside it stand the same fleets with raw tokens/s as values, which favour small
models: these values differ by a log-normal factor. `python -m benchmarks.placement_fairness --seed N` takes other fleets.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from builders.placement_fleets import a_large_problem
from diloco_operator.allotment.flow import FlowJob, FlowProblem, solve

from benchmarks.figure import Figure
from benchmarks.from_seed import main

SIGMA = 1.0
"""Standard deviation of the logarithm of a job's tokens/s on the same hardware: models of a quarter and of four times the size are
common."""


@dataclass(frozen=True, slots=True)
class Size:
    fleets: int
    slices: int
    jobs: int


FULL = Size(20, 500, 40)
SMOKE = Size(1, 60, 6)


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1 / n if one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def surplus(problem: FlowProblem) -> list[float]:
    """For each admitted job, its units beyond the minimum as a share of those that it could have."""
    plan, shares = solve(problem), []
    for job in problem.jobs:
        placed = [plan.pools[job.key, pool.name] for pool in job.firm]
        units = sum(sum(each.staying.values()) + sum(each.taken.values()) for each in placed)
        if job.key in plan.admitted and job.max > job.minimum:
            shares.append(max(0, units - job.minimum) / (job.max - job.minimum))
    return shares


def in_tokens(problem: FlowProblem, draw: random.Random) -> FlowProblem:
    """The problem with raw tokens/s as values."""
    return replace(problem, jobs=tuple(_times(job, draw.lognormvariate(0, SIGMA)) for job in problem.jobs))


def _times(job: FlowJob, factor: float) -> FlowJob:
    def raw(value: int) -> int:
        return max(2, round(value * factor))

    pools = (
        replace(
            pool,
            values={hub: raw(value) for hub, value in pool.values.items()},
            held=tuple(replace(each, value=raw(each.value)) for each in pool.held),
        )
        for pool in job.pools
    )
    return replace(job, pools=tuple(pools))


def figures(size: Size, seed: int) -> Iterator[Figure]:
    by_values: dict[str, list[list[float]]] = {"relative": [], "raw": []}
    for fleet_seed in range(seed, seed + size.fleets):
        problem = a_large_problem(fleet_seed, size.slices, size.jobs)
        by_values["relative"].append(surplus(problem))
        by_values["raw"].append(surplus(in_tokens(problem, random.Random(fleet_seed))))
    index = {name: round(fmean(map(jain, fleets)), 3) for name, fleets in by_values.items()}
    none = {
        name: round(fmean(sum(not share for share in shares) / max(1, len(shares)) for shares in fleets), 3)
        for name, fleets in by_values.items()
    }
    details: dict[str, object] = {"seed": seed, "jain_of_raw_tokens": index["raw"], "without_surplus": none["relative"]}
    details["without_surplus_of_raw_tokens"] = none["raw"]
    unit = f"Jain's index of surplus by what each job could have, mean of {size.fleets} fleets"
    yield Figure("fairness", index["relative"], unit, index["raw"], index["relative"] >= index["raw"], size.fleets, details)


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield from figures(SMOKE if smoke else FULL, 0)


if __name__ == "__main__":
    sys.exit(main("benchmarks.placement_fairness", partial(figures, FULL)))
