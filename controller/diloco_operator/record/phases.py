"""What a unit's hardware does, as a record and its pictures say it. Pure.

What the list of goodput names as well (`diloco.goodput.Use`) has its name from there.
"""

from __future__ import annotations

import enum

from diloco.goodput import Use

from diloco_operator.api.job import UnitState, UnitStatus
from diloco_operator.api.reasons import UnitReason


class Phase(enum.StrEnum):
    """In the order in which a unit goes through them, as a rule."""

    MISSING = Use.MISSING.value
    """It has no slice, and has not trained yet."""
    START = Use.START.value
    """Its pods and its program start, and take the job's parameters."""
    COMPILE = Use.COMPILE.value
    """It has the parameters, and its first step is under way."""
    TRAINING = Use.TRAINING.value
    WAITING = Use.WAITING.value
    """It rests until a quorum trains."""
    PAUSE = "pause"
    """Its program takes no steps for a while, as it announced."""
    RECOVERY = Use.RECOVERY.value
    """It was lost, and does not train again yet: with its wait, start and compilation."""
    DRAIN = "drain"
    FAILED = "failed"
    """It will not start again."""
    OVER = "over"
    """Nothing of it is to run: the job is complete or suspended, or asks for fewer units."""


def phase_of(unit: UnitStatus, *, trained: bool = False) -> Phase:
    """Of a unit in this state. `trained`: it has trained before, in this attempt or an earlier one."""
    match unit.state:
        case UnitState.TRAINING | UnitState.JOINING if unit.reason == UnitReason.PAUSED:
            return Phase.PAUSE
        case UnitState.TRAINING:
            return Phase.WAITING if unit.reason == UnitReason.WAITING_FOR_QUORUM else Phase.TRAINING
        case UnitState.BACKING_OFF:
            return Phase.RECOVERY
        case UnitState.PENDING | UnitState.STARTING | UnitState.JOINING:
            if unit.state is UnitState.PENDING and unit.reason in (UnitReason.SUSPENDED, UnitReason.SCALED_DOWN):
                return Phase.OVER
            if trained or unit.ended_attempt:
                return Phase.RECOVERY
            return _BEFORE[unit.state] if unit.reason != UnitReason.FIRST_STEP else Phase.COMPILE
        case UnitState.DRAINING:
            return Phase.DRAIN
        case UnitState.FAILED:
            return Phase.FAILED
        case UnitState.COMPLETED:
            return Phase.OVER


_BEFORE = {UnitState.PENDING: Phase.MISSING, UnitState.STARTING: Phase.START, UnitState.JOINING: Phase.START}
