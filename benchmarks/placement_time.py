"""[full-placement] [million-chips] [incremental-placement] [broken-minimum] [growth-slices] [growth-jobs] What the flow costs.

Processor time of one thread, on fleets from seeds; `python -m benchmarks.placement_time --seed N` takes other fleets. The growth figures
are ratios of two times of one run.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from builders.placement_fleets import a_large_problem
from diloco_operator.allotment.flow import FlowProblem, solve
from diloco_operator.allotment.flow.components import components
from diloco_operator.allotment.flow.objective import bonuses
from diloco_operator.allotment.flow.repair import lose_held, prepare, without_unit
from diloco_operator.allotment.flow.solution import Solution

from benchmarks.figure import Figure, percentile
from benchmarks.from_seed import main

FULL_LIMIT, MILLION_LIMIT, REPAIR_LIMIT_MS = 1.0, 2.0, 20.0
SLICES_LIMIT, JOBS_EXPONENT_LIMIT = 2.0, 1.5


@dataclass(frozen=True, slots=True)
class Size:
    slices: int
    jobs: int
    million: tuple[int, int]
    """Slices of 256 chips, and jobs."""
    growth: tuple[int, int]
    """Slices, at fixed jobs."""
    repairs: int
    runs: int


FULL = Size(5000, 200, (4688, 500), (500, 50_000), 20, 3)
SMOKE = Size(200, 10, (100, 10), (100, 200), 3, 1)


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def solving(problem: FlowProblem, runs: int) -> float:
    """Measure the median of the seconds that one solve takes."""
    return statistics.median(seconds(lambda: solve(problem)) for _ in range(runs))


def growth(small: FlowProblem, large: FlowProblem, runs: int) -> float:
    """Measure the median of the ratios of two solves, one after the other."""
    pairs = [(seconds(lambda: solve(small)), seconds(lambda: solve(large))) for _ in range(runs)]
    return statistics.median(many / few for few, many in pairs)


@dataclass(slots=True)
class Losses:
    """Times of repairs, of one lost slice each."""

    milliseconds: list[float] = field(default_factory=list)
    """With the time of a new solve where one was needed."""
    anew: int = 0
    gap: int = 0
    """The largest difference to a new solve."""


def losses(problem: FlowProblem, count: int, *, broken: bool) -> Losses:
    """Lose slices of units that are beyond the minimum of their job; `broken`: of units that the minimum needs."""
    found = Losses()
    for job in problem.jobs:
        if len(found.milliseconds) < count and job.has > (0 if broken else job.protected):
            jobs = (replace(each, min=each.has) if broken and each is job else each for each in problem.jobs)
            _lose(FlowProblem(problem.classes, tuple(jobs)), job.key, found)
    return found


def _lose(problem: FlowProblem, key: str, found: Losses) -> None:
    """Measure how long it takes when one unit of this job loses its slice."""
    bonus = bonuses(problem.jobs)
    jobs, classes = next(each for each in components(problem) if any(job.key == key for job in each[0]))
    pool = next(pool for job in jobs if job.key == key for pool in job.firm if pool.has)
    lost = pool.held[0].class_
    solution = Solution.of(jobs, classes, bonus)
    prepare(solution)
    after = [without_unit(job, pool.name, lost) if job.key == key else job for job in jobs]
    fewer = [replace(each, room=each.room - (each.name == lost)) for each in classes]
    gc.collect()
    began = time.process_time()
    repaired = lose_held(solution, key, pool.name, lost)
    if not repaired:
        solution = Solution.of(after, fewer, bonus)
        found.anew += 1
    found.milliseconds.append((time.process_time() - began) * 1000)
    if repaired:
        found.gap = max(found.gap, abs(Solution.of(after, fewer, bonus).objective - solution.objective))


def figures(size: Size, seed: int) -> Iterator[Figure]:
    problem = a_large_problem(seed, size.slices, size.jobs)
    unit = "s of processor time, {} slices, {} jobs"
    value = solving(problem, size.runs)
    what = unit.format(size.slices, size.jobs)
    yield Figure("full-placement", value, what, FULL_LIMIT, value <= FULL_LIMIT, size.runs, {"seed": seed})
    million = a_large_problem(seed, *size.million, kinds=5, domains=4)
    value = solving(million, size.runs)
    what = unit.format(*size.million)
    yield Figure("million-chips", value, what, MILLION_LIMIT, value <= MILLION_LIMIT, size.runs, {"seed": seed})
    for name, broken in (("incremental-placement", False), ("broken-minimum", True)):
        found = losses(problem, size.repairs, broken=broken)
        value = statistics.median(found.milliseconds)
        details: dict[str, object] = {
            "seed": seed,
            "gap": found.gap,
            "p95": percentile(found.milliseconds, 0.95),
            "solved_anew": found.anew,
        }
        within = value <= REPAIR_LIMIT_MS and not found.gap
        yield Figure(name, value, "ms of processor time, one slice lost", REPAIR_LIMIT_MS, within, len(found.milliseconds), details)
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
