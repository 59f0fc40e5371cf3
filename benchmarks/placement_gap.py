"""[optimality-small] [optimality-groups] [optimality-large] How far the flow is from the best placement, on random fleets from seeds.

The reference is an integer programme that HiGHS solves exactly; on large fleets it is the bound of its linear relaxation. A gap is that of
the objective between two plans that admit the same jobs. `python -m benchmarks.placement_gap --seed N` takes other fleets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from builders.placement_fleets import a_large_problem, a_problem_of_groups, a_small_problem
from builders.placement_reference import Best, best, bound
from diloco_operator.allotment.flow import FlowPlan, FlowProblem, solve

from benchmarks.figure import Figure
from benchmarks.from_seed import main

LARGE_LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class Size:
    small: int
    groups: int
    large: int
    slices: int
    jobs: int


FULL = Size(300, 200, 20, 5000, 200)
SMOKE = Size(3, 3, 1, 120, 8)


def same_admission(plan: FlowPlan, exact: Best) -> bool:
    """Whether both admit the same jobs, with the same units missing from their minima, and the same jobs keep slices for these."""
    return (plan.admitted, dict(plan.missing), plan.kept_for_minimum.keys()) == (
        exact.admitted,
        dict(exact.missing),
        exact.kept_for_minimum.keys(),
    )


def compare(problems: Iterator[FlowProblem]) -> tuple[list[float], int]:
    """The gaps of the objective where the admission is the same, and how often the admission differs."""
    gaps, other = [], 0
    for problem in problems:
        plan, exact = solve(problem), best(problem)
        if same_admission(plan, exact):
            gaps.append((exact.objective - plan.objective) / max(1, exact.objective))
        else:
            other += 1
    return gaps, other


def figures(size: Size, seed: int) -> Iterator[Figure]:
    gaps, other = compare(a_small_problem(seed + index) for index in range(size.small))
    worst = max(gaps, default=0.0)
    details: dict[str, object] = {"seed": seed, "other_admission": other}
    within = worst == 0 and min(gaps, default=0.0) == 0 and not other
    yield Figure("optimality-small", worst, f"largest gap, {size.small} fleets", 0.0, within, size.small, details)
    gaps, other = compare(a_problem_of_groups(seed + index) for index in range(size.groups))
    worst = max(gaps, default=0.0)
    details = {"seed": seed, "other_admission": other}
    within = worst == 0 and min(gaps, default=0.0) == 0 and not other
    yield Figure("optimality-groups", worst, f"largest gap, {size.groups} fleets", 0.0, within, size.groups, details)
    gaps = []
    for index in range(size.large):
        problem = a_large_problem(seed + index, size.slices, size.jobs)
        plan = solve(problem)
        most = bound(problem, plan)
        gaps.append((most - plan.objective) / most)
    unit = f"largest gap to the bound, {size.slices} slices, {size.jobs} jobs"
    yield Figure("optimality-large", max(gaps), unit, LARGE_LIMIT, max(gaps) <= LARGE_LIMIT, size.large, {"seed": seed})


def measure(*, smoke: bool) -> Iterator[Figure]:
    yield from figures(SMOKE if smoke else FULL, 0)


if __name__ == "__main__":
    sys.exit(main("benchmarks.placement_gap", partial(figures, FULL)))
