"""[full-placement] [million-chips] [growth-slices] [growth-jobs] What the flow costs.

Times are processor time of one thread, on fleets from seeds; `python -m benchmarks.placement_time --seed N` takes other fleets. The growth
figures are ratios of two times in one run.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from builders.placement_fleets import a_large_problem
from diloco_operator.allotment.flow import FlowProblem, solve

from benchmarks.figure import Figure
from benchmarks.from_seed import main
from benchmarks.reference import pace

FULL_LIMIT, MILLION_LIMIT = 1.0, 2.0
SLICES_LIMIT, JOBS_EXPONENT_LIMIT = 2.0, 1.5


@dataclass(frozen=True, slots=True)
class Size:
    slices: int
    jobs: int
    million: tuple[int, int]
    """Slices of 256 chips, and jobs."""
    growth: tuple[int, int]
    """Two numbers of slices that are compared, with the same number of jobs."""
    runs: int


FULL = Size(5000, 200, (4688, 500), (500, 50_000), 3)
SMOKE = Size(200, 10, (100, 10), (100, 200), 1)


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def solving(problem: FlowProblem, runs: int) -> float:
    """Usual seconds that one solve takes, the median of `runs`."""
    return statistics.median(seconds(lambda: solve(problem)) * pace() for _ in range(runs))


def growth(small: FlowProblem, large: FlowProblem, runs: int) -> float:
    """The time of the large solve over that of the small one right before it, the median of `runs`."""
    pairs = [(seconds(lambda: solve(small)), seconds(lambda: solve(large))) for _ in range(runs)]
    return statistics.median(many / few for few, many in pairs)


def figures(size: Size, seed: int) -> Iterator[Figure]:
    problem = a_large_problem(seed, size.slices, size.jobs)
    unit = "usual s of processor time, {} slices, {} jobs"
    value = solving(problem, size.runs)
    what = unit.format(size.slices, size.jobs)
    yield Figure("full-placement", value, what, FULL_LIMIT, value <= FULL_LIMIT, size.runs, {"seed": seed})
    million = a_large_problem(seed, *size.million, kinds=5, domains=4)
    value = solving(million, size.runs)
    what = unit.format(*size.million)
    yield Figure("million-chips", value, what, MILLION_LIMIT, value <= MILLION_LIMIT, size.runs, {"seed": seed})
    few, many = (a_large_problem(seed, slices, size.jobs) for slices in size.growth)
    value = growth(few, many, size.runs)
    what = "x, {} to {} slices".format(*size.growth)
    yield Figure("growth-slices", value, what, SLICES_LIMIT, value <= SLICES_LIMIT, size.runs, {"seed": seed})
    fewer, more = size.jobs // 2, size.jobs * 2
    few, many = (a_large_problem(seed, size.slices, jobs) for jobs in (fewer, more))
    value = math.log(growth(few, many, size.runs)) / math.log(more / fewer)
    what = f"exponent, {fewer} to {more} jobs"
    yield Figure("growth-jobs", value, what, JOBS_EXPONENT_LIMIT, value <= JOBS_EXPONENT_LIMIT, size.runs, {"seed": seed})


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield from figures(SMOKE if smoke else FULL, 0)


if __name__ == "__main__":
    sys.exit(main("benchmarks.placement_time", partial(figures, FULL)))
