"""The restart budget of a unit, and what the end of an attempt changes in its record. Pure."""

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
"""Seconds. A failure that comes sooner after another one has a pause even if the restart window is shorter, so that a window of a second
does not make attempts without pauses. A kubelet forgets the failures of a container that has run for as long."""


class PausedEnd(TypedDict, total=False):
    """The message of an end, and when the pause after it is over."""

    why: str
    not_before: float | None


def backoff_seconds(budget: Restart, failures: int) -> float:
    """Return the pause in seconds after this many failures within the window. After the first there is none, as with a kubelet's first
    restart of a container."""
    return exponential(budget.backoff.initial, budget.backoff.max, failures - 1) if failures > 1 else 0.0


def restarted(before: Mapping[str, UnitStatusRecord], after: Mapping[str, UnitStatusRecord]) -> tuple[UnitRestart, ...]:
    """Return the units that were restarted between two states of the records, each with the reason why its attempt ended."""
    restarts = []
    for name, record in after.items():
        restarts_before = before[name].restarts if name in before else 0
        if record.restarts > restarts_before:
            restarts.append(UnitRestart(name, record.reason))
    return tuple(restarts)


def is_retry_due(context: ReconcileContext) -> bool:
    """Return whether the user has asked for a retry that the operator has not acted on."""
    return (context.spec.retry or 0) > (context.observed.job.status.get("retry") or 0)


def retry_given_up(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Return the units. If a retry is due, given-up ones start again."""
    if not is_retry_due(context):
        return dict(records)
    why = departure_words.retried(context.spec.retry)
    return {name: start_fresh(r, why, context.now) if r.state is UnitState.FAILED else r for name, r in records.items()}


def start_fresh(record: UnitStatusRecord, why: str, now: float) -> UnitStatusRecord:
    """Return a unit without processes that starts again with a new restart budget. The numbers of its attempts go on, because the syncer
    refuses older ones."""
    return transition(record, UnitEvent.RETRIED, now, UnitReason.RETRIED, why, since=now)


def after_end(record: UnitStatusRecord, end: End, budget: Restart, now: float) -> UnitStatusRecord:
    """Return the record with the end of its attempt. The caller must not ask twice for one attempt: `ended_attempt` tells it."""
    # Attempts that end before they contribute belong to the loss that began with the first of them.
    lost_at = record.ended_at if record.ended_at is not None else end.at
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
            # After the first disruption there is no pause. After another one, before the unit has trained again, it pauses for as long as
            # it has been away.
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
    given_up = transition(record, UnitEvent.GIVEN_UP, now, reason, **changes)
    return given_up._replace(message=end_words.given_up(why_given_up(given_up, budget, end.why)))


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
    # Right after another failure it counts as the second at least, so there is a pause.
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
