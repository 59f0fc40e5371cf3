"""What follows from a reason: the columns of the tables in `api.reasons` that code decides by. Pure.

A reason is a word of the API, for people and scripts. Code asks what follows from a reason and never compares it with a name, so a new
reason is one line of a table. A test makes sure of that.

See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import enum


class Follows(enum.Enum):
    """What follows for a unit from its reason."""

    NOT_MISSED = "The job gives the unit up on purpose, and does not miss it."
    NOT_WANTED = "The job wants fewer units."
    RETURNS_AT_ONCE = "It drains because a user wanted it so, and starts again as soon as its pods have gone."
    UNTIL_RESUMED = "It drains because the job is suspended."
    SLICE_LEFT = "While it drains, its slice may go to others: it comes back where the allotment lets it."
    NEXT_ELSEWHERE = "Its next attempt starts on another slice."
    QUOTA_LEFT = "Others may use its quota until it asks anew."
    PLATFORM_ENDS = "The platform takes its place away: what drains for it ends as a disruption."
    NO_FAILURE = "Its attempt ended, and nothing of it had failed."
    WOULD_REPEAT = "Another unit of the pool would fail in the same way."
    OTHER_MODEL = "Its parameters are not those of the job."
    NOT_THE_HOST = "Its host cannot be the cause of the failure."
    OTHER_HOSTS_FIRST = "Its host may be the cause of the failure: the job's units try others first."
    HAS_LEFT = "Its program has left the job by itself, though its pods may still run."
    JOB_WAS_DONE = "The last step was done before its program failed."
    SYMPTOM = "Another rank's end is the cause of the failure."
    POOL_SAYS_WHY = "The message of its pool says all that there is to say."
    GRANT_AWAITED = "A grantor has been asked, or is to be asked, and has not granted."


class AttemptEnd(enum.Enum):
    """What an Event says about the end of a unit's attempt."""

    NO_END = enum.auto()
    FAILURE = enum.auto()
    """The attempt failed. The unit's record says so, too."""
    OTHER_END = enum.auto()
    """The attempt ended without a failure. The unit's record does not keep that."""


class Lack(enum.Enum):
    """What keeps a pool from more units."""

    NOTHING = enum.auto()
    """Nothing: the pool has as many units as it may have."""
    SWITCHED_ON = enum.auto()
    """The pool is switched off."""
    ROOM_IN_JOB = enum.auto()
    """The job has as many units as it may have."""
    SLICES = enum.auto()
    """No fitting slice is free."""
    GRANT = enum.auto()
    """No fitting slice is free, and a grantor has been asked."""
    ADMISSION = enum.auto()
    """The API server refuses pods of the pool."""

    @property
    def of_slices(self) -> bool:
        """Whether the pool would have more units if the fleet had more slices."""
        return self in (Lack.SLICES, Lack.GRANT)


class Concern(enum.Enum):
    """What a condition with this reason is about, as far as code and pages about the job tell it apart."""

    NONE = enum.auto()
    OBSTACLE = enum.auto()
    """Something that the job needs cannot be made."""
    SUSPENSION = enum.auto()
    """The job is suspended; the condition Suspended says so."""
    HARDWARE = enum.auto()
    """Hardware is missing; the message of Placed says what."""
    QUORUM = enum.auto()
    """Learners are missing; if Degraded is True, its message says which."""
    SYNCER = enum.auto()
    """The syncer does not serve, or the operator does not hear of it."""
    MISSING_UNITS = enum.auto()
    """The message names the units that are missing, and why."""
    WARNING = enum.auto()
    """The job goes on, and a person should act."""
