"""Units that leave although nothing happened to them: their pool went, the job is suspended, or it is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from diloco.contract import Result

from diloco_operator.api.conditions import ConditionType, on_record
from diloco_operator.api.consequences import Follows
from diloco_operator.api.last_failure import LastFailure, read_last_failure
from diloco_operator.api.reasons import TRUE, UnitReason, follows
from diloco_operator.api.status import UnitState
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words, end_words
from diloco_operator.reconcile.units.attempt_end import failure_at_end
from diloco_operator.reconcile.units.states import IDLE, state_of
from diloco_operator.reconcile.units.transitions import UnitEvent, transition
from diloco_operator.timeouts import RECONCILE


def leave_removed_pools(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units. Units of a pool that spec.pools no longer has drain, and leave status with their last pod."""
    units: dict[str, UnitStatusRecord] = {}
    for name, record in records.items():
        if record.pool in context.pools or record.state is UnitState.DRAINING:
            units[name] = record
        elif record.running:
            units[name] = transition(
                record, UnitEvent.ASKED_TO_LEAVE, context.now, UnitReason.SCALED_DOWN, departure_words.pool_removed(record.pool)
            )
        elif context.learners.get(name):
            units[name] = transition(record, UnitEvent.POOL_REMOVED, context.now, UnitReason.SCALED_DOWN, record.message)
    return units


def leave_in_vain(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> tuple[dict[str, UnitStatusRecord], list[float]]:
    """Return the units of a job that cannot train until a person acts, and the times when more of them must leave. A unit leaves once it
    has held its hardware in vain for `RECONCILE.hold_in_vain`."""
    units, deadlines = dict(records), list[float]()
    training = on_record(context.observed.job.status, ConditionType.TRAINING)
    if training is None or training["status"] == TRUE:
        return units, deadlines
    lost_at = parse_timestamp(training["lastTransitionTime"])
    for name, record in records.items():
        if not record.running or record.state is UnitState.DRAINING:
            continue
        # Without a syncer nothing shows that a unit does not train any more, so its state may still say so.
        since = lost_at if record.state is UnitState.TRAINING or record.since is None else max(lost_at, record.since)
        due = since + RECONCILE.hold_in_vain
        if context.now < due:
            deadlines.append(due)
        else:
            why = departure_words.held_in_vain(since)
            units[name] = transition(record, UnitEvent.ASKED_TO_LEAVE, context.now, UnitReason.WAITING_FOR_SYNCER, why)
    return units, deadlines


def suspend_unit(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit of a suspended job. A running one drains. One that was given up starts again when the job resumes."""
    if record.running:
        if record.state is UnitState.DRAINING:
            return record
        return transition(record, UnitEvent.ASKED_TO_LEAVE, now, UnitReason.SUSPENDED, departure_words.SUSPENDED)
    if record.ended_by_itself:
        return record
    return transition(record, UnitEvent.SUSPENDED, now, UnitReason.SUSPENDED, departure_words.SUSPENDED)


def give_slice_back(record: UnitStatusRecord, now: float) -> UnitStatusRecord:
    """Return a unit of a job whose spec is refused: it loses its slice, unless it runs."""
    if not record.slice or state_of(record) not in IDLE:
        return record
    return transition(record, UnitEvent.UNPLACED, now, record.reason, record.message, cause=record.cause)


def close_unit(record: UnitStatusRecord, *, complete: bool, result: Result | None, now: float) -> UnitStatusRecord:
    """Return a unit of a job that has just ended, with its counts from the job's result."""
    counts = next((unit for unit in result.units if unit.unit == record.name), None) if result is not None else None
    if counts is not None:
        record = record._replace(figures={**record.figures, "tokens": counts.tokens, "steps": counts.steps})
    failure = read_last_failure(record.last_failure)
    if complete and follows(failure.reason, Follows.JOB_WAS_DONE) and record.failed_last:
        return _failed_at_end(record, failure.message, now)
    if record.state is UnitState.FAILED:
        return record._replace(slice="")
    if record.state is UnitState.COMPLETED:
        return transition(record, UnitEvent.JOB_COMPLETE, now)
    if complete and record.running:
        return transition(record, UnitEvent.JOB_COMPLETE, now, since=now)
    return transition(record, UnitEvent.JOB_OVER, now, why=departure_words.JOB_OVER, since=now)


def ends_after_the_job(context: ReconcileContext, job_ended_at: float) -> dict[str, UnitStatusRecord]:
    """Return the changed units of a complete job: those whose programs have failed since, or have not ended and are stopped now."""
    changed: dict[str, UnitStatusRecord] = {}
    for name, record in context.records_before.items():
        if record.state is not UnitState.COMPLETED or name in context.defects:
            continue
        pods = context.attempt_pods(record)
        if (end := failure_at_end(pods, context.now)) is not None:
            why = LastFailure(UnitReason.FAILED_AT_END, end.why).written()
            changed[name] = _failed_at_end(record._replace(failed_attempt=record.attempt, last_failure=why), end.why, context.now)
        elif record.ended_by_itself and context.now >= job_ended_at + RECONCILE.end_by_itself and any(_runs(pod) for pod in pods):
            changed[name] = transition(record, UnitEvent.JOB_COMPLETE, context.now, UnitReason.STOPPED_AT_END, end_words.STOPPED_AT_END)
    return changed


def _runs(pod: PodView) -> bool:
    """Return whether the pod's program runs, and nothing has asked it to end."""
    return pod.running_since is not None and pod.deletion is None


def _failed_at_end(record: UnitStatusRecord, why: str, now: float) -> UnitStatusRecord:
    return transition(record, UnitEvent.FAILED_AT_END, now, UnitReason.FAILED_AT_END, end_words.failed_at_end(why))
