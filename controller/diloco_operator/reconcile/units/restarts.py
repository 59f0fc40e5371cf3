"""The restart budget of a unit: what the end of an attempt changes in its record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco.protocol.backoff import exponential
from diloco.wording import plural

from diloco_operator.api.durations import format_duration
from diloco_operator.api.job import Restart, UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.kube.fields import clip
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.plan import UnitRestart
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.attempt_end import End, EndKind

_CAUSE = 500
"""Characters that a record keeps of how the last attempt failed."""
RETRY_HINT = "fix the cause, then kubectl diloco retry starts it again"
"""How each message of a unit that was given up ends."""


def backoff_seconds(budget: Restart, failures: int) -> float:
    """Pause after the n-th failure within the window; `failures` >= 1."""
    return exponential(budget.backoff.initial, budget.backoff.max, failures)


def restarted(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> tuple[UnitRestart, ...]:
    """The restarts between two records of the units, each with the reason why its attempt ended."""
    none = UnitStatusRecord("", "")
    return tuple(UnitRestart(name, record.reason) for name, record in after.items() if record.restarts > before.get(name, none).restarts)


def is_retry_due(context: ReconcileContext) -> bool:
    """The user has asked for a retry that the operator has not acted on."""
    return (context.spec.retry or 0) > (context.observed.job.status.get("retry") or 0)


def retry_given_up(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """The units; if a retry is due, those that were given up start again."""
    if not is_retry_due(context):
        return dict(records)
    text = f"retry {context.spec.retry}: the unit starts again"
    return {name: start_fresh(r, text, context.now) if r.state is UnitState.FAILED else r for name, r in records.items()}


def start_fresh(record: UnitStatusRecord, message: str, now: float) -> UnitStatusRecord:
    """A unit without processes that starts again with a new restart budget. Its attempts go on counting: the syncer refuses older ones."""
    return record._replace(
        state=UnitState.PENDING,
        slice="",
        reason=UnitReason.RETRIED,
        message=message,
        since=now,
        failures=(),
        not_before=None,
        unschedulable=0,
        ended_at=None,
        cause="",
    )


def after_end(record: UnitStatusRecord, attempt: int, end: End, budget: Restart, now: float) -> UnitStatusRecord:
    """The record with the end of `attempt`. Idempotent through `ended_attempt`: the caller asks only for newer ones."""
    ended = record._replace(attempt=max(attempt, record.attempt), ended_attempt=attempt, not_before=None, cause="")
    lost_at = record.ended_at if record.ended_at is not None else end.at  # attempts that end before they contribute are one loss
    match end.kind:
        case EndKind.COMPLETE:
            return ended._replace(state=UnitState.COMPLETED, reason=end.reason, message=end.message, since=end.at)
        case EndKind.DRAINED:
            slice_ = "" if end.leave_slice else record.slice
            return ended._replace(state=UnitState.PENDING, slice=slice_, reason=end.reason, message=end.message, since=now, ended_at=None)
        case EndKind.NEVER_RAN:
            return ended._replace(state=UnitState.PENDING, reason=end.reason, message=end.message, since=now)
        case EndKind.DISRUPTION:
            return ended._replace(
                state=UnitState.PENDING,
                slice="" if end.leave_slice else record.slice,
                reason=end.reason,
                message=end.message,
                since=now,
                restarts=record.restarts + 1,
                ended_at=lost_at,
            )
        case EndKind.PERMANENT:
            ended = ended._replace(failed_attempt=attempt, last_failure=_cause(end))
            message = f"given up after attempt {attempt}: {end.message}; {RETRY_HINT}"
            return ended._replace(state=UnitState.FAILED, slice="", reason=end.reason, message=message, since=now, ended_at=lost_at)
        case EndKind.FAILURE:
            return _after_failure(
                ended._replace(failed_attempt=attempt, last_failure=_cause(end), ended_at=lost_at), attempt, end, budget, now
            )


def _cause(end: End) -> str:
    """It stays when the unit's message speaks of something else, and when the Events have expired."""
    return clip(f"{end.reason}: {end.message}", _CAUSE)


def _after_failure(record: UnitStatusRecord, attempt: int, end: End, budget: Restart, now: float) -> UnitStatusRecord:
    failures = (*(t for t in record.failures if now - t < budget.window), end.at)[-(budget.limit + 1) :]
    if len(failures) > budget.limit:
        message = (
            f"given up: {plural(len(failures), 'failure')} within {format_duration(budget.window)}, learners.restart.limit is "
            f"{budget.limit}; the last, attempt {attempt}: {end.message}; {RETRY_HINT}"
        )
        return record._replace(
            state=UnitState.FAILED,
            slice="",
            reason=UnitReason.RESTARTS_EXHAUSTED,
            message=message,
            since=now,
            failures=failures,
        )
    not_before = end.at + backoff_seconds(budget, len(failures))
    return record._replace(
        state=UnitState.BACKING_OFF,
        slice="" if end.leave_slice else record.slice,
        reason=end.reason,
        message=f"attempt {attempt} ended: {end.message}; the next one starts at {format_timestamp(not_before)}",
        since=now,
        failures=failures,
        restarts=record.restarts + 1,
        not_before=not_before,
    )
