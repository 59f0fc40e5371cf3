"""The state of a job in one word, from its conditions and from the state on record. Pure.

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco_operator.api.conditions import TERMINAL, ConditionType
from diloco_operator.api.consequences import Concern
from diloco_operator.api.reasons import FALSE, TRUE, ConditionReason, Severity
from diloco_operator.api.state import OVER, JobState, state_on_record
from diloco_operator.reconcile.status.statements import Statements

_UNDER_WAY = (JobState.TRAINING, JobState.DEGRADED)


def under_way(status: Mapping[str, Any]) -> bool:
    """Whether the job has trained, or failed to, since it was created, resumed or retried. From then on whatever it lacks deserves an
    alarm."""
    return state_on_record(status) in _UNDER_WAY


def job_state(statements: Statements, status: Mapping[str, Any]) -> dict[str, str]:
    """Return `state` and `reason` of the next status; `status` is the one on record. Empty if the statements lack Accepted: then both stay
    as they were."""
    if ConditionType.ACCEPTED not in statements:
        return {}
    state, reason = _state(statements, status)
    return {"state": state.value, "reason": reason}


def _state(statements: Statements, status: Mapping[str, Any]) -> tuple[JobState, str]:
    on_record = state_on_record(status)
    for terminal in TERMINAL:
        if terminal in statements and statements[terminal].status == TRUE:
            return JobState(terminal.value), statements[terminal].reason
    if ConditionType.TRAINING in statements and statements[ConditionType.TRAINING].reason.concern is Concern.SUSPENSION:
        return JobState.SUSPENDED, statements[ConditionType.SUSPENDED].reason
    accepted = statements[ConditionType.ACCEPTED].reason
    if accepted.status == FALSE:
        return _not_looked_after(on_record, accepted, status)
    training, degraded = statements[ConditionType.TRAINING].reason, statements[ConditionType.DEGRADED].reason
    if degraded.status == TRUE and degraded.severity is Severity.WARNING:
        return JobState.DEGRADED, degraded
    if training.status == TRUE:
        return JobState.TRAINING, training
    if on_record in _UNDER_WAY:
        return JobState.DEGRADED, training
    return (JobState.QUEUED if training.concern is Concern.HARDWARE else JobState.STARTING), training


def _not_looked_after(on_record: JobState | None, accepted: ConditionReason, status: Mapping[str, Any]) -> tuple[JobState, str]:
    """The state of a job whose spec is not accepted: the operator leaves alone what runs."""
    if on_record in OVER:
        return on_record, status.get("reason", "")
    if on_record in _UNDER_WAY:
        return JobState.DEGRADED, accepted
    return JobState.SUSPENDED if on_record is JobState.SUSPENDED else JobState.NOT_ACCEPTED, accepted
