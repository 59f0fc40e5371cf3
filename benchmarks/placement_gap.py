"""[optimality-small] [optimality-groups] [optimality-large] How far the flow is from the best placement, on random fleets from seeds.

The reference is an integer programme that HiGHS solves exactly; on large fleets its bound without whole numbers. Gaps are those of the
objective between plans that admit the same jobs. `python -m benchmarks.placement_gap --seed N` takes other fleets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from builders.placement_fleets import a_large_problem, a_problem_of_groups, a_small_problem
from builders.placement_reference import Best, best, bound
from diloco_operator.allotment.flow import FlowPlan, FlowProblem, solve

from benchmarks.figure import Figure, percentile
from benchmarks.from_seed import main

GROUPS_NEAR, GROUPS_P95 = 0.001, 0.02
GROUPS_SHARE = 0.9
"""Share of the fleets with units of several sizes, those within `GROUPS_NEAR`."""
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
    withheld = {job: sum(rooms.values()) for job, rooms in plan.withheld.items()}
    return (plan.admitted, dict(plan.missing), withheld) == (exact.admitted, dict(exact.missing), dict(exact.withheld))


def compare(problems: Iterator[FlowProblem]) -> tuple[list[float], int]:
    """Collect the gaps of the objective where the admission is the same, and how often it is not."""
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
    near = sum(gap <= GROUPS_NEAR for gap in gaps) / max(1, len(gaps))
    p95 = percentile(gaps, 0.95)
    details = {"seed": seed, "other_admission": other, "within_0.1_percent": near, "largest": max(gaps, default=0.0)}
    within = p95 <= GROUPS_P95 and near >= GROUPS_SHARE
    yield Figure("optimality-groups", p95, f"p95 of the gaps, {size.groups} fleets", GROUPS_P95, within, size.groups, details)
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
