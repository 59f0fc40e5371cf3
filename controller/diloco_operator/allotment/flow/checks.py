"""Which pools should ask whether their pods would be admitted, because units of other jobs would then leave for them. Pure.

See docs/decisions/0206-dry-runs-before-revocations.md.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from diloco_operator.allotment.flow.problem import FlowJob, FlowPlan, FlowProblem
from diloco_operator.allotment.flow.successors import solve

ROUNDS = 4
type Answer = tuple[FlowPlan, frozenset[tuple[str, str]]]
"""The plan, and which pools should ask: job and pool."""


def answer(problem: FlowProblem) -> Answer:
    """Solve the problem, and say who should ask."""
    plan = solve(problem)
    return plan, checks(problem, plan)


def checks(problem: FlowProblem, plan: FlowPlan) -> frozenset[tuple[str, str]]:
    """Return job and pool. They get more if they may displace units. Those that do may be refused, so the next ones are looked for without
    them, a few times; then all that are left should ask: a dry run for nothing costs little."""
    asking = {
        (job.key, pool.name): pool.wanted for job in problem.jobs for pool in job.pools if pool.wanted and pool.asks and not pool.displaces
    }
    asking = {key: wanted for key, wanted in asking.items() if wanted > sum(plan.pools[key].taken.values())}
    found: set[tuple[str, str]] = set()
    for _ in range(ROUNDS):
        if not asking:
            break
        then = solve(FlowProblem(problem.classes, tuple(_displacing(job, asking) for job in problem.jobs)))
        more = {key for key in asking if sum(then.pools[key].taken.values()) > sum(plan.pools[key].taken.values())}
        if not more:
            break
        found |= more
        asking = {key: wanted for key, wanted in asking.items() if key not in more}
    else:
        found |= asking.keys()
    return frozenset(found)


def _displacing(job: FlowJob, asking: Container[tuple[str, str]]) -> FlowJob:
    pools = (replace(pool, displaces=pool.displaces or (job.key, pool.name) in asking) for pool in job.pools)
    return replace(job, pools=tuple(pools))
