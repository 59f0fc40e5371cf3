"""Attempts that take too long to start (`start_waits`), to join, or to take a step. Pure.

See docs/decisions/0102-failures-of-nodes-and-units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from diloco.contract import HEARTBEAT

from diloco_operator.api.reasons import UnitReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import end_words
from diloco_operator.reconcile.units.attempt_end import End, EndKind
from diloco_operator.reconcile.units.start_waits import Timeout, all_run, start_timeout
from diloco_operator.report import Report, UnitPhase, UnitReport

HEARTBEATS_MISSED = 3
"""A process counts as gone only after this many missing heartbeats, however short the stall time-out is."""


def timed_out(context: ReconcileContext, record: UnitStatusRecord, pods: Sequence[PodView]) -> Timeout:
    """Return the time-out of the running attempt. `pods`: the attempt's."""
    since = record.since if record.since is not None else context.now
    if record.state is UnitState.STARTING and not all_run(pods):
        return start_timeout(context, pods, since)
    if context.report is None:
        return Timeout()  # without a report from the syncer no learner can be blamed for silence
    seen = context.unit_report(record.name, record.attempt)
    if seen is None:
        return _join_timeout(context, record, since)
    return _stall_timeout(context, context.report, seen)


def _join_timeout(context: ReconcileContext, record: UnitStatusRecord, since: float) -> Timeout:
    """Return the time-out of an attempt whose pods run, but which the syncer has not seen."""
    if record.state not in (UnitState.STARTING, UnitState.JOINING):
        return Timeout()
    limit = context.spec.learners.timeouts.join
    # It counts from when the operator first saw all pods run, which is now, or on record as the time of Joining. A syncer that came later
    # could not see them before.
    began = context.now if record.state is UnitState.STARTING else max(since, min(context.syncer_since, context.now))
    if context.now >= began + limit:
        return Timeout(End(EndKind.FAILURE, UnitReason.JOIN_TIMEOUT, end_words.join_timed_out(limit), context.now))
    return Timeout(due=began + limit)


def _stall_timeout(context: ReconcileContext, report: Report, seen: UnitReport) -> Timeout:
    """Return the time-out of a process from which the syncer hears nothing any more, or only heartbeats and no steps. Only a report shows
    this, so the time of the report counts."""
    if seen.phase is UnitPhase.DONE:
        return Timeout()
    # A silence cannot be longer than the syncer has run: what it missed before its restart is not the learner's fault.
    since_syncer = report.received_at - context.syncer_since
    ends = [
        (report.received_at - quiet + limit, why)
        for seconds, limit, why in _silences(context, seen)
        if (quiet := min(seconds, since_syncer)) > 0
    ]
    if not ends:
        return Timeout()
    due, why = min(ends, key=lambda item: item[0])
    if report.received_at >= due:
        return Timeout(End(EndKind.FAILURE, UnitReason.STALLED, why(), context.now))
    return Timeout(due=due if due > context.now else None)


def _silences(context: ReconcileContext, seen: UnitReport) -> Iterator[tuple[float, float, Callable[[], str]]]:
    """Yield (seconds of a silence, how many it may last, what to say when it lasts longer)."""
    learners = context.spec.learners
    stall, first_step = learners.stall_timeout, learners.timeouts.first_step
    alive, quiet = seen.seconds_since_alive, seen.seconds_since_heard
    gone = (
        partial(end_words.refused_and_runs, seen.message) if seen.phase is UnitPhase.REFUSED else partial(end_words.not_heard_from, stall)
    )
    yield alive, max(stall, HEARTBEATS_MISSED * HEARTBEAT), gone
    if seen.pause:
        yield quiet, max(stall, quiet + seen.pause_left), partial(end_words.pause_too_long, seen.pause)
    elif not seen.local_step:
        yield quiet, max(stall, first_step), partial(end_words.no_first_step, first_step)
    else:
        yield quiet, stall, partial(end_words.no_further_step, stall)
