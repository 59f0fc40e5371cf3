"""What the hardware of a unit does, by the unit's status: for `status.goodput`, and for the record of a run. Pure.

It is the list of goodput (`diloco.goodput.Use`), and two things more in which a unit has no time that could be used.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import enum
from typing import Protocol

from diloco.goodput import Use

from diloco_operator.api.status import UnitState


class Phase(enum.StrEnum):
    """In the order in which a unit goes through them, as a rule."""

    MISSING = Use.MISSING.value
    START = Use.START.value
    COMPILE = Use.COMPILE.value
    TRAINING = Use.TRAINING.value
    WAITING = Use.WAITING.value
    PAUSE = Use.PAUSE.value
    LOST_WORK = Use.LOST_WORK.value
    """No state of a unit says so. It is known afterwards, when the step that it was in has been lost."""
    RECOVERY = Use.RECOVERY.value
    RECONFIGURATION = Use.RECONFIGURATION.value
    FAILED = "failed"
    """It will not start again."""
    OVER = "over"
    """Nothing of it is to run: the job is complete or suspended, or asks for fewer units."""

    @property
    def use(self) -> Use | None:
        """Return the use of its time; None: it has none."""
        return None if self in (Phase.FAILED, Phase.OVER) else Use(self.value)


class UnitFacts(Protocol):
    """What the state of a unit follows from (`reconcile.units.states`): `api.status.UnitStatus`, or what reconcile reads of it."""

    @property
    def state(self) -> UnitState: ...
    @property
    def reason(self) -> str: ...
    @property
    def slice(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    @property
    def steps(self) -> int: ...
