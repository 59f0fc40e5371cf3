"""The job's conditions, whether it runs, is suspended or is over: what is true, why, and what a person can do about it. Pure.

The conditions Placed, Training and Degraded of a job that runs have modules of their own (`placed`, `training`, `degraded`); each returns a
reason and its words.

See docs/decisions/0138-job-state.md.
See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diloco.contract import Result

from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.consequences import Concern, Follows
from diloco_operator.api.reasons import (
    TRUE,
    AcceptedReason,
    CompleteReason,
    DegradedReason,
    FailedReason,
    PlacedReason,
    SuspendedReason,
    TrainingReason,
    follows,
)
from diloco_operator.kube.client import Cause
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.shared import SharedObjects
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status.contributing import ContributingUnits, least_here
from diloco_operator.reconcile.status.degraded import MANY_REFUSED, degraded, missing_units
from diloco_operator.reconcile.status.ending import JobEnd
from diloco_operator.reconcile.status.job_state import under_way
from diloco_operator.reconcile.status.placed import placed
from diloco_operator.reconcile.status.statements import Statement, Statements
from diloco_operator.reconcile.status.training import training
from diloco_operator.reconcile.status.training_words import FINISHING, QuorumMissing
from diloco_operator.reconcile.status.unit_words import NAMED, named_units, refused_work, several
from diloco_operator.reconcile.units.scaling import Scaling


def accepted(problems: Sequence[Cause]) -> Statements:
    """State only whether the spec can be followed. The other conditions stay as they were."""
    if not problems:
        return {ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_VALID)}
    text = "; ".join(f"{cause.field}: {cause.message}" for cause in problems)
    advice = "What runs is left alone until the spec is fixed, and nothing starts"
    return {ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_INVALID, f"{text}. {advice}")}


def rights_missing(missing: Sequence[str]) -> Statements:
    """State that the operator lacks rights. The other conditions stay as they were. `missing`: what it cannot read, and why."""
    advice = "Give its service account the rights that docs/install.md lists; what runs is left alone until then"
    return {ConditionType.ACCEPTED: Statement(AcceptedReason.RIGHTS_MISSING, f"{'; '.join(missing[:NAMED])}. {advice}")}


def running(context: ReconcileContext, scaling: Scaling, active: ContributingUnits, shared: SharedObjects) -> Statements:
    """The conditions of a job that is neither over nor suspended. `shared`: the objects without which no unit can start."""
    training_statement = training(context, scaling, active.contributing, shared)
    begun = training_statement.reason.status == TRUE or under_way(context.observed.job.status)
    degraded_statement = degraded(context, scaling, active, shared, begun=begun)
    if isinstance(training_statement, QuorumMissing):
        if degraded_statement.reason.concern is Concern.MISSING_UNITS and len(active.contributing) < least_here(context):
            training_statement = training_statement.statement("see Degraded")  # which names the missing units already
        else:
            training_statement = training_statement.statement(missing_units(scaling, active.contributing))
    return {
        **accepted(context.observed.job.problems),
        ConditionType.PLACED: placed(context, scaling),
        ConditionType.TRAINING: training_statement,
        ConditionType.DEGRADED: degraded_statement,
        ConditionType.SUSPENDED: Statement(SuspendedReason.NOT_SUSPENDED),
        ConditionType.COMPLETE: Statement(CompleteReason.IN_PROGRESS, _final_snapshot(context, degraded_statement)),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED),
    }


def _final_snapshot(context: ReconcileContext, wrong: Statement) -> str:
    """What a job waits for after its last outer step; "" if that is not done yet. `wrong`: what Degraded says."""
    if not context.finishing:
        return ""
    stuck = context.report is not None and context.report.snapshot_error
    return wrong.message if stuck else FINISHING


def suspended(context: ReconcileContext, still: Sequence[str]) -> Statements:
    """The conditions of a suspended job. `still`: names of its pods that have not gone yet."""
    if still:
        hardware = "slices are being given back"
        progress = Statement(SuspendedReason.SUSPENDING, f"waits for {several(still)} to hand back state and end")
    else:
        hardware = "every slice is given back"
        progress = Statement(SuspendedReason.SUSPENDED, "nothing runs, the state is kept")
    at = context.spec.syncer.at
    if context.spec.suspend or at is None:
        how = "the job is suspended; set spec.suspend to false to resume where it stopped"
    else:
        how = home_words.gives_hardware_back(at.address, at.part_timeout)
    return {
        **accepted(context.observed.job.problems),
        ConditionType.PLACED: Statement(PlacedReason.SUSPENDED, hardware),
        ConditionType.TRAINING: Statement(TrainingReason.SUSPENDED, how),
        ConditionType.DEGRADED: Statement(DegradedReason.SUSPENDED, "the job is suspended"),
        ConditionType.SUSPENDED: progress,
        ConditionType.COMPLETE: Statement(CompleteReason.IN_PROGRESS),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED),
    }


def ended(context: ReconcileContext, end: JobEnd, how: str, units: Collection[UnitStatusRecord]) -> Statements:
    """The conditions of a job that is complete or failed. `how`: how it ended and where the model is."""
    if end.complete:
        text = "the job is complete"
        hardware, trains = PlacedReason.JOB_COMPLETE, TrainingReason.JOB_COMPLETE
        wrong = programs_failed(units) or _work_of(end.result, text)
    else:
        text = "the job failed"
        hardware, trains, wrong = PlacedReason.JOB_FAILED, TrainingReason.JOB_FAILED, Statement(DegradedReason.JOB_FAILED, text)
    statement = Statement(end.reason, how)
    return {
        **accepted(context.observed.job.problems),
        ConditionType.PLACED: Statement(hardware, text),
        ConditionType.TRAINING: Statement(trains, text),
        ConditionType.DEGRADED: wrong,
        ConditionType.SUSPENDED: Statement(SuspendedReason.NOT_SUSPENDED),
        ConditionType.COMPLETE: statement if end.complete else Statement(CompleteReason.JOB_FAILED, "the job failed before its last step"),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED) if end.complete else statement,
    }


def programs_failed(units: Collection[UnitStatusRecord]) -> Statement | None:
    """Name the programs that failed after their job was complete. None if no program did."""
    failed = [record for record in units if follows(record.reason, Follows.JOB_WAS_DONE)]
    if not failed:
        return None
    return Statement(DegradedReason.PROGRAMS_FAILED, f"the job is complete, but {named_units(failed)}")


def _work_of(result: Result | None, text: str) -> Statement:
    """Whether the model of a complete job holds what its learners trained. `text`: the message if nothing is wrong."""
    if result is None:
        return Statement(DegradedReason.JOB_COMPLETE, text)
    if not result.tokens:
        too_short = "a sample counts once every fragment has merged it: give the job more steps than its syncInterval"
        why = refused_work(result.refused, result.contributions) if result.refused else too_short
        return Statement(DegradedReason.NOTHING_TRAINED, f"{text}, and no token that a learner trained counts: {why}")
    if result.refused > MANY_REFUSED * (result.refused + result.contributions):
        return Statement(DegradedReason.WORK_REFUSED, f"{text}, but {refused_work(result.refused, result.contributions)}")
    return Statement(DegradedReason.JOB_COMPLETE, text)


def starting_again(reason: FailedReason | CompleteReason, why: str) -> Statements:
    """The conditions of a job that has ended and starts again now. Nothing of it runs yet."""
    failed = isinstance(reason, FailedReason)
    return {
        **accepted(()),
        ConditionType.PLACED: Statement(PlacedReason.JOB_FAILED if failed else PlacedReason.JOB_COMPLETE, why),
        ConditionType.TRAINING: Statement(TrainingReason.SYNCER_STARTING, why),
        ConditionType.DEGRADED: Statement(DegradedReason.LEARNERS_STARTING, why),
        ConditionType.COMPLETE: Statement(reason if isinstance(reason, CompleteReason) else CompleteReason.IN_PROGRESS, why),
        ConditionType.FAILED: Statement(reason if isinstance(reason, FailedReason) else FailedReason.NOT_FAILED, why),
    }


def waiting_to_start(reason: FailedReason | CompleteReason, why: str) -> Statements:
    """The condition Training of a job that has ended and cannot start again yet. The other conditions stay as they were."""
    failed = isinstance(reason, FailedReason)
    return {ConditionType.TRAINING: Statement(TrainingReason.JOB_FAILED if failed else TrainingReason.JOB_COMPLETE, why)}
