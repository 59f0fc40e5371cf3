"""How far a running attempt is, by its pods and the syncer's report: state, reason and message of its unit. Pure.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco.wording import plural

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.kube.timestamps import format_timestamp
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import end_words
from diloco_operator.reconcile.units.start_waits import all_run, starting
from diloco_operator.reconcile.units.transitions import UnitEvent, transition
from diloco_operator.report import Recovery, RecoveryPhase, UnitPhase, UnitReport

_PAUSE_TOLERANCE = 5.0
"""How far the end of a pause may move before status is written anew, in seconds."""
_REST_SHOWN_AFTER = 10.0
"""Seconds. With a quorum of all units, the faster ones rest for a moment in every outer step, which users need not see."""


def advance(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> UnitStatusRecord:
    """Return the record with the state that the attempt is in now. `pods`: the attempt's."""
    seen = context.unit_report(record.name, record.attempt)
    state, reason, why = _state(context, record, pods, seen)
    # Without a report everything stays as it was, also the end of a pause.
    until = record.paused_until if (state, reason) == (record.state, record.reason) else None
    if seen is not None and seen.pause and seen.phase in (UnitPhase.JOINING, UnitPhase.CONTRIBUTING):
        until = _paused_until(context, record, seen)
        reason = UnitReason.PAUSED
        why = f"its program takes no steps for a while, until {format_timestamp(until)} at most: {seen.pause}"
    if record.unschedulable and all_run(pods):
        record = record._replace(unschedulable=0)
    if seen is not None and seen.phase in (UnitPhase.JOINING, UnitPhase.CONTRIBUTING):
        text = _began_with(seen.recovery)
        record = record._replace(began_with=text) if text != record.began_with else record
    if state is UnitState.TRAINING and record.ended_at is not None:
        record = record._replace(recover_seconds=round(max(0.0, context.now - record.ended_at), 3), ended_at=None)
    if (state, reason, why, until) == (record.state, record.reason, record.message, record.paused_until):
        return record
    return transition(record, UnitEvent.SEEN, context.now, reason, why, shown=state, paused_until=until)


def _paused_until(context: ReconcileContext, record: UnitStatusRecord, seen: UnitReport) -> float:
    """Return when the unit's pause ends, or the time on record if it is about the same: each report gives a slightly different one, and
    every change would be a write of status."""
    assert context.report is not None
    until, before = float(round(context.report.received_at + seen.pause_left)), record.paused_until
    same = before is not None and (abs(before - until) < _PAUSE_TOLERANCE or not seen.pause_left)
    return before if same and before is not None else until


def _state(
    context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], seen: UnitReport | None
) -> tuple[UnitState, str, str]:
    """Return state, reason and message of the attempt."""
    if seen is not None and seen.phase is UnitPhase.CONTRIBUTING and seen.resting_seconds >= _REST_SHOWN_AFTER:
        quorum = plural(context.spec.training.quorum, "learner")
        return UnitState.TRAINING, UnitReason.WAITING_FOR_QUORUM, f"is ahead of the job, and rests until a quorum of {quorum} trains"
    if seen is not None and seen.phase in (UnitPhase.CONTRIBUTING, UnitPhase.DONE):
        return UnitState.TRAINING, "", ""
    if not all_run(pods):
        if record.state is not UnitState.STARTING and pods:
            return record.state, record.reason, record.message
        return UnitState.STARTING, *starting(context, record, pods)
    if context.report is None and record.state in (UnitState.TRAINING, UnitState.JOINING):
        return record.state, record.reason, record.message
    if seen is not None and seen.phase is UnitPhase.JOINING and seen.holds_parameters and not seen.local_step:
        return UnitState.JOINING, UnitReason.FIRST_STEP, "has the parameters; its program compiles, or runs its first step"
    if seen is not None and seen.phase is UnitPhase.JOINING:
        return UnitState.JOINING, UnitReason.TAKING_PARAMETERS, _taking(seen.recovery)
    if seen is not None and seen.phase is UnitPhase.DISCONNECTED and seen.left and not context.finishing:
        return UnitState.JOINING, UnitReason.LEFT_EARLY, end_words.LEFT_AND_RUNS
    if seen is not None and seen.phase is UnitPhase.DISCONNECTED:
        why = "is not connected to the syncer: its program starts, or reconnects after a loss"
        return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, why
    if seen is not None and seen.phase is UnitPhase.REFUSED:
        return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, end_words.refused_and_runs(seen.message)
    if context.report is None:
        return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, "its pods run, and no report of the syncer says more"
    return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, "its program starts (imports, builds its model) and has not joined yet"


def _taking(recovery: Recovery | None) -> str:
    """Return what a connected process waits for: the parameters, and after them the state of a peer."""
    return "connected, takes the current parameters" if recovery is None or recovery.phase is RecoveryPhase.OVER else _takes_state(recovery)


def _began_with(recovery: Recovery | None) -> str:
    """Return the text of `status.units[].beganWith`, or "" if the process has not begun or does not say."""
    if recovery is None or recovery.phase is not RecoveryPhase.OVER:
        return ""
    behind = f", {plural(recovery.steps, 'local step')} behind it" if recovery.steps else ""
    size = f"({recovery.bytes / 2**20:.1f} MiB{behind})"
    if recovery.stored_at is not None:
        state = f"the optimizer's state that it had stored after outer step {recovery.stored_at} {size}"
    elif recovery.unit:
        state = f"the state of {recovery.unit} {size}"
    else:
        state = f"the parameters of the syncer, and an optimizer without state: {recovery.why}"
    phases = (
        ("program", recovery.start_seconds),
        ("parameters", recovery.parameters_seconds),
        ("donor", recovery.donor_seconds),
        ("wait", recovery.wait_seconds),
        ("copy", recovery.copy_seconds),
        ("first step", recovery.first_step_seconds),
    )
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases if seconds >= 0.05)
    return f"{state}; {took}" if took else state


def _takes_state(recovery: Recovery) -> str:
    """Say what a process that has the parameters does: it waits for the state of a peer, or copies it."""
    if recovery.phase is RecoveryPhase.COPYING and recovery.stored_at is not None:
        return "connected, takes the optimizer's state that it had stored"
    if recovery.phase is RecoveryPhase.COPYING:
        return f"connected, takes the optimizer's state of unit {recovery.unit}"
    failed = f"; before, {recovery.why}" if recovery.why else ""
    return f"connected, waits until a unit can give it the optimizer's state{failed}"
