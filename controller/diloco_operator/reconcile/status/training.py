"""Whether a job trains, and what keeps it from that: the condition Training. Pure.

See docs/decisions/0041-what-a-syncer-says.md.
See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.reasons import TRUE, TrainingReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.children.shared import SharedObjects
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.sentences import Sentence
from diloco_operator.reconcile.status.contributing import contributing_outside
from diloco_operator.reconcile.status.statements import Finding
from diloco_operator.reconcile.status.training_words import (
    AsOnRecord,
    Contributing,
    Finishing,
    FirstReportDue,
    NameTaken,
    NoAnswer,
    NoReport,
    QuorumMissing,
    ReportsRefused,
    Seeding,
    SyncerDown,
    SyncerNotUp,
    VolumePending,
    WaitingForHardware,
    WriteRefused,
)
from diloco_operator.reconcile.status.unit_words import Contribution
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.timeouts import RECONCILE


def training(context: ReconcileContext, scaling: Scaling, contributing: frozenset[str], shared: SharedObjects) -> Finding:
    """Return the first that holds: what no unit can start without, hardware, the syncer, the learners."""
    if shared.rejected and not contributing:
        return WriteRefused([rejection.text for rejection in shared.rejected])
    if (obstacle := _obstacle(shared)) is not None:
        return obstacle
    quorum, outside = context.spec.training.quorum, contributing_outside(context)
    there = len(contributing) + outside
    if there < quorum and scaling.placed + scaling.rejected + outside < quorum and not context.finishing:
        return WaitingForHardware(scaling.placed, scaling.desired, quorum)
    if (silence := _silence(context, scaling, shared.syncer.down)) is not None:
        return silence
    if context.finishing:
        return Finishing()
    report = context.report
    assert report is not None, "without one the syncer is silent"
    contribution = Contribution(len(contributing), scaling.placed, outside)
    if there < quorum:
        return QuorumMissing(contribution, quorum, missing="")
    if not report.seeded:
        return Seeding()
    return Contributing(contribution, report.message, sum(bool(report.units[unit].own_data) for unit in contributing))


def _obstacle(shared: SharedObjects) -> Finding | None:
    """Names that the job needs and others have, or a volume that does not come; None: neither is so."""
    kept_claim, taken = shared.configuration.kept, shared.taken
    if kept_claim or taken:
        return NameTaken(kept_claim, taken)
    return VolumePending(shared.volume.problem) if shared.volume.problem is not None else None


def _silence(context: ReconcileContext, scaling: Scaling, syncer_down: Sentence | None) -> Finding | None:
    """Why the syncer says nothing of now; None: its report counts. `syncer_down`: why its pod does not serve; None: it does."""
    observed = context.observed
    if syncer_down is not None:
        served = observed.report is not None or bool((observed.job.status.get("progress") or {}).get("step"))
        joined = any(record.state in (UnitState.JOINING, UnitState.TRAINING) for record in scaling.records.values())
        return SyncerDown(syncer_down) if served and joined else SyncerNotUp(syncer_down)
    if observed.report_fault is not None:
        return ReportsRefused(observed.report_fault.text)
    if context.report is None and context.now <= context.report_missed_at:
        return _known_to_train(context) or FirstReportDue()
    if context.report is None:
        return NoReport(observed.config.report_stale_after)
    if context.answer_due is not None and context.now > context.answer_due:
        return NoAnswer(RECONCILE.syncer_answer)
    return None


def _known_to_train(context: ReconcileContext) -> AsOnRecord | None:
    """Return what is on record of a job that trains, while an operator that has just started waits for its first report; else None."""
    if context.syncer_since >= context.observed.listening_since:
        return None
    on_record = context.observed.job.status.get("conditions") or ()
    known = next((each for each in on_record if each["type"] == ConditionType.TRAINING and each["status"] == TRUE), None)
    reason = next((each for each in TrainingReason if known is not None and each.value == known["reason"]), None)
    return AsOnRecord(reason, known.get("message", "")) if known is not None and reason is not None else None
