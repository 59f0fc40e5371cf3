"""Whether something is wrong with a job that is under way: the condition Degraded. Pure.

See docs/decisions/0138-job-state.md.
See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType, on_record
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import ConditionReason, DegradedReason, follows
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.children.shared import SharedObjects
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status import degraded_words, unit_words
from diloco_operator.reconcile.status.contributing import ContributingUnits, counted_elsewhere, least_here
from diloco_operator.reconcile.status.statements import Statement
from diloco_operator.reconcile.units.roll_out import stopped_roll_outs
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.states import GAVE_SLICE_UP, state_of
from diloco_operator.report import Report, UnitPhase

MANY_REFUSED = 0.1
"""If a larger share of all contributions was refused, Degraded warns. A unit that goes wrong once loses one or two contributions."""
_FEW_REFUSED = 0.05
"""Once it has begun, the warning of a job that trains ends below this share. With one limit alone it would come and go."""
_REFUSALS_THAT_COUNT = 10
"""Fewer refusals are no warning while a job trains: they are a large share of its first contributions."""


def degraded(context: ReconcileContext, scaling: Scaling, active: ContributingUnits, shared: SharedObjects, *, begun: bool) -> Statement:
    """Return the first statement that holds. `begun`: the job has trained, or failed to, since it was created, resumed or retried."""
    claim = names.volume_claim_name(context.observed.job.name)
    if f"{names.VOLUME_CLAIMS.kind} {claim}" in shared.configuration.deleting:
        return Statement(DegradedReason.VOLUME_DELETED, degraded_words.volume_deleted(claim))
    if len(active.contributing) >= least_here(context) or context.finishing:
        return _with_enough(context, scaling, active.contributing, shared.syncer.stopped)
    return _with_too_few(context, scaling, active, shared, begun=begun)


def _with_enough(context: ReconcileContext, scaling: Scaling, contributing: Collection[str], syncer: str) -> Statement:
    """What is wrong although enough learners contribute. `syncer`: why the roll-out of the syncer's template stopped, "" if it has not."""
    report = context.report
    if report is not None and report.snapshot_error:
        text = degraded_words.snapshot_failed(report.snapshot_error, finishing=context.finishing, newest=report.snapshot_t)
        return Statement(DegradedReason.SNAPSHOT_FAILED, text)
    if not context.finishing:
        stopped = degraded_words.roll_outs_stopped(stopped_roll_outs(context, scaling.records), syncer)
        if stopped:
            return Statement(DegradedReason.ROLL_OUT_STOPPED, stopped)
        lost = {record.name: record.message for record in scaling.records.values() if record.state is UnitState.FAILED}
        if lost and scaling.possible < scaling.desired:  # no other unit can take their place
            missing = scaling.desired - scaling.possible
            text = degraded_words.learners_lost(lost, missing, scaling.desired, len(contributing), context.hosts.program)
            return Statement(DegradedReason.LEARNERS_LOST, text)
    if report is not None and _much_is_refused(context, report):
        return Statement(DegradedReason.WORK_REFUSED, degraded_words.work_refused(report.work_refused, report.contributions))
    old = context.observed.report_fault is not None
    contributors = len(contributing) + counted_elsewhere(context).contributing
    text = degraded_words.enough_learners(contributors, context.all_learners.min, finishing=context.finishing, by_an_old_report=old)
    return Statement(DegradedReason.ENOUGH_LEARNERS, text)


def _much_is_refused(context: ReconcileContext, report: Report) -> bool:
    """Whether many contributions of a job that trains were refused, since it began: Degraded of a complete job counts the same."""
    part = _FEW_REFUSED if _is_on_record(context, DegradedReason.WORK_REFUSED) else MANY_REFUSED
    return report.work_refused >= _REFUSALS_THAT_COUNT and report.work_refused > part * (report.work_refused + report.contributions)


def _is_on_record(context: ReconcileContext, reason: ConditionReason) -> bool:
    """Whether Degraded has this reason in the status on record."""
    known = on_record(context.observed.job.status, ConditionType.DEGRADED)
    return known is not None and known["reason"] == reason.value


def _with_too_few(
    context: ReconcileContext, scaling: Scaling, active: ContributingUnits, shared: SharedObjects, *, begun: bool
) -> Statement:
    elsewhere, least = counted_elsewhere(context).contributing, context.all_learners.min
    contribution = unit_words.contribution(len(active.contributing), scaling.placed, elsewhere)
    if begun and len(active.contributing | active.returning) >= least_here(context):
        return Statement(DegradedReason.LEARNERS_RECONNECTING, degraded_words.reconnecting(contribution, least, len(active.returning)))
    missing = _missing(scaling, active.contributing)
    text = degraded_words.too_few_learners(
        contribution=contribution,
        least=least,
        missing=missing_units(scaling, active.contributing),
        stopped=degraded_words.roll_outs_stopped(stopped_roll_outs(context, scaling.records), shared.syncer.stopped),
        program=context.hosts.program,
    )
    return Statement(_shared_reason(context, scaling, missing, begun=begun), text)


# --- the units that are missing ---------------------------------------------------------------------------------------
def missing_units(scaling: Scaling, contributing: Collection[str]) -> str:
    units: list[UnitStatusRecord] = []
    waiting: list[UnitStatusRecord] = []
    for record in _missing(scaling, contributing):
        if _only_waits(record):
            waiting.append(record)
        else:
            units.append(record)
    return unit_words.missing_units(units, waiting)


def _only_waits(record: UnitStatusRecord) -> bool:
    return follows(record.reason, Follows.POOL_SAYS_WHY) and not record.cause


def _missing(scaling: Scaling, contributing: Collection[str]) -> list[UnitStatusRecord]:
    """Units that could contribute and do not, except units that the job gives up on purpose."""
    return [
        record
        for record in scaling.records.values()
        if record.name not in contributing
        and record.state is not UnitState.COMPLETED
        and not (record.state in (UnitState.DRAINING, UnitState.PENDING) and follows(record.reason, Follows.NOT_MISSED))
    ]


class _Absence(enum.Enum):
    """Why a unit does not contribute. The value is the condition's reason if this is true of all missing units."""

    GIVEN_UP = DegradedReason.LEARNERS_LOST
    FAILED = DegradedReason.LEARNERS_FAILED
    UNPLACED = DegradedReason.LEARNERS_UNPLACED
    STARTS = DegradedReason.LEARNERS_STARTING
    GONE = DegradedReason.LEARNERS_MISSING


def _shared_reason(context: ReconcileContext, scaling: Scaling, missing: Sequence[UnitStatusRecord], *, begun: bool) -> DegradedReason:
    absences = {_absence(context, record, begun=begun) for record in missing}
    if not begun and absences <= {_Absence.STARTS, _Absence.UNPLACED}:
        return DegradedReason.LEARNERS_STARTING if scaling.placed >= context.quorum else DegradedReason.QUEUED
    return absences.pop().value if len(absences) == 1 else DegradedReason.LEARNERS_MISSING


def _absence(context: ReconcileContext, record: UnitStatusRecord, *, begun: bool) -> _Absence:
    if record.state is UnitState.FAILED:
        return _Absence.GIVEN_UP
    if record.state is UnitState.BACKING_OFF:
        return _Absence.FAILED
    if record.state is UnitState.PENDING and (not record.slice or state_of(record) in GAVE_SLICE_UP):
        return _Absence.UNPLACED
    return _Absence.STARTS if _comes_unharmed(context, record, begun=begun) else _Absence.GONE


def _comes_unharmed(context: ReconcileContext, record: UnitStatusRecord, *, begun: bool) -> bool:
    """Whether the unit starts or joins, or is about to, and neither an attempt nor its connection was lost since it last contributed.
    That it has trained before does not count: after a resume that is true of all units."""
    if record.ended_at is not None:
        return False
    if record.state is UnitState.DRAINING:
        return follows(record.reason, Follows.RETURNS_AT_ONCE)
    reported = context.unit_report(record.name, record.attempt)
    starts = record.state in (UnitState.STARTING, UnitState.JOINING, UnitState.PENDING)
    return starts and not (begun and reported is not None and reported.phase is UnitPhase.DISCONNECTED)
