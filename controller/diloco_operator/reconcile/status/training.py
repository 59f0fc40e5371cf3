"""Whether a job trains, and if not, what keeps it from training: the condition Training. Pure.

See docs/decisions/0041-what-a-syncer-says.md.
See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from diloco_operator.api.conditions import ConditionType, on_record
from diloco_operator.api.reasons import TRUE, TrainingReason
from diloco_operator.api.status import UnitState
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.pods import memory_of_syncer
from diloco_operator.reconcile.children.shared import SharedObjects
from diloco_operator.reconcile.children.syncer import SyncerChanges
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.status import training_words, unit_words
from diloco_operator.reconcile.status.contributing import contributing_outside, counted_elsewhere
from diloco_operator.reconcile.status.statements import Statement
from diloco_operator.reconcile.status.training_words import QuorumMissing
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.sizes import most_learners, syncer_sizes
from diloco_operator.timeouts import RECONCILE


def training(context: ReconcileContext, scaling: Scaling, contributing: frozenset[str], shared: SharedObjects) -> Statement | QuorumMissing:
    """Return the first statement that holds, about: the objects without which no unit can start, hardware, the syncer, the learners."""
    if shared.rejected and not contributing:
        return Statement(TrainingReason.WRITE_REFUSED, "; ".join(rejection.text for rejection in shared.rejected))
    if (obstacle := _obstacle(shared, context.observed.job.uid)) is not None:
        return obstacle
    if shared.home_problem is not None and not contributing:
        return Statement(TrainingReason.HOME_UNKNOWN, shared.home_problem)
    quorum, outside = context.quorum, contributing_outside(context)
    elsewhere = counted_elsewhere(context)
    others = outside + elsewhere.contributing
    contributors = len(contributing) + others
    placed, desired = scaling.placed + elsewhere.placed, scaling.desired + elsewhere.desired
    if contributors < quorum and placed + scaling.rejected + outside < quorum and not (context.finishing or shared.syncer.overdue):
        return Statement(TrainingReason.WAITING_FOR_HARDWARE, training_words.waiting_for_hardware(placed, desired, quorum))
    if (silence := _silence(context, scaling, shared.syncer)) is not None:
        return silence
    if context.finishing:
        return Statement(TrainingReason.FINISHING, training_words.FINISHING)
    report = context.report
    assert report is not None, "without one the syncer is silent"
    contribution = unit_words.contribution(len(contributing), scaling.placed, others)
    if contributors < quorum:
        return QuorumMissing(contribution, quorum)
    if not report.seeded:
        return Statement(TrainingReason.SEEDING, training_words.SEEDING)
    feeding_themselves = sum(bool(report.units[unit].own_data) for unit in contributing)
    text = training_words.contributing(contribution, report.message, feeding_themselves) + _too_small_syncer(context)
    return Statement(TrainingReason.QUORUM_CONTRIBUTING, text)


def _too_small_syncer(context: ReconcileContext) -> str:
    """Say that the syncer requests less memory than it needs. "" if it requests enough, or its need is not known."""
    spec, report = context.spec, context.observed.report
    if report is None or not report.parameters or context.is_part:
        return ""
    pools, away = context.observed.job.all_pools, {pool.cluster for pool in context.observed.job.away}
    by_hand = tuple(part for part in spec.parts if part.name not in away)
    learners = most_learners(spec.model_copy(update={"learners": context.all_learners, "pools": pools, "parts": by_hand}))
    needed = syncer_sizes(report.parameters, learners, spec.training).memory
    asked = memory_of_syncer(spec, context.observed.config)
    return training_words.too_small_syncer(asked, needed, report.parameters, learners) if asked is not None and asked < needed else ""


def _obstacle(shared: SharedObjects, uid: str) -> Statement | None:
    """Others have names that the job needs, or the volume is missing. None if neither is so."""
    kept_claim, taken = shared.configuration.kept, shared.taken
    if shared.syncer.predecessor:
        return Statement(TrainingReason.NAME_TAKEN, shared.syncer.predecessor)
    if kept_claim or taken:
        return Statement(TrainingReason.NAME_TAKEN, training_words.name_taken(kept_claim, taken, uid))
    problem = shared.volume.problem
    return Statement(TrainingReason.VOLUME_PENDING, problem) if problem is not None else None


def _silence(context: ReconcileContext, scaling: Scaling, syncer: SyncerChanges) -> Statement | None:
    """Why there is no report about the present; None if there is one."""
    observed = context.observed
    if syncer.down is not None:
        served = observed.report is not None or bool((observed.job.status.get("progress") or {}).get("step"))
        joined = any(record.state in (UnitState.JOINING, UnitState.TRAINING) for record in scaling.records.values())
        if syncer.overdue and syncer.down_since is not None:
            reason = TrainingReason.SYNCER_UNAVAILABLE if served else TrainingReason.SYNCER_STARTING
            return Statement(reason, training_words.syncer_overdue(syncer.down, syncer.down_since) + _too_small_syncer(context))
        if served and joined:
            small = _too_small_syncer(context)
            return Statement(TrainingReason.SYNCER_UNAVAILABLE, training_words.syncer_down(syncer.down) + small)
        return Statement(TrainingReason.SYNCER_STARTING, training_words.syncer_not_up(syncer.down))
    if observed.report_fault is not None:
        return Statement(TrainingReason.REPORTS_REFUSED, training_words.reports_refused(observed.report_fault.text))
    at, stale = context.spec.syncer.at, observed.config.report_stale_after
    if context.report is None and context.now <= context.report_missed_at:
        due = training_words.FIRST_REPORT_DUE if at is None else home_words.first_report_due(at.address)
        return _known_to_train(context) or Statement(TrainingReason.SYNCER_STARTING, due)
    if context.report is None:
        no_report = training_words.no_report(stale) if at is None else home_words.no_report(at.address, stale)
        return Statement(TrainingReason.SYNCER_UNREACHABLE, no_report)
    if context.answer_due is not None and context.now > context.answer_due:
        return Statement(TrainingReason.SYNCER_UNREACHABLE, training_words.no_answer(RECONCILE.syncer_answer))
    return None


def _known_to_train(context: ReconcileContext) -> Statement | None:
    """The statement on record, if by it the job trains. An operator that has just started keeps it until its first report comes. Else
    None."""
    if context.syncer_since >= context.observed.listening_since:
        return None
    known = on_record(context.observed.job.status, ConditionType.TRAINING)
    if known is None or known["status"] != TRUE:
        return None
    reason = next((candidate for candidate in TrainingReason if candidate.value == known["reason"]), None)
    return Statement(reason, known.get("message", "")) if reason is not None else None
