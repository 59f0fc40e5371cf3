"""Units that leave although nothing happened to them: their pool went, the job is suspended, or it is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco.contract import Result

from diloco_operator.api.job import UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import LIVE, UnitStatusRecord


def leave_removed_pools(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Units of a pool that spec.pools no longer has drain, and leave status with their last pod."""
    found: dict[str, UnitStatusRecord] = {}
    for name, record in records.items():
        if record.pool in context.pools or record.state is UnitState.DRAINING:
            found[name] = record
        elif record.running:
            text = f"spec.pools has no pool {record.pool} any more"
            found[name] = record._replace(state=UnitState.DRAINING, reason=UnitReason.SCALED_DOWN, message=text, cause="", since=context.now)
        elif context.learners.get(name):
            found[name] = record._replace(state=UnitState.PENDING, slice="", not_before=None, reason=UnitReason.SCALED_DOWN, cause="")
    return found


def suspend_unit(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """A unit of a suspended job: running ones drain, and those that were given up start again when the job resumes."""
    message = "the job is suspended"
    if record.running:
        if record.state is UnitState.DRAINING:
            return record
        return record._replace(state=UnitState.DRAINING, reason=UnitReason.SUSPENDED, message=message, cause="", since=now)
    if record.state is UnitState.COMPLETED and not record.reason:
        return record
    fresh = record._replace(
        slice="",
        not_before=None,
        failures=(),
        unschedulable=0,
        grantor_said="",
        cause="",
        ended_at=None,
        reason=UnitReason.SUSPENDED,
        message=message,
    )
    return fresh if record.state is UnitState.PENDING else fresh._replace(state=UnitState.PENDING, since=now)


def close_unit(record: UnitStatusRecord, *, complete: bool, result: Result | None, now: float) -> UnitStatusRecord:
    """A unit of a job that has just ended, with its counts from the job's result."""
    counts = next((unit for unit in result.units if unit.unit == record.name), None) if result is not None else None
    if counts is not None:
        record = record._replace(tokens=counts.tokens, steps=counts.steps)
    if record.state is UnitState.FAILED:
        return record._replace(slice="")
    if record.state is UnitState.COMPLETED:
        return record._replace(slice="", reason="", message="")
    worked = complete and record.state in LIVE
    return record._replace(
        state=UnitState.COMPLETED if worked else UnitState.PENDING,
        ended_attempt=record.attempt,
        slice="",
        not_before=None,
        ended_at=None,
        grantor_said="",
        cause="",
        reason="",
        message="" if worked else "the job is over",
        since=now,
    )
