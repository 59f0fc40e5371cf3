"""The restart budget of a unit: what the end of an attempt changes in its record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

from diloco.protocol.backoff import exponential

from diloco_operator.api.last_failure import LastFailure
from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.spec import Restart
from diloco_operator.api.status import UnitState
from diloco_operator.plan import UnitRestart
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words, end_words, wait_words
from diloco_operator.reconcile.units.attempt_end import End, EndKind
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.transitions import Changes, UnitEvent, transition

_CALM = 600.0
"""Seconds. A failure within so long after another one has a pause in any window, so that one of a second makes no attempts without one. A
kubelet forgets the failures of a container that has run as long."""


class PausedEnd(TypedDict, total=False):
    """What an end says, and the pause that follows."""

    why: str
    not_before: float | None


def backoff_seconds(budget: Restart, failures: int) -> float:
    """Return the pause after the n-th failure within the window; the first has none, as a kubelet's first restart of a container."""
    return exponential(budget.backoff.initial, budget.backoff.max, failures - 1) if failures > 1 else 0.0


def restarted(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> tuple[UnitRestart, ...]:
    """Return the restarts between two records of the units, each with the reason why its attempt ended."""
    none = UnitStatusRecord("", "")
    return tuple(UnitRestart(name, record.reason) for name, record in after.items() if record.restarts > before.get(name, none).restarts)


def is_retry_due(context: ReconcileContext) -> bool:
    """Say whether the user has asked for a retry that the operator has not acted on."""
    return (context.spec.retry or 0) > (context.observed.job.status.get("retry") or 0)


def retry_given_up(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units; if a retry is due, those that were given up start again."""
    if not is_retry_due(context):
        return dict(records)
    why = departure_words.retried(context.spec.retry)
    return {name: start_fresh(r, why, context.now) if r.state is UnitState.FAILED else r for name, r in records.items()}


def start_fresh(record: UnitStatusRecord, why: str, now: float) -> UnitStatusRecord:
    """Return a unit without processes that starts again with a new restart budget. Its attempts go on counting: the syncer refuses older
    ones."""
    return transition(record, UnitEvent.RETRIED, now, UnitReason.RETRIED, why, since=now)


def after_end(record: UnitStatusRecord, end: End, budget: Restart, now: float) -> UnitStatusRecord:
    """Return the record with the end of its attempt. Idempotent through `ended_attempt`: the caller asks only for newer ones."""
    lost_at = record.ended_at if record.ended_at is not None else end.at  # attempts that end before they contribute are one loss
    slice_ = "" if end.leave_slice else record.slice
    match end.kind:
        case EndKind.COMPLETE:
            return transition(record, UnitEvent.ENDED, now, end.reason, end.why, since=end.at)
        case EndKind.DRAINED:
            return transition(record, UnitEvent.DRAINED, now, end.reason, end.why, slice=slice_)
        case EndKind.NEVER_RAN:
            in_a_row = record.unschedulable + 1
            paused = _paused(end.why, now, backoff_seconds(budget, in_a_row))
            return transition(record, UnitEvent.NEVER_RAN, now, end.reason, **paused, unschedulable=in_a_row)
        case EndKind.DISRUPTION:
            restarts = record.restarts + 1
            # The first one has no pause. One more before the unit trains again waits for as long as it is away already.
            seconds = 0.0 if record.ended_at is None else min(max(now - lost_at, budget.backoff.initial), budget.backoff.max)
            return transition(
                record,
                UnitEvent.DISRUPTED,
                now,
                end.reason,
                **_paused(end.why, now, seconds),
                slice=slice_,
                restarts=restarts,
                ended_at=lost_at,
            )
        case EndKind.PERMANENT:
            return _given_up(
                record, end, budget, now, end.reason, failed_attempt=record.attempt, last_failure=_cause(end), ended_at=lost_at
            )
        case EndKind.FAILURE:
            return _after_failure(record, end, budget, now, lost_at)


def _paused(why: str, now: float, seconds: float) -> PausedEnd:
    return {"why": wait_words.pauses_after(why, now + seconds), "not_before": now + seconds} if seconds else {"why": why}


def _given_up(record: UnitStatusRecord, end: End, budget: Restart, now: float, reason: str, **changes: Unpack[Changes]) -> UnitStatusRecord:
    found = transition(record, UnitEvent.GIVEN_UP, now, reason, **changes)
    return found._replace(message=end_words.given_up(why_given_up(found, budget, end.why)))


def why_given_up(record: UnitStatusRecord, budget: Restart, end: str) -> str:
    """Return why a unit was given up, from its record. `end`: how its last attempt failed."""
    failures = len(record.failures) if state_of(record) is State.OUT_OF_RESTARTS else None
    return end_words.why_given_up(record.failed_attempt, failures, budget, end)


def _cause(end: End) -> str:
    return LastFailure(str(end.reason), end.why).written()


def _after_failure(record: UnitStatusRecord, end: End, budget: Restart, now: float, lost_at: float) -> UnitStatusRecord:
    failures = (*(t for t in record.failures if now - t < budget.window), end.at)[-(budget.limit + 1) :]
    if len(failures) > budget.limit:
        return _given_up(
            record,
            end,
            budget,
            now,
            UnitReason.RESTARTS_EXHAUSTED,
            failed_attempt=record.attempt,
            last_failure=_cause(end),
            failures=failures,
            ended_at=lost_at,
        )
    calm = not record.failures or end.at - record.failures[-1] >= _CALM
    not_before = end.at + backoff_seconds(budget, max(len(failures), 1 if calm else 2))
    return transition(
        record,
        UnitEvent.CRASHED,
        now,
        end.reason,
        end_words.crashed(record.attempt, end.why, not_before),
        slice="" if end.leave_slice else record.slice,
        failed_attempt=record.attempt,
        last_failure=_cause(end),
        failures=failures,
        restarts=record.restarts + 1,
        not_before=not_before,
        ended_at=lost_at,
    )
