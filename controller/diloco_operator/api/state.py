"""The state of a job in one word, and how to read it from a status. `reconcile.status.job_state` decides it.

See docs/decisions/0138-job-state.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class JobState(enum.StrEnum):
    """Where a job is in its life, in one word."""

    NOT_ACCEPTED = "NotAccepted"
    """It has not trained, and the operator does not look after it: its spec cannot be used, or the operator lacks rights."""
    QUEUED = "Queued"
    """It has not trained yet, or not since it was resumed, and waits for hardware or for its turn."""
    STARTING = "Starting"
    """It has hardware, and has not trained yet, or not since it was resumed."""
    TRAINING = "Training"
    """Outer steps go on, and nothing is wrong."""
    DEGRADED = "Degraded"
    """Something is wrong: learners or the syncer are missing, snapshots fail, or the operator cannot look after the job."""
    SUSPENDED = "Suspended"
    """It is suspended, or about to be."""
    COMPLETE = "Complete"
    """The last step is done."""
    FAILED = "Failed"
    """It cannot go on by itself."""


OVER = (JobState.COMPLETE, JobState.FAILED)
"""States in which a job does not go on by itself."""


def syncer_runs(state: str) -> bool:
    """Whether a job in this state has a syncer. What its last report said is of now only then."""
    return state not in (*OVER, JobState.SUSPENDED)


def state_on_record(status: Mapping[str, Any]) -> JobState | None:
    """Read the state from a checked status. None if it has none yet."""
    return JobState(status["state"]) if "state" in status else None
