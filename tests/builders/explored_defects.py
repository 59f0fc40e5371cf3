"""What an explored job must never do, and what makes it do so."""

from __future__ import annotations

import enum


class Broken(AssertionError):
    """An invariant does not hold. The message begins with its name."""


class Defect(enum.Enum):
    """What is done wrongly between the machines."""

    BROADCAST_FIRST = "a merge is broadcast before it is durable"
    ANY_PULL = "an answer counts for whatever its unit is asked for now"
    NO_LANES = "versions of one stream overtake each other"
    LOST_RECORD = "the last record is not read after a crash"
    ROUNDED = "a unit that joins gets rounded values"
    FORGOTTEN = "a merge that is durable does not take its place"
