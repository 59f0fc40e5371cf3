"""What a unit of each pool is worth to its job, what it costs to leave a slice, and how many units may leave theirs for better ones. Pure.

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
    """What one unit of a pool is worth, in thousandths of what an average unit of the job is worth."""

    value: int
    leaving_cost: int


def pool_worth(context: ReconcileContext, records: Collection[UnitStatusRecord]) -> dict[str, PoolWorth]:
    """Weigh each pool. Among pools of equal worth the allotment follows their order."""
    policy = context.spec.placement
    found = {}
    for name in context.pools:
        known = context.throughput[name]
        value = MEAN if policy.objective is Objective.PREFERENCE else known.value
        cost = leaving_cost(value, _recovery(name, records), policy.horizon, averaged=known.averaged)
        found[name] = PoolWorth(value, cost)
    return found


def _recovery(pool: str, records: Iterable[UnitStatusRecord]) -> float | None:
    """Return the seconds that units of the pool took to train again after a loss, else those of other pools; None: none was lost yet."""
    times = [(record.pool == pool, record.recover_seconds) for record in records if record.recover_seconds is not None]
    found = [seconds for own, seconds in times if own] or [seconds for _, seconds in times]
    return statistics.median(found) if found else None


def may_move(context: ReconcileContext, records: Iterable[UnitStatusRecord]) -> int:
    """Count the units that may leave their slices for better ones now. In a job with one pool no slice is better than another."""
    pools = sum(pool.learners.max > 0 for pool in context.spec.pools)
    if context.finishing or pools < 2:
        return 0
    return max(0, context.spec.placement.max_moving - on_the_way(records))


def worth_moving_to(context: ReconcileContext, records: Collection[UnitStatusRecord]) -> set[str]:
    """Pools in which a unit yields more than another one does where it is, by more than it costs to leave that. The job wants units there
    even if it has all that it may have: one of the others would leave for each."""
    if context.finishing or not context.spec.placement.max_moving:
        return set()
    worth = pool_worth(context, records)
    held = [worth[record.pool] for record in records if record.slice and record.pool in worth]
    least = min((each.value + each.leaving_cost for each in held), default=None)
    return {name for name, each in worth.items() if least is not None and each.value > least}


def on_the_way(records: Iterable[UnitStatusRecord]) -> int:
    """Count the units that have left a slice, or have not come to train on one yet."""
    return sum(record.state in _ON_THE_WAY for record in records)
