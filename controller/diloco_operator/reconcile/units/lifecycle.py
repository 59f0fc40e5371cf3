"""The life of one unit, as far as it follows from what is: ends are accounted, states follow pods and the syncer's report.

Whether a unit may run, and where, is decided afterwards (`scaling`). Nothing here creates or deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diloco_operator.api.durations import format_duration
from diloco_operator.api.job import UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.state import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.attempt_end import End, EndKind, gang_end
from diloco_operator.reconcile.units.restarts import after_end
from diloco_operator.report import UnitPhase, UnitReport

_DISRUPTIONS = (UnitReason.DISRUPTED, UnitReason.NODE_LOST)


def observe_unit(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> tuple[UnitStatusRecord, bool]:
    """The unit's record after everything that happened to its pods, and whether its pods are newer than the record.

    Idempotent: an end that is on record (`ended_attempt`) is never accounted again.
    """
    record = _on_our_clock(context, record)
    newest = max((pod.attempt for pod in pods), default=0)
    adopted = newest > record.attempt
    if adopted:  # an operator died between creating the pods and writing status
        record = _account_older(context, record, pods, newest)
        first = next(pod for pod in pods if pod.attempt == newest)
        record = record._replace(
            state=UnitState.STARTING,
            attempt=newest,
            slice=first.slice,
            since=first.created,
            not_before=None,
            template_hash=first.template_hash,
        )
    if not record.running:
        return _check_completed(context, record), adopted
    current = [pod for pod in pods if pod.attempt == record.attempt]
    where = {pod.slice for pod in current if pod.slice}
    if len(where) == 1 and record.slice:  # the pods know better: they are pinned
        record = record._replace(slice=next(iter(where)))
    if len(where) > 1 and record.state is not UnitState.DRAINING:
        # Made by two plans, of which nobody knew how much of the first was carried out.
        message = f"attempt {record.attempt} was made on two slices, {' and '.join(sorted(where))}; it is made again on one"
        never = End(EndKind.NEVER_RAN, UnitReason.SCHEDULING, message, context.now)
        return after_end(record, record.attempt, never, context.spec.learners.restart, context.now), adopted
    if record.state is UnitState.DRAINING:
        return _drained(context, record, current), adopted
    end = gang_end(
        current,
        _hosts(context, record, current),
        context.eviction_reason,
        context.now,
        ever_ran=record.state is not UnitState.STARTING,
        adopted=adopted,
    )
    end = end or _timed_out(context, record, current)
    if end is None:
        return _advance(context, record, current), adopted
    end = _when(context, record, end)
    if end.kind is EndKind.DISRUPTION and _lingers(context, current):
        return record._replace(state=UnitState.DRAINING, reason=end.reason, message=end.message, since=context.now), adopted
    return after_end(record, record.attempt, end, context.spec.learners.restart, context.now), adopted


def _account_older(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], newest: int) -> UnitStatusRecord:
    """Ends of attempts that nobody got to write down: the next attempt is there, so they have ended."""
    for attempt in sorted({pod.attempt for pod in pods if pod.attempt < newest} | {record.attempt}):
        if attempt <= record.ended_attempt:
            continue
        mine = [pod for pod in pods if pod.attempt == attempt]
        end = gang_end(mine, len(mine), context.eviction_reason, context.now, ever_ran=False, adopted=True)
        if record.state is UnitState.DRAINING or end is None:
            # Drained, or its pods are gone or going, and with them the knowledge why: not a failure that could be proven.
            end = _end_of_drain(record, context.now)
        record = after_end(record, attempt, _when(context, record, end), context.spec.learners.restart, context.now)
    return record._replace(ended_attempt=newest - 1, attempt=newest - 1)


def _when(context: ReconcileContext, record: UnitStatusRecord, end: End) -> End:
    """The end on our clock. It comes from the clock of a node, which may be hours off: behind, and the failure would be forgotten at
    once; ahead, and the next attempt would not start for as long."""
    began = min(record.since, context.now) if record.since is not None else context.now
    return replace(end, at=min(max(end.at, began), context.now))


_CLOCK_TOLERANCE = 1.0
"""Seconds by which a time in status may be ahead of us: it is written to the millisecond, and other operators wrote it too."""


def _on_our_clock(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """Times in the future were written by an operator whose clock was ahead, and would stop every time-out until they come."""
    latest = context.now + _CLOCK_TOLERANCE
    budget = context.spec.learners.restart
    if record.since is not None and record.since > latest:
        record = record._replace(since=context.now)
    if record.not_before is not None and record.not_before > latest + budget.backoff.max:
        record = record._replace(not_before=context.now + budget.backoff.max)
    if any(failure > latest for failure in record.failures):
        record = record._replace(failures=tuple(min(failure, context.now) for failure in record.failures))
    return record


def _hosts(context: ReconcileContext, record: UnitStatusRecord, current: Sequence[PodView]) -> int:
    """How many pods the attempt was made of. After a change of the pool only its own pods can tell."""
    shape = context.shapes.get(record.pool)
    if shape is None or record.template_hash != context.hashes[record.pool]:
        return max(1, len(current))
    return shape.hosts


def _lingers(context: ReconcileContext, pods: Sequence[PodView]) -> bool:
    """Some process of these pods may still run, and somebody will say when it has ended."""
    return any(not pod.ended and not context.unreachable(pod.node) for pod in pods)


def _drained(context: ReconcileContext, record: UnitStatusRecord, current: Sequence[PodView]) -> UnitStatusRecord:
    if _lingers(context, current):
        return record
    if current and all(pod.termination is not None and pod.termination.exit_code == 0 for pod in current):
        # It reached the end of the job before it was told to go.
        return after_end(record, record.attempt, End(EndKind.COMPLETE, "", "", context.now), context.spec.learners.restart, context.now)
    return after_end(record, record.attempt, _end_of_drain(record, context.now), context.spec.learners.restart, context.now)


def _end_of_drain(record: UnitStatusRecord, now: float) -> End:
    if record.state is UnitState.DRAINING and record.reason not in _DISRUPTIONS:
        return End(EndKind.DRAINED, record.reason, record.message, now, leave_slice=record.reason == UnitReason.GAVE_WAY)
    if record.state is not UnitState.DRAINING:
        return End(EndKind.DISRUPTION, UnitReason.POD_LOST, f"attempt {record.attempt} was replaced", now)
    began = record.since if record.since is not None else now
    return End(EndKind.DISRUPTION, record.reason, record.message, began, leave_slice=record.reason == UnitReason.NODE_LOST)


def _timed_out(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> End | None:
    learners = context.spec.learners
    since = record.since if record.since is not None else context.now
    if record.state is UnitState.STARTING and not _all_run(pods):
        if _passed(context, since + learners.join_timeout):
            message = f"not all of its pods ran within {format_duration(learners.join_timeout)} (learners.joinTimeout): {_waiting(pods)}"
            return End(EndKind.FAILURE, UnitReason.JOIN_TIMEOUT, message, context.now, leave_slice=True)
        return None
    if context.report is None:
        return None  # without a word from the syncer nobody can be blamed for silence
    seen = context.unit_report(record.name, record.attempt)
    if seen is None:
        # A node's clock that is ahead must not put the end off until then.
        known = (since, context.syncer_since, *(pod.running_since or 0.0 for pod in pods))
        began = max((moment for moment in known if moment <= context.now + _CLOCK_TOLERANCE), default=since)
        if record.state in (UnitState.STARTING, UnitState.JOINING) and _passed(context, began + learners.join_timeout):
            message = f"it ran, but did not join the syncer within {format_duration(learners.join_timeout)} (learners.joinTimeout)"
            return End(EndKind.FAILURE, UnitReason.JOIN_TIMEOUT, message, context.now)
        return None
    if seen.phase in (UnitPhase.JOINING, UnitPhase.CONTRIBUTING, UnitPhase.DISCONNECTED):
        # A syncer that has just restarted has heard nobody for long, which is not the learner's fault.
        silent = min(seen.seconds_since_heard, context.report.received_at - context.syncer_since)
        if silent > 0 and _passed(context, context.report.received_at - silent + learners.stall_timeout, heard=context.report.received_at):
            message = f"the syncer has not heard from it for {format_duration(learners.stall_timeout)} (learners.stallTimeout)"
            return End(EndKind.FAILURE, UnitReason.STALLED, message, context.now)
    return None


def _passed(context: ReconcileContext, deadline: float, *, heard: float | None = None) -> bool:
    """Whether it is later than `deadline` (by the time of the report, for what only the report can tell); else look again then."""
    if (heard if heard is not None else context.now) >= deadline:
        return True
    if deadline > context.now:
        context.deadlines.append(deadline)
    return False


def _all_run(pods: Sequence[PodView]) -> bool:
    return bool(pods) and all(pod.running_since is not None or pod.ended or pod.main_ended for pod in pods)


def _waiting(pods: Sequence[PodView]) -> str:
    """What the first pod that does not run waits for."""
    for pod in pods:
        if pod.running_since is None and not pod.ended:
            return f"{pod.name}: {pod.unschedulable or pod.waiting or 'the kubelet has not started it'}"
    return "waits for its pods"


def _advance(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> UnitStatusRecord:
    seen = context.unit_report(record.name, record.attempt)
    state, reason, message = _state(context, record, pods, seen)
    if state is UnitState.TRAINING and record.ended_at is not None:
        record = record._replace(recover_seconds=round(max(0.0, context.now - record.ended_at), 3), ended_at=None)
    if (state, reason, message) == (record.state, record.reason, record.message):
        return record
    return record._replace(state=state, reason=reason, message=message, since=record.since if state is record.state else context.now)


def _state(
    context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView], seen: UnitReport | None
) -> tuple[UnitState, str, str]:
    if seen is not None and seen.phase in (UnitPhase.CONTRIBUTING, UnitPhase.DONE):
        return UnitState.TRAINING, "", ""
    if not _all_run(pods):
        if record.state is not UnitState.STARTING and pods:
            return record.state, record.reason, record.message
        return UnitState.STARTING, UnitReason.SCHEDULING, _waiting(pods)
    if context.report is None and record.state in (UnitState.TRAINING, UnitState.JOINING):
        return record.state, record.reason, record.message
    if seen is not None and seen.phase is UnitPhase.JOINING:
        return UnitState.JOINING, UnitReason.TAKING_PARAMETERS, "connected, takes the current parameters"
    if seen is not None and seen.phase is UnitPhase.DISCONNECTED:
        return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, "lost its connection to the syncer and connects again by itself"
    return UnitState.JOINING, UnitReason.WAITING_FOR_SYNCER, "its pods run, the syncer has not seen it yet"


def _check_completed(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """A program that ends with status 0 while the syncer, well after, goes on was not done."""
    if record.state is not UnitState.COMPLETED or record.since is None or context.report is None or context.finishing:
        return record
    deadline = record.since + context.observed.config.early_end_grace
    if context.report.received_at < deadline:
        context.deadlines.append(max(deadline, context.now + 1.0))
        return record
    message = "the training program ended with status 0 before the job was done; it must train until the session says that it is over"
    end = End(EndKind.FAILURE, UnitReason.CRASHED, message, context.now)
    return after_end(record, record.attempt, end, context.spec.learners.restart, context.now)
