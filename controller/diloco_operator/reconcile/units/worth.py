"""What a unit of each pool is worth to its job, what leaving a slice costs, and how many units may leave theirs for better ones. Pure.

See docs/decisions/0213-values-and-moves.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
from typing import NamedTuple

from diloco_operator.allotment.flow.problem import MEAN
from diloco_operator.allotment.values import leaving_cost
from diloco_operator.api.spec import Objective
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord

_ON_THE_WAY = (UnitState.DRAINING, UnitState.STARTING, UnitState.JOINING)


class PoolWorth(NamedTuple):
    """What a unit of a pool is worth, and what it loses by leaving a slice; in thousandths of an average unit of the job."""

    value: int
    leaving_cost: int


def pool_worth(context: ReconcileContext, records: Collection[UnitStatusRecord]) -> dict[str, PoolWorth]:
    """Return pool -> its worth. Among pools of equal worth the allotment follows the order of the spec."""
    policy = context.spec.placement
    worth_by_pool = {}
    for name in context.pools:
        known = context.throughput[name]
        value = MEAN if policy.objective is Objective.PREFERENCE else known.value
        cost = leaving_cost(value, _recovery(name, records), policy.horizon, averaged=known.averaged)
        worth_by_pool[name] = PoolWorth(value, cost)
    return worth_by_pool


def _recovery(pool: str, records: Iterable[UnitStatusRecord]) -> float | None:
    """Return the median seconds that units of the pool, or else of any pool, took to train again after a loss. None if none was lost
    yet."""
    times = [(record.pool == pool, record.recover_seconds) for record in records if record.recover_seconds is not None]
    durations = [seconds for in_pool, seconds in times if in_pool] or [seconds for _, seconds in times]
    return statistics.median(durations) if durations else None


def may_move(context: ReconcileContext, records: Iterable[UnitStatusRecord]) -> int:
    """Return how many units may leave their slices for better ones now."""
    pools = sum(pool.learners.max > 0 for pool in context.spec.pools)
    if context.finishing or pools < 2:  # within one pool no slice is better than another
        return 0
    return max(0, context.spec.placement.max_moving - on_the_way(records))


def worth_moving_to(context: ReconcileContext, records: Collection[UnitStatusRecord]) -> set[str]:
    """Return the pools in which some unit would gain more than leaving its present slice costs. The job wants units there even if it has as
    many as it may have: another unit would leave for each."""
    if context.finishing or not context.spec.placement.max_moving:
        return set()
    worth_by_pool = pool_worth(context, records)
    held = [worth_by_pool[record.pool] for record in records if record.slice and record.pool in worth_by_pool]
    least = min((pool.value + pool.leaving_cost for pool in held), default=None)
    return {name for name, pool in worth_by_pool.items() if least is not None and pool.value > least}


def on_the_way(records: Iterable[UnitStatusRecord]) -> int:
    """Return how many units are leaving a slice, or do not train yet on the one that they have."""
    return sum(record.state in _ON_THE_WAY for record in records)
