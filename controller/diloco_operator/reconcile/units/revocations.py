"""Units leave their slices for units of other jobs, as the allotment says. Pure.

A training unit leaves once the minima hold without it. Others may have to train first, such as its successor on a better slice.

See docs/decisions/0213-values-and-moves.md.
See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.spec import Capacity
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words
from diloco_operator.reconcile.units.states import ABLE, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition
from diloco_operator.reconcile.units.worth import on_the_way


def leave_revoked(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units after the allotment's revocations: running ones drain, others give their slices up at once. A unit that a minimum
    needs stays for now."""
    units = dict(records)
    trained = _Trained.of(context, records) if context.observed.allotted.revoked else None
    for name, winner in context.observed.allotted.revoked.items():
        record = units.get(name)
        if record is None or not record.slice or state_of(record) not in ABLE or trained is None or trained.needs(record):
            continue
        trained.leave(record)
        # A job's key is namespace/name/uid. "": no other job gets the slice, but other slices are worth more to this one.
        to = "" if winner == context.observed.job.key else "/".join(winner.split("/")[:2])
        event = UnitEvent.ASKED_TO_LEAVE if record.running else UnitEvent.MADE_WAY
        units[name] = transition(
            record, event, context.now, UnitReason.GAVE_WAY, departure_words.leaves_slice(record.slice, to), since=context.now
        )
    return units


@dataclass(slots=True)
class _Trained:
    """How many units count for the minima: they train, or their work is done."""

    least: dict[str, int]
    """Pool -> its minimum. Without scavenged pools, which are part of no minimum."""
    least_of_job: int
    by_pool: Counter[str]

    @classmethod
    def of(cls, context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> _Trained:
        firm = {name: pool.learners.min for name, pool in context.pools.items() if pool.capacity is not Capacity.SCAVENGED}
        counted = (record.pool for record in records.values() if record.state in (UnitState.TRAINING, UnitState.COMPLETED))
        return cls(firm, context.spec.learners.min, Counter(pool for pool in counted if pool in firm))

    def needs(self, record: UnitStatusRecord) -> bool:
        """Whether the minimum of the job or of its pool would be broken without this unit."""
        if record.state is not UnitState.TRAINING or record.pool not in self.least:
            return False
        return self.by_pool.total() <= self.least_of_job or self.by_pool[record.pool] <= self.least[record.pool]

    def leave(self, record: UnitStatusRecord) -> None:
        if record.state is UnitState.TRAINING and record.pool in self.least:
            self.by_pool[record.pool] -= 1


def units_kept_until(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, float]:
    """Return unit -> until when it must not leave its slice, for a job that has more slices than its minimum.

    Units that the minimum needs stay until others train. Their successors, units that start on better slices than these have, stay until
    they train, but not longer than the horizon of a move."""
    trained = _Trained.of(context, records)
    firm = {name: record for name, record in records.items() if record.pool in trained.least}
    if sum(record.slice != "" and state_of(record) in ABLE for record in firm.values()) <= context.spec.learners.min:
        return {}
    needed = [name for name, record in firm.items() if trained.needs(record)]
    staying = dict.fromkeys(needed, math.inf)
    if not needed or on_the_way(records.values()) > context.spec.placement.max_moving:
        return staying
    least = min(context.throughput[firm[name].pool].value for name in needed)
    for name, record in firm.items():
        until = context.observed.slices_since.get(name, context.now) + context.spec.placement.horizon
        if (
            record.state in (UnitState.STARTING, UnitState.JOINING)
            and context.throughput[record.pool].value > least
            and context.now < until
        ):
            staying[name] = until
    return staying


def troubled_pools(context: ReconcileContext, records: Iterable[UnitStatusRecord]) -> dict[str, float]:
    """Return pool -> until when it counts as troubled: a unit of it has failed, ended or been refused within the horizon of a move. Until
    then no unit of the job is replaced by one of this pool: a unit that fails would come and leave again and again."""
    pools: dict[str, float] = {}
    for record in records:
        for moment in _troubles(context, record):
            until = moment + context.spec.placement.horizon
            if until > context.now:
                pools[record.pool] = max(until, pools.get(record.pool, until))
    return pools


def _troubles(context: ReconcileContext, record: UnitStatusRecord) -> Iterator[float]:
    yield from record.failures[-1:]
    if record.state is not UnitState.TRAINING and record.ended_at is not None:
        yield record.ended_at
    if context.rejection((UNIT, record.name)) is not None:
        yield context.now
