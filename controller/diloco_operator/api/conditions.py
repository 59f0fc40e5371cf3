"""The types of a job's conditions. Their reasons are in `reasons`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class ConditionType(enum.StrEnum):
    """`status.conditions[].type`. All of them are always present once the operator has seen the job."""

    ACCEPTED = "Accepted"
    """The operator understood the spec and works on it."""
    PLACED = "Placed"
    """At least `learners.min` units have hardware."""
    TRAINING = "Training"
    """Outer steps go on: at least `training.quorum` learners contribute."""
    DEGRADED = "Degraded"
    """Fewer than `learners.min` learners contribute; the message says who is missing and why."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is set and no pod runs any more."""
    COMPLETE = "Complete"
    """The syncer reached `training.steps`. Terminal."""
    FAILED = "Failed"
    """The job cannot go on by itself. Terminal."""


TERMINAL = (ConditionType.COMPLETE, ConditionType.FAILED)


def on_record(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any] | None:
    """Return this condition as the status has it. None if it has none."""
    return next((condition for condition in status.get("conditions") or () if condition["type"] == kind), None)
