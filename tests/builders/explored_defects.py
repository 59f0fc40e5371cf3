"""What an explored job must never do, and what makes it do so."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import reject


class Broken(AssertionError):
    """An invariant does not hold. The message begins with its name."""


_wanted: list[str] = []


def broken(what: str) -> Broken:
    """Return the error, or end the run without one if only another invariant is looked for."""
    if _wanted and not what.startswith(f"{_wanted[-1]}:"):
        reject()
    return Broken(what)


@contextmanager
def looking_for(name: str) -> Iterator[None]:
    """Count only this invariant meanwhile: a defect may break others first. Which is drawn first depends on the modules that are loaded."""
    _wanted.append(name)
    try:
        yield
    finally:
        _wanted.pop()


class Defect(enum.Enum):
    """What is done wrongly between the machines."""

    BROADCAST_FIRST = "a merge is broadcast before it is durable"
    ANY_PULL = "an answer counts for whatever its unit is asked for now"
    NO_LANES = "versions of one stream overtake each other"
    LOST_RECORD = "the last record is not read after a crash"
    ROUNDED = "a unit that joins gets rounded values"
    FORGOTTEN = "a merge that is durable does not take its place"
