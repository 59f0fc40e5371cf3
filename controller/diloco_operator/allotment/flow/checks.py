"""Which pools should ask by a dry run whether their pods are admitted, because units of other jobs would then leave for them. Pure.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from diloco_operator.allotment.flow.problem import FlowJob, FlowPlan, FlowProblem
from diloco_operator.allotment.flow.successors import solve

ROUNDS = 4
"""How often `checks` solves again for pools that could ask."""
type Answer = tuple[FlowPlan, frozenset[tuple[str, str]], frozenset[str]]
"""The plan, the (job, pool) of each pool that should ask, and the jobs that should create what their units share."""


def answer(problem: FlowProblem) -> Answer:
    plan = solve(problem)
    prepares = {(job.key, pool.name) for job in problem.jobs for pool in job.pools if pool.wanted and pool.prepares}
    if not prepares:
        return plan, checks(problem, plan), frozenset()
    # Pools that only wait until what they share is created will compete in a moment. A pool should ask only if it wins beside them.
    problem = _all_displacing(problem, prepares)
    prepared_plan = solve(problem)
    gain = {job for job, name in prepares if _taken(prepared_plan, (job, name)) > _taken(plan, (job, name)) or _keeps(prepared_plan, job)}
    return plan, checks(problem, prepared_plan), frozenset(gain)


def checks(problem: FlowProblem, plan: FlowPlan) -> frozenset[tuple[str, str]]:
    """Return the (job, pool) of pools that get more if they may displace units, or for whose minimum slices then stay free."""
    asking = {
        (job.key, pool.name): pool.wanted for job in problem.jobs for pool in job.pools if pool.wanted and pool.asks and not pool.displaces
    }
    asking = {key: wanted for key, wanted in asking.items() if wanted > _taken(plan, key)}
    should_ask: set[tuple[str, str]] = set()
    # The pools that win may be refused, so each round looks for the next ones without them. After the last round all that are left should
    # ask: a dry run for nothing costs little.
    for _ in range(ROUNDS):
        if not asking:
            break
        displacing_plan = solve(_all_displacing(problem, asking))
        winning = {key for key in asking if _taken(displacing_plan, key) > _taken(plan, key) or _keeps(displacing_plan, key[0])}
        if not winning:
            break
        should_ask |= winning
        asking = {key: wanted for key, wanted in asking.items() if key not in winning}
    else:
        should_ask |= asking.keys()
    return frozenset(should_ask)


def _taken(plan: FlowPlan, pool: tuple[str, str]) -> int:
    return sum(plan.pools[pool].taken.values())


def _keeps(plan: FlowPlan, job: str) -> bool:
    """Whether slices are kept for the job until its minimum fits."""
    return any(plan.kept_for_minimum.get(job, {}).values())


def _all_displacing(problem: FlowProblem, pools: Collection[tuple[str, str]]) -> FlowProblem:
    """Return the problem as if the pods of these pools were known to be admitted, too."""
    return FlowProblem(problem.classes, tuple(_displacing(job, pools) for job in problem.jobs))


def _displacing(job: FlowJob, pools: Collection[tuple[str, str]]) -> FlowJob:
    changed = (replace(pool, displaces=True, keeps_for_minimum=True) if (job.key, pool.name) in pools else pool for pool in job.pools)
    return replace(job, pools=tuple(changed))
