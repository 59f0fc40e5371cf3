"""Which pools should ask whether their pods would be admitted, because units of other jobs would then leave for them. Pure.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from diloco_operator.allotment.flow.problem import FlowJob, FlowPlan, FlowProblem
from diloco_operator.allotment.flow.successors import solve

ROUNDS = 4
type Answer = tuple[FlowPlan, frozenset[tuple[str, str]], frozenset[str]]
"""The plan, which pools should ask (job and pool), and which jobs should make what their units share."""


def answer(problem: FlowProblem) -> Answer:
    """Solve the problem, and say who should ask, and who should get ready."""
    plan = solve(problem)
    prepares = {(job.key, pool.name) for job in problem.jobs for pool in job.pools if pool.wanted and pool.prepares}
    if not prepares:
        return plan, checks(problem, plan), frozenset()
    # Those that ask must win beside those that have been admitted and get ready in a moment.
    problem = _all_displacing(problem, prepares)
    then = solve(problem)
    gain = {job for job, name in prepares if _taken(then, (job, name)) > _taken(plan, (job, name)) or _keeps(then, job)}
    return plan, checks(problem, then), frozenset(gain)


def checks(problem: FlowProblem, plan: FlowPlan) -> frozenset[tuple[str, str]]:
    """Return job and pool: those that get more if they may displace units, or for whose minimum slices stay free. They may be refused, so
    the next ones are looked for without them, a few times; then all that are left should ask: a dry run for nothing costs little."""
    asking = {
        (job.key, pool.name): pool.wanted for job in problem.jobs for pool in job.pools if pool.wanted and pool.asks and not pool.displaces
    }
    asking = {key: wanted for key, wanted in asking.items() if wanted > _taken(plan, key)}
    found: set[tuple[str, str]] = set()
    for _ in range(ROUNDS):
        if not asking:
            break
        then = solve(_all_displacing(problem, asking))
        more = {key for key in asking if _taken(then, key) > _taken(plan, key) or _keeps(then, key[0])}
        if not more:
            break
        found |= more
        asking = {key: wanted for key, wanted in asking.items() if key not in more}
    else:
        found |= asking.keys()
    return frozenset(found)


def _taken(plan: FlowPlan, pool: tuple[str, str]) -> int:
    return sum(plan.pools[pool].taken.values())


def _keeps(plan: FlowPlan, job: str) -> bool:
    """Return whether slices stay free for the job, or are lent, until its minimum fits."""
    return any(plan.kept_for_minimum.get(job, {}).values())


def _all_displacing(problem: FlowProblem, some: Collection[tuple[str, str]]) -> FlowProblem:
    """Return the problem as if the pods of these pools, too, were known to be admitted."""
    return FlowProblem(problem.classes, tuple(_displacing(job, some) for job in problem.jobs))


def _displacing(job: FlowJob, some: Collection[tuple[str, str]]) -> FlowJob:
    pools = (replace(pool, displaces=True, keeps_for_minimum=True) if (job.key, pool.name) in some else pool for pool in job.pools)
    return replace(job, pools=tuple(pools))
