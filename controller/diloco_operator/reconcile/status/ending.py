"""When a job is over: status says so, the syncer's pod says so, in a part its report, or the quorum is lost. And when its object is
deleted. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from diloco.contract import ENDED_BY_PROGRAM, ENDED_BY_TOKENS, Exit, Result
from diloco.error_line import error_line
from pydantic import ValidationError

from diloco_operator.api import names
from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.consequences import Follows
from diloco_operator.api.last_failure import read_last_failure
from diloco_operator.api.reasons import CompleteReason, FailedReason, follows
from diloco_operator.api.status import UnitState
from diloco_operator.kube.fields import MOST_COUNT
from diloco_operator.kube.timestamps import parse_timestamp
from diloco_operator.plan import Delete
from diloco_operator.reconcile.children import home_words
from diloco_operator.reconcile.children.retention import Retention
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.pods import PodView
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.status import ending_words
from diloco_operator.reconcile.status.contributing import contributing_outside, counted_elsewhere
from diloco_operator.reconcile.units.job_request import possible_units
from diloco_operator.reconcile.units.restarts import why_given_up


class RecordedEnd(NamedTuple):
    """The end of a job as status has it."""

    at: float
    complete: bool
    """False if the job failed."""


def recorded_end(status: Mapping[str, Any]) -> RecordedEnd | None:
    """The end by status; None if neither Complete nor Failed is True there."""
    for condition in status.get("conditions") or ():
        if condition["type"] in TERMINAL and condition["status"] == "True":
            return RecordedEnd(parse_timestamp(condition["lastTransitionTime"]), condition["type"] == ConditionType.COMPLETE)
    return None


def finished(status: Mapping[str, Any]) -> bool:
    return recorded_end(status) is not None


@dataclass(frozen=True, slots=True)
class JobEnd:
    reason: CompleteReason | FailedReason
    why: str
    result: Result | None = None

    @property
    def complete(self) -> bool:
        return isinstance(self.reason, CompleteReason)


def job_end(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> JobEnd | None:
    """None while the job goes on."""
    end = _home_end(context, records) if context.is_part else _syncer_end(context.syncer)
    return end or _quorum_lost(context, records)


def _home_end(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> JobEnd | None:
    """The end of a part: home's syncer says so, or, while it is silent, all its units have ended as they do when the job is complete."""
    report = context.observed.report
    if report is not None and report.done and not context.asks_for_more_than(report):
        return JobEnd(CompleteReason.HOME_COMPLETE, home_words.home_is_complete(report.t, report.steps))
    ran = [record for record in records.values() if record.attempt]
    silent = context.report is None and context.now > context.report_missed_at
    if silent and ran and all(record.ended_by_itself for record in ran):
        return JobEnd(CompleteReason.HOME_COMPLETE, home_words.UNITS_SAID_SO)
    return None


def _syncer_end(syncer: PodView | None) -> JobEnd | None:
    """The end that the syncer's pod reports; None while the job goes on."""
    if syncer is None:
        return None
    end = syncer.termination
    if syncer.phase == "Succeeded" or (syncer.main_ended and end is not None and end.exit_code == Exit.COMPLETE):
        result = _result(end.message if end else "")
        if result is None:
            return JobEnd(CompleteReason.STEPS_REACHED, ending_words.NO_RESULT)
        if not result.tokens and not result.contributions and result.ended_by != ENDED_BY_PROGRAM:
            return JobEnd(FailedReason.NOTHING_TRAINED, ending_words.nothing_merged((syncer.namespace, syncer.job), result))
        return JobEnd(_ENDED_BY.get(result.ended_by, CompleteReason.STEPS_REACHED), ending_words.summary(result), result)
    if end is None or (syncer.running_since is not None and syncer.restarts == 0):
        return None
    # The kubelet may have filled the message with the end of the log, where the cause comes last.
    cause = error_line(end.message)
    if end.exit_code == Exit.BAD_STATE:
        return JobEnd(FailedReason.STATE_UNUSABLE, ending_words.state_unusable((syncer.namespace, syncer.job), cause))
    if end.exit_code == Exit.BAD_START:
        return JobEnd(FailedReason.START_UNUSABLE, ending_words.start_unusable((syncer.namespace, syncer.job), cause))
    if end.exit_code == Exit.BAD_CONTRACT:
        return JobEnd(FailedReason.SYNCER_FAILED, ending_words.contract_unreadable((syncer.namespace, syncer.job), cause))
    return None


_ENDED_BY = {ENDED_BY_TOKENS: CompleteReason.TOKENS_REACHED, ENDED_BY_PROGRAM: CompleteReason.FINISHED_BY_PROGRAM}


def _result(message: str) -> Result | None:
    """Read a result. None if it cannot be read, or has figures that a status cannot have: the syncer may be any program."""
    try:
        result = Result.model_validate_json(message)
    except ValidationError:
        return None
    counts = (result.step, result.steps, result.tokens, *(count for unit in result.units for count in (unit.tokens, unit.steps)))
    losses = (loss for loss in (result.loss, result.held_out_loss) if loss is not None)
    return result if all(0 <= count <= MOST_COUNT for count in counts) and all(map(math.isfinite, losses)) else None


def _quorum_lost(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> JobEnd | None:
    """The job fails when fewer units than the quorum can ever contribute again. None while enough can."""
    failed = [record for record in records.values() if record.state is UnitState.FAILED and context.up_to_date(record)]
    quorum, parts = context.quorum, context.failed_parts
    if any(pool.learners.max == 0 for pool in context.spec.pools):
        return None  # a pool that is switched off can be switched on
    if not (failed or parts) or context.finishing or context.suspended:
        return None
    if possible_units(context, records) + _elsewhere(context) >= quorum:
        return None
    job = context.observed.job
    key = (job.namespace, job.name)
    if not failed:
        name, state = next(iter(parts.items()))
        return JobEnd(FailedReason.RESTARTS_EXHAUSTED, ending_words.parts_failed(key, quorum, name, state.message))
    layout = all(follows(record.reason, Follows.OTHER_MODEL) for record in failed)
    reason = FailedReason.LAYOUT_REFUSED if layout else FailedReason.RESTARTS_EXHAUSTED
    last = max(failed, key=lambda record: (record.since or 0.0, record.name))
    why = why_given_up(last, context.spec.learners.restart, read_last_failure(last.last_failure).message)
    return JobEnd(reason, ending_words.quorum_lost(key, len(failed), quorum, last.name, why))


def _elsewhere(context: ReconcileContext) -> int:
    """Learners elsewhere that may be the quorum. Of those that this operator does not run it only knows whether they contribute."""
    return contributing_outside(context) + counted_elsewhere(context).desired


def time_to_live(context: ReconcileContext, end: RecordedEnd, retention: Retention) -> tuple[Delete | None, float | None]:
    """Return the deletion of the job itself, or when to look again. It is due once ttlSecondsAfterFinished has passed and the claim is as
    the spec wants it; without ttlSecondsAfterFinished it never is, and both are None."""
    ttl = context.spec.ttl_seconds_after_finished
    if ttl is None:
        return None, None
    job = context.observed.job
    if context.now < end.at + ttl:
        return None, end.at + ttl
    if not retention.settled:
        return None, retention.retry_at  # the next change of the claim reconciles the job again
    why = f"ttlSecondsAfterFinished {ttl} s have passed"
    return Delete(names.DILOCO_JOBS, job.namespace, job.name, job.uid, why=why), None
