"""Units that leave although nothing happened to them: their pool went, the job is suspended, or it is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco.contract import Result

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import LIVE, UnitStatusRecord
from diloco_operator.reconcile.units import departure_words
from diloco_operator.reconcile.units.transitions import UnitEvent, transition


def leave_removed_pools(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return units of a pool that spec.pools no longer has drain, and leave status with their last pod."""
    found: dict[str, UnitStatusRecord] = {}
    for name, record in records.items():
        if record.pool in context.pools or record.state is UnitState.DRAINING:
            found[name] = record
        elif record.running:
            found[name] = transition(
                record, UnitEvent.ASKED_TO_LEAVE, context.now, UnitReason.SCALED_DOWN, departure_words.pool_removed(record.pool)
            )
        elif context.learners.get(name):
            found[name] = transition(record, UnitEvent.POOL_REMOVED, context.now, UnitReason.SCALED_DOWN, record.message)
    return found


def suspend_unit(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit of a suspended job: running ones drain, and those that were given up start again when the job resumes."""
    if record.running:
        if record.state is UnitState.DRAINING:
            return record
        return transition(record, UnitEvent.ASKED_TO_LEAVE, now, UnitReason.SUSPENDED, departure_words.SUSPENDED)
    if record.state is UnitState.COMPLETED and not record.reason:
        return record
    return transition(record, UnitEvent.SUSPENDED, now, UnitReason.SUSPENDED, departure_words.SUSPENDED)


def close_unit(record: UnitStatusRecord, *, complete: bool, result: Result | None, now: float) -> UnitStatusRecord:
    """Return a unit of a job that has just ended, with its counts from the job's result."""
    counts = next((unit for unit in result.units if unit.unit == record.name), None) if result is not None else None
    if counts is not None:
        record = record._replace(figures={**record.figures, "tokens": counts.tokens, "steps": counts.steps})
    if record.state is UnitState.FAILED:
        return record._replace(slice="")
    if record.state is UnitState.COMPLETED:
        return transition(record, UnitEvent.JOB_COMPLETE, now)
    if complete and record.state in LIVE:
        return transition(record, UnitEvent.JOB_COMPLETE, now, since=now)
    return transition(record, UnitEvent.JOB_OVER, now, why=departure_words.JOB_OVER, since=now)
