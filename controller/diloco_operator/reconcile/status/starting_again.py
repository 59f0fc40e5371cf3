"""How a job that has ended starts again: a failed one by a retry, a complete one with more steps. Pure.

Both are levels, not edges. A retry is due while `spec.retry` is above `status.retry`; the status that starts the job raises
`status.retry`. A complete job goes on while the spec has more `training.steps` than its status, or more `training.tokens` if its token
budget ended it; the next report raises what the status has. The old syncer's pod must be gone first: so any syncer's pod that a later
reconcile sees belongs to the new start, and its end is the end of the job.

See docs/decisions/0052-drain-and-retry.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diloco.contract import Training

from diloco_operator.api import names
from diloco_operator.api.reasons import CompleteReason, FailedReason
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord, write_unit
from diloco_operator.reconcile.status.assembly import with_conditions
from diloco_operator.reconcile.status.conditions import starting_again, waiting_to_start
from diloco_operator.reconcile.status.ending import RecordedEnd
from diloco_operator.reconcile.units.restarts import is_retry_due, start_fresh


@dataclass(frozen=True, slots=True)
class SecondStart:
    reason: FailedReason | CompleteReason
    why: str


def second_start(context: ReconcileContext, end: RecordedEnd) -> SecondStart | None:
    """Why a job that has ended starts again. None if it does not."""
    status = context.observed.job.status
    if not end.complete:
        if not is_retry_due(context):
            return None
        model = status.get("model")
        start = "from the beginning, because it has no snapshot"
        if model is not None:
            start = f"from its last snapshot, of outer step {model.get('step', 0)}"
        return SecondStart(FailedReason.RETRYING, f"retry {context.spec.retry}: the job starts again {start}")
    progress, training = status.get("progress") or {}, context.spec.training
    if not _has_more_to_do(progress, training):
        return None
    step, budget = progress.get("step", 0), f" or {training.tokens} tokens" if training.tokens is not None else ""
    why = f"the job goes on from its final snapshot, of outer step {step}, to {training.steps} steps{budget}"
    return SecondStart(CompleteReason.CONTINUING, why)


def _has_more_to_do(progress: Mapping[str, Any], training: Training) -> bool:
    """Whether a complete job has more to do. The CRD's rule for changes of a complete job (`api.rules`) decides the same way."""
    reached, committed = progress.get("steps"), progress.get("tokens", 0)
    if reached is None or (training.tokens is not None and training.tokens <= committed):
        return False
    ended_by_budget = "tokenBudget" in progress and committed >= progress["tokenBudget"]
    return training.steps > reached or (ended_by_budget and training.steps > progress.get("step", 0))


def status_of_start(context: ReconcileContext, start: SecondStart, records: Mapping[str, UnitStatusRecord]) -> dict[str, Any]:
    """Return the status with which the job starts again. One write changes everything that says so."""
    status = with_conditions(context.observed.job, starting_again(start.reason, start.why), context.now)
    training = context.spec.training
    progress = {key: value for key, value in (status.get("progress") or {}).items() if key not in ("heldOutLoss", "tokenBudget")}
    status.pop("endedWith", None)
    return {
        **status,
        **({"retry": context.spec.retry} if is_retry_due(context) else {}),
        "progress": {**progress, "steps": training.steps} | ({"tokenBudget": training.tokens} if training.tokens is not None else {}),
        "units": [write_unit(record) for record in records.values()],
    }


def status_while_waiting(context: ReconcileContext, start: SecondStart) -> dict[str, Any]:
    """Return the status on record, with what the start waits for."""
    waits = f"{start.why}, as soon as the pod {names.syncer_pod_name(context.observed.job.name)} of its last run has gone"
    return with_conditions(context.observed.job, waiting_to_start(start.reason, waits), context.now)


def fresh_units(context: ReconcileContext, start: SecondStart) -> dict[str, UnitStatusRecord]:
    """All units on record, with a new restart budget."""
    return {name: start_fresh(record, start.why, context.now) for name, record in context.records_before.items()}
