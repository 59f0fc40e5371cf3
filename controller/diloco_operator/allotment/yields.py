"""How much a decision yields, compared with another one of the same jobs. Pure.

The order is that of the flow: minima, by priority and age; then units beyond them, by priority; then what they are worth to their jobs,
less what shares cost. It does not depend on how slices are put into classes, which differs between decisions.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from typing import NamedTuple

from diloco_operator.allotment.flow import FlowJob, FlowPlan
from diloco_operator.allotment.flow.objective import segments
from diloco_operator.allotment.flow_problem import Question, new_value


class Yield(NamedTuple):
    """Greater is better."""

    minima: tuple[int, ...]
    """Units of its minimum that each job has or gets, in the order of priority and age."""
    beyond: int
    """Shares of units beyond minima, times the rank of their priority."""
    value: int
    """The value of all units, with what it costs to leave for those that stay, less what the shares of jobs cost."""


def is_mixed(question: Question) -> bool:
    """Whether units of several sizes take from one stock, or one is a host in parts, or slices that wishes tell apart. Else the flow is
    exact, and what is best with a bonus for what is held is best again once it is held."""
    return any(
        len({size for number, size in stock.sizes.items() if stock.meets(number) or stock.held}) > 1
        or stock.host is not None
        or stock.for_group
        or stock.is_spread
        for stock in question.stocks.values()
    )


def yield_of(question: Question, plan: FlowPlan) -> Yield:
    """Weigh what the plan says."""
    jobs = sorted(question.problem.jobs, key=lambda job: job.order)
    ranks = {priority: rank for rank, priority in enumerate(sorted({job.priority for job in jobs}), start=1)}
    minima = tuple(_secured(job, plan) for job in jobs)
    beyond = value = 0
    for job, met in zip(jobs, minima, strict=True):
        for pools in (job.firm, tuple(pool for pool in job.pools if pool.scavenged)):
            units = 0
            for pool in pools:
                placed = plan.pools[job.key, pool.name]
                kept, taken = sum(placed.kept.values()), sum(placed.taken.values())
                units += kept + taken
                beyond += 0 if pool.scavenged else (kept + taken) * ranks[job.priority] * pool.share
                value += sum(each.value * placed.kept.get(each.class_, 0) for each in pool.held)
                value += sum(new_value(question, job.key, pool, name) * count for name, count in placed.taken.items())
            left = max(0, units - (0 if pools and pools[0].scavenged else met))
            for segment in segments(pools, left) if pools else ():
                value -= segment.units * segment.cost
    return Yield(minima, beyond, value)


def _secured(job: FlowJob, plan: FlowPlan) -> int:
    return job.protected + job.missing - plan.missing.get(job.key, 0) if job.key in plan.admitted else 0
