"""The job's conditions: what is true of it, why, and what a person can do about it. Pure.

See docs/decisions/0188-true-words-in-a-status.md.
See docs/decisions/0189-words-of-ends-and-returns.md.
See docs/decisions/0200-silence-of-a-syncer.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from diloco.contract import Result
from diloco.wording import plural

from diloco_operator.api import names
from diloco_operator.api.conditions import ConditionType
from diloco_operator.api.consequences import Concern, Follows, Lack
from diloco_operator.api.job import UnitState
from diloco_operator.api.reasons import (
    TRUE,
    AcceptedReason,
    CompleteReason,
    ConditionReason,
    DegradedReason,
    FailedReason,
    PlacedReason,
    SuspendedReason,
    TrainingReason,
    follows,
)
from diloco_operator.kube.client import Cause
from diloco_operator.reconcile.children.shared import SharedObjects
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.grantors.interface import NODES, Grant
from diloco_operator.reconcile.grantors.registry import chooser_of, grantor_of
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status.contributing import ContributingUnits
from diloco_operator.reconcile.status.ending import JobEnd
from diloco_operator.reconcile.status.events import own_data_advice
from diloco_operator.reconcile.status.job_state import under_way
from diloco_operator.reconcile.status.statements import Statement, Statements
from diloco_operator.reconcile.units.roll_out import stopped_roll_outs
from diloco_operator.reconcile.units.scaling import Scaling
from diloco_operator.reconcile.units.states import GAVE_SLICE_UP, State, state_of
from diloco_operator.report import UnitPhase
from diloco_operator.timeouts import RECONCILE

_NAMED = 4
"""Units that a message names one by one."""
_MANY_REFUSED = 0.1
"""Of all contributions: more than this part refused is a warning. A unit that goes wrong once loses one or two."""
_FEW_REFUSED = 0.05
"""The warning of a job that trains ends below this part: at one limit alone it would come and go."""
_REFUSALS_THAT_COUNT = 10
"""Fewer are no warning while a job trains: among its first contributions they would be a large part."""


def invalid_spec(problems: Sequence[Cause]) -> Statements:
    """The spec is invalid; everything else stays as it was."""
    text = "; ".join(f"{cause.field}: {cause.message}" for cause in problems)
    return {ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_INVALID, f"{text}. What runs is left alone until the spec is fixed")}


def rights_missing(missing: Sequence[str]) -> Statements:
    """The operator does not see what there is; everything else stays as it was."""
    text = (
        f"{'; '.join(missing[:_NAMED])}. Give its service account the rights that docs/install.md lists; what runs is left alone until then"
    )
    return {ConditionType.ACCEPTED: Statement(AcceptedReason.RIGHTS_MISSING, text)}


def running(context: ReconcileContext, scaling: Scaling, active: ContributingUnits, shared: SharedObjects) -> Statements:
    """Of a job that is neither over nor suspended. `shared`: the objects without which no unit can start."""
    obstacle = _obstacle(shared.taken, shared.configuration.kept, shared.volume.problem)
    training = _training(context, scaling, active.contributing, shared.syncer.down, obstacle, shared.rejected)
    begun = training.status == TRUE or under_way(context.observed.job.status)
    degraded = _degraded(context, scaling, active, shared.configuration.deleting, begun=begun)
    if training.reason.concern is Concern.QUORUM:
        named = degraded.reason.concern is Concern.MISSING_UNITS and len(active.contributing) < context.spec.learners.min
        missing = "see Degraded" if named else _missing(scaling, active.contributing)
        training = Statement(training.reason, f"{training.message}; {missing}" if missing else training.message)
    return {
        ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_VALID),
        ConditionType.PLACED: _placed(context, scaling),
        ConditionType.TRAINING: training,
        ConditionType.DEGRADED: degraded,
        ConditionType.SUSPENDED: Statement(SuspendedReason.NOT_SUSPENDED),
        ConditionType.COMPLETE: Statement(CompleteReason.IN_PROGRESS),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED),
    }


def suspended(still: Sequence[str]) -> Statements:
    """`still`: names of the pods that have not gone yet."""
    done = not still
    message = "nothing runs, the state is kept" if done else f"waits for {_several(still)} to hand back state and end"
    how = "the job is suspended; set spec.suspend to false to resume where it stopped"
    return {
        ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_VALID),
        ConditionType.PLACED: Statement(PlacedReason.SUSPENDED, "every slice is given back" if done else "slices are being given back"),
        ConditionType.TRAINING: Statement(TrainingReason.SUSPENDED, how),
        ConditionType.DEGRADED: Statement(DegradedReason.SUSPENDED, "the job is suspended"),
        ConditionType.SUSPENDED: Statement(SuspendedReason.SUSPENDED if done else SuspendedReason.SUSPENDING, message),
        ConditionType.COMPLETE: Statement(CompleteReason.IN_PROGRESS),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED),
    }


def ended(end: JobEnd) -> Statements:
    """Of a job that is complete or failed."""
    if end.complete:
        text = "the job is complete"
        placed, training, degraded = PlacedReason.JOB_COMPLETE, TrainingReason.JOB_COMPLETE, _work_of(end.result, text)
    else:
        text = "the job failed"
        placed, training, degraded = PlacedReason.JOB_FAILED, TrainingReason.JOB_FAILED, Statement(DegradedReason.JOB_FAILED, text)
    how = Statement(end.reason, end.message)
    return {
        ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_VALID),
        ConditionType.PLACED: Statement(placed, text),
        ConditionType.TRAINING: Statement(training, text),
        ConditionType.DEGRADED: degraded,
        ConditionType.SUSPENDED: Statement(SuspendedReason.NOT_SUSPENDED),
        ConditionType.COMPLETE: how if end.complete else Statement(CompleteReason.JOB_FAILED, "the job failed before its last step"),
        ConditionType.FAILED: Statement(FailedReason.NOT_FAILED) if end.complete else how,
    }


def _work_of(result: Result | None, text: str) -> Statement:
    """Whether a complete job holds what its learners trained. `text`: where nothing is wrong."""
    if result is None:
        return Statement(DegradedReason.JOB_COMPLETE, text)
    refused = _refused(result.refused, result.contributions)
    if not result.tokens:
        too_short = "a sample counts once every fragment has merged it: give the job more steps than its syncInterval"
        why = refused if result.refused else too_short
        return Statement(DegradedReason.NOTHING_TRAINED, f"the job is complete, and no token that a learner trained counts: {why}")
    if result.refused > _MANY_REFUSED * (result.refused + result.contributions):
        return Statement(DegradedReason.WORK_REFUSED, f"the job is complete, but {refused}")
    return Statement(DegradedReason.JOB_COMPLETE, text)


def _refused(refused: int, merged: int) -> str:
    many = plural(refused, "contribution was", "contributions were")
    return f"{many} refused, {merged} merged; the syncer's log says why each is refused"


def _work_is_lost(context: ReconcileContext) -> bool:
    """Many contributions of a job that trains are refused. Over the whole job, as at its end."""
    report = context.report
    if report is None:
        return False
    part = (_FEW_REFUSED if _is_on_record(context, ConditionType.DEGRADED, DegradedReason.WORK_REFUSED) else _MANY_REFUSED) * (
        report.work_refused + report.contributions
    )
    return report.work_refused >= _REFUSALS_THAT_COUNT and report.work_refused > part


def _is_on_record(context: ReconcileContext, kind: ConditionType, reason: ConditionReason) -> bool:
    """Whether the condition has this reason in the status that is there."""
    on_record = context.observed.job.status.get("conditions") or ()
    return any(each["type"] == kind and each["reason"] == reason.value for each in on_record)


def starting_again(why: FailedReason | CompleteReason, text: str) -> Statements:
    """Of a job that has ended and starts again now: nothing of it runs yet."""
    return {
        ConditionType.ACCEPTED: Statement(AcceptedReason.SPEC_VALID),
        ConditionType.PLACED: Statement(PlacedReason.JOB_FAILED if isinstance(why, FailedReason) else PlacedReason.JOB_COMPLETE, text),
        ConditionType.TRAINING: Statement(TrainingReason.SYNCER_STARTING, text),
        ConditionType.DEGRADED: Statement(DegradedReason.LEARNERS_STARTING, text),
        ConditionType.COMPLETE: Statement(why if isinstance(why, CompleteReason) else CompleteReason.IN_PROGRESS, text),
        ConditionType.FAILED: Statement(why if isinstance(why, FailedReason) else FailedReason.NOT_FAILED, text),
    }


def waiting_to_start(why: FailedReason | CompleteReason, text: str) -> Statements:
    """Of a job that has ended and that cannot start again yet; the rest stays as it was."""
    failed = isinstance(why, FailedReason)
    return {ConditionType.TRAINING: Statement(TrainingReason.JOB_FAILED if failed else TrainingReason.JOB_COMPLETE, text)}


def _placed(context: ReconcileContext, scaling: Scaling) -> Statement:
    learners = context.spec.learners
    count = f"{scaling.placed} of {plural(scaling.desired, 'unit has', 'units have')} hardware"
    if scaling.placed > scaling.desired:  # some still drain
        count = f"{plural(scaling.placed, 'unit has', 'units have')} hardware, and the job wants {scaling.desired}"
    why = _pool_messages(scaling)
    if scaling.placed >= max(scaling.desired, learners.min):
        return Statement(PlacedReason.ALL_PLACED, count)
    failed = sum(r.state is UnitState.FAILED for r in scaling.records.values())
    given_up = f"; {failed} given up" if failed else ""
    if scaling.placed >= learners.min:
        return Statement(PlacedReason.MINIMUM_PLACED, f"{count}, learners.min is {learners.min}{given_up}{why}")
    if scaling.placed + scaling.rejected + scaling.barred >= learners.min:
        rejected_units = [r for r in scaling.records.values() if state_of(r) is State.PODS_REFUSED]
        details = "; ".join(f"{record.name}: {record.message}" for record in rejected_units[:_NAMED])
        return Statement(PlacedReason.PODS_REFUSED, f"{count}, learners.min is {learners.min}; {details}{why}")
    chooser = chooser_of(context.spec)
    if chooser is not None and (missing := chooser.missing(context.observed.without)):
        return Statement(chooser.missing_reason, f"{count}, learners.min is {learners.min}; {missing}")
    if (grant := _awaited(context, scaling)) is not None:
        return Statement(grant.job, f"{count}, learners.min is {learners.min}{given_up}{why}")
    text = f"{count}, learners.min is {learners.min}{given_up}{why}"
    if not why and scaling.placed + failed >= learners.min:  # more hardware would not help
        return Statement(PlacedReason.INSUFFICIENT_CAPACITY, f"{text}, which kubectl diloco retry starts again; Degraded says why")
    return Statement(PlacedReason.INSUFFICIENT_CAPACITY, f"{text}. Add nodes, or lower learners.min or pools[].learners.min")


def _awaited(context: ReconcileContext, scaling: Scaling) -> Grant | None:
    """What the first unit of those waits for that were asked for; None: there are none."""
    first = next((each for each in scaling.records.values() if state_of(each) is State.WAITING_FOR_GRANTOR), None)
    if first is None:
        return None
    grantor = grantor_of(context.spec, context.pools[first.pool])
    return grantor.gives if grantor is not None else NODES


def _pool_messages(scaling: Scaling) -> str:
    """Why pools do not have more units. What several of them lack for the same cause is explained once."""
    if scaling.placement is None:
        return ""
    lacks: dict[str, list[str]] = {}
    for pool in scaling.placement.pools:
        if pool.lack.of_slices:
            lacks.setdefault(pool.why, []).append(pool.lacks)
    off = [pool.message for pool in scaling.placement.pools if pool.lack is Lack.SWITCHED_ON]
    return "".join(f"; {text}" for text in (*(f"{', '.join(pools)}; {why}" for why, pools in lacks.items()), *off))


def _training(
    context: ReconcileContext,
    scaling: Scaling,
    contributing: frozenset[str],
    syncer_down: str,
    obstacle: Statement | None,
    rejected: Sequence[Rejection],
) -> Statement:
    quorum = context.spec.training.quorum
    if rejected and not contributing:
        return Statement(TrainingReason.WRITE_REFUSED, "; ".join(rejection.text for rejection in rejected))
    if obstacle is not None:
        return obstacle
    if len(contributing) < quorum and scaling.placed + scaling.rejected < quorum and not context.finishing:
        count = f"{scaling.placed} of {plural(max(scaling.desired, quorum), 'unit has', 'units have')}" if scaling.placed else "no unit has"
        text = f"{count} hardware, training.quorum is {quorum}; see Placed"
        return Statement(TrainingReason.WAITING_FOR_HARDWARE, text)
    served = context.observed.report is not None or bool((context.observed.job.status.get("progress") or {}).get("step"))
    joined = any(record.state in (UnitState.JOINING, UnitState.TRAINING) for record in scaling.records.values())
    if syncer_down:
        if served and joined:
            text = f"the syncer does not run: {syncer_down}. Learners train on and reconnect by themselves"
            return Statement(TrainingReason.SYNCER_UNAVAILABLE, text)
        return Statement(TrainingReason.SYNCER_STARTING, f"the syncer does not serve yet: {syncer_down}")
    if (fault := context.observed.report_fault) is not None:
        text = f"{fault.text}. The operator reads it only now and then, and does not know whether the job trains"
        advice = "check the image and command of spec.syncer.template; once a report can be read, this ends by itself"
        return Statement(TrainingReason.REPORTS_REFUSED, f"{text}: {advice}")
    if context.report is None:
        if context.now <= context.report_missed_at:
            if (known := _known_to_train(context)) is not None:
                return known
            return Statement(TrainingReason.SYNCER_STARTING, "the syncer's pod runs; its first report has not come yet")
        limit = context.observed.config.report_stale_after
        text = f"the operator has had no report from the syncer for {limit:.0f} s; check its pod and network"
        return Statement(TrainingReason.SYNCER_UNREACHABLE, text)
    if context.answer_due is not None and context.now > context.answer_due:
        silence = f"the syncer has not answered the operator for {RECONCILE.syncer_answer:.0f} s"
        text = f"{silence}, though its pod runs; check its pod, log and network"
        return Statement(TrainingReason.SYNCER_UNREACHABLE, text)
    if context.finishing:
        return Statement(TrainingReason.FINISHING, "the last outer step is done; the syncer writes the final snapshot")
    count = _count(scaling, contributing)
    if len(contributing) >= quorum and context.report.seeded:
        news = f"; the syncer {context.report.message}" if context.report.message else ""
        return Statement(TrainingReason.QUORUM_CONTRIBUTING, count + news + _own_data(context, contributing))
    if len(contributing) < quorum:
        return Statement(TrainingReason.QUORUM_MISSING, f"{count}, training.quorum is {quorum}: outer steps wait")
    return Statement(TrainingReason.SEEDING, "the first learner hands over the initial parameters")


def _own_data(context: ReconcileContext, contributing: frozenset[str]) -> str:
    """What to do where several units feed themselves."""
    theirs = [unit for unit in contributing if context.report is not None and context.report.units[unit].own_data]
    return f"; {own_data_advice(len(theirs))}" if len(theirs) > 1 else ""


def _known_to_train(context: ReconcileContext) -> Statement | None:
    """What is on record of a job that trains, while an operator that has just started waits for its first report; else None."""
    if context.syncer_since >= context.observed.listening_since:
        return None
    on_record = context.observed.job.status.get("conditions") or ()
    known = next((each for each in on_record if each["type"] == ConditionType.TRAINING and each["status"] == TRUE), None)
    reason = next((each for each in TrainingReason if known is not None and each.value == known["reason"]), None)
    return Statement(reason, known.get("message", "")) if known is not None and reason is not None else None


def _obstacle(taken: Sequence[str], kept_claim: str, volume: str) -> Statement | None:
    """What to do about names that the job needs and others have, or about a volume that does not come; None: neither is so."""
    found = []
    if kept_claim:
        found.append(
            f"{names.VOLUME_CLAIMS.kind} {kept_claim} keeps the model of an earlier job of this name, and no job writes over it: give this "
            f"job another name, or delete the claim and the model with it: kubectl delete pvc {kept_claim}. Before that, kubectl diloco "
            f"export --claim {kept_claim} writes the model to a file"
        )
    if taken:
        found.append(f"{_several(taken)} exists and is not this job's: delete it, or give the job another name")
    if found:
        return Statement(TrainingReason.NAME_TAKEN, ". ".join(found))
    return Statement(TrainingReason.VOLUME_PENDING, volume) if volume else None


def _degraded(context: ReconcileContext, scaling: Scaling, active: ContributingUnits, deleting: Sequence[str], *, begun: bool) -> Statement:
    """`begun`: the job has trained, or failed to, since it was created, resumed or retried."""
    learners, contributing = context.spec.learners, active.contributing
    volume = names.volume_claim_name(context.observed.job.name)
    if f"{names.VOLUME_CLAIMS.kind} {volume}" in deleting:
        text = (
            f"the volume claim {volume} was deleted: it goes when the syncer's pod ends, and with it every snapshot. Let the job "
            "complete, or copy its content"
        )
        return Statement(DegradedReason.VOLUME_DELETED, text)
    report = context.report
    if len(contributing) >= learners.min or context.finishing:
        if report is not None and report.snapshot_error:
            text = f"training continues, but the syncer cannot write snapshots: {report.snapshot_error}. Make room on its volume"
            return Statement(DegradedReason.SNAPSHOT_FAILED, text)
        if (stopped := _stopped_roll_outs(context, scaling)) and not context.finishing:
            return Statement(DegradedReason.ROLL_OUT_STOPPED, stopped)
        if _is_short_for_good(scaling) and not context.finishing:
            return Statement(DegradedReason.LEARNERS_LOST, _lost(context, scaling, contributing))
        if report is not None and _work_is_lost(context):
            text = f"training continues, but {_refused(report.work_refused, report.contributions)}"
            return Statement(DegradedReason.WORK_REFUSED, f"{text}. kubectl diloco units -o wide shows whose")
        if context.finishing:
            return Statement(DegradedReason.ENOUGH_LEARNERS, "the last outer step is done")
        enough = f"{plural(len(contributing), 'contributes', 'contribute')}, learners.min is {learners.min}"
        if context.observed.report_fault is not None:
            enough = f"{len(contributing)} contributed by the last report that could be read, learners.min is {learners.min}"
        return Statement(DegradedReason.ENOUGH_LEARNERS, enough)
    there = contributing | active.returning
    if begun and len(there) >= learners.min:
        back = plural(len(active.returning), "reconnects by itself", "reconnect by themselves")
        text = f"{_count(scaling, contributing)}, learners.min is {learners.min}; {back}, because the syncer went away"
        return Statement(DegradedReason.LEARNERS_RECONNECTING, text)
    reason = _degraded_reason(context, scaling, _missing_units(scaling, contributing), begun=begun)
    count = f"{_count(scaling, contributing)}, learners.min is {learners.min}"
    details = "; ".join(filter(None, (_missing(scaling, contributing), _stopped_roll_outs(context, scaling))))
    return Statement(reason, count + (f"; {details}" if details else "") + _blamed(context))


def _stopped_roll_outs(context: ReconcileContext, scaling: Scaling) -> str:
    """Why units keep the earlier template of their pool, and what to do; "": no roll-out has stopped."""
    found = []
    for pool, failed, left in stopped_roll_outs(context, scaling.records):
        keep = plural(left, "unit keeps", "units keep")
        text = f"the new template of pool {pool} has stopped after {failed.name}, which has not contributed with it"
        cause = failed.last_failure or failed.message
        found.append(f"{text} ({cause}): {keep} the earlier one. Correct the template, or take the change back")
    return "; ".join(found)


def _is_short_for_good(scaling: Scaling) -> bool:
    """Units were given up, and nothing may take their place."""
    return scaling.possible < scaling.desired and any(r.state is UnitState.FAILED for r in scaling.records.values())


def _lost(context: ReconcileContext, scaling: Scaling, contributing: frozenset[str]) -> str:
    """Units that nothing replaces; each message says why and what to do."""
    lost = [r for r in scaling.records.values() if r.state is UnitState.FAILED]
    named = "; ".join(f"{record.name}: {record.message}" for record in lost[:_NAMED])
    more = f"; {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    missing = scaling.desired - scaling.possible
    count = f"{missing} of {plural(scaling.desired, 'learner')} {'is' if missing == 1 else 'are'} lost until a person acts"
    return f"{count}: {named}{more}; {plural(len(contributing), 'contributes', 'contribute')}{_blamed(context)}"


def _blamed(context: ReconcileContext) -> str:
    return f"; {context.hosts.program}" if context.hosts.program else ""


class _Absence(enum.Enum):
    """Why a unit does not contribute; the reason of the condition if all that are missing share it."""

    GIVEN_UP = DegradedReason.LEARNERS_LOST
    FAILED = DegradedReason.LEARNERS_FAILED
    UNPLACED = DegradedReason.LEARNERS_UNPLACED
    STARTS = DegradedReason.LEARNERS_STARTING
    GONE = DegradedReason.LEARNERS_MISSING


def _degraded_reason(context: ReconcileContext, scaling: Scaling, missing: Sequence[UnitStatusRecord], *, begun: bool) -> DegradedReason:
    """One cause if all the missing ones share it."""
    absences = {_absence(context, record, begun=begun) for record in missing}
    if not begun and absences <= {_Absence.STARTS, _Absence.UNPLACED}:
        return DegradedReason.LEARNERS_STARTING if scaling.placed >= context.spec.training.quorum else DegradedReason.QUEUED
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
    """The unit starts or joins, or is about to, and nothing was lost: no attempt since it last contributed, and not its connection. What it
    trained before does not count: after a resume every unit has."""
    if record.ended_at is not None:
        return False
    if record.state is UnitState.DRAINING:
        return follows(record.reason, Follows.RETURNS_AT_ONCE)
    seen = context.unit_report(record.name, record.attempt)
    starts = record.state in (UnitState.STARTING, UnitState.JOINING, UnitState.PENDING)
    return starts and not (begun and seen is not None and seen.phase is UnitPhase.DISCONNECTED)


def _count(scaling: Scaling, contributing: frozenset[str]) -> str:
    wanted = max(scaling.placed, len(contributing))
    if not wanted:
        return "no learner has hardware"
    return f"{len(contributing)} of {plural(wanted, 'learner contributes', 'learners contribute')}"


def _missing_units(scaling: Scaling, contributing: frozenset[str]) -> list[UnitStatusRecord]:
    """Units that could contribute and do not; without those that the job gives up on purpose."""
    return [
        record
        for record in scaling.records.values()
        if record.name not in contributing
        and record.state is not UnitState.COMPLETED
        and not (record.state in (UnitState.DRAINING, UnitState.PENDING) and follows(record.reason, Follows.NOT_MISSED))
    ]


def _missing(scaling: Scaling, contributing: frozenset[str]) -> str:
    """The units that do not contribute, and why: `v5p-0 is backing off until 12:03:10 after exit 137 (OOMKilled)`."""
    others = _missing_units(scaling, contributing)
    waiting = [r for r in others if _only_waits(r)]
    rest = [r for r in others if not _only_waits(r)]
    named = [_describe(record) for record in rest[:_NAMED]]
    if len(rest) > _NAMED:
        named.append(f"{len(rest) - _NAMED} more")
    if waiting:
        wait = "waits for a slice" if len(waiting) == 1 else "wait for slices"
        named.append(f"{_several([r.name for r in waiting])} {wait}, see Placed")
    return "; ".join(named)


def _only_waits(record: UnitStatusRecord) -> bool:
    """Whether all that there is to say of the unit is that it waits for a slice: why stands in the message of its pool."""
    return follows(record.reason, Follows.POOL_SAYS_WHY) and not record.cause


def _describe(record: UnitStatusRecord) -> str:
    words = {
        UnitState.PENDING: "is pending",
        UnitState.STARTING: "is starting",
        UnitState.JOINING: "is joining",
        UnitState.TRAINING: "has just stopped contributing",
        UnitState.DRAINING: "is draining",
        UnitState.BACKING_OFF: "is backing off",
        UnitState.FAILED: "has failed",
    }
    text = f"{record.name} {words.get(record.state, str(record.state))}"
    return f"{text} ({record.message})" if record.message else text


def _several(found: Sequence[str]) -> str:
    shown = ", ".join(found[:_NAMED])
    return f"{shown} and {len(found) - _NAMED} more" if len(found) > _NAMED else shown
