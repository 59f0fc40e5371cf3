"""Which pools should ask whether their pods would be admitted, because units of other jobs would then leave for them. Pure.

See docs/decisions/0206-dry-runs-before-revocations.md.
"""

from __future__ import annotations

from dataclasses import replace

from diloco_operator.allotment.flow.problem import FlowJob, FlowPlan, FlowProblem
from diloco_operator.allotment.flow.solution import solve


def checks(problem: FlowProblem, plan: FlowPlan) -> frozenset[tuple[str, str]]:
    """Job and pool. They get more if all pools may displace units. A second solve, where some may not."""
    asking = [(job.key, pool.name) for job in problem.jobs for pool in job.pools if pool.wanted and not pool.displaces]
    if not asking:
        return frozenset()
    then = solve(FlowProblem(problem.classes, tuple(_displacing(job) for job in problem.jobs)))
    return frozenset(key for key in asking if sum(then.pools[key].taken.values()) > sum(plan.pools[key].taken.values()))


def _displacing(job: FlowJob) -> FlowJob:
    return replace(job, pools=tuple(replace(pool, displaces=True) for pool in job.pools))
