"""What the hardware of a unit does, by the unit's status: for `status.goodput`, and for the record of a run. Pure.

The phases are the uses of goodput (`diloco.goodput.Use`), and two in which a unit has no time that could be used.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import enum
from typing import Protocol

from diloco.goodput import Use

from diloco_operator.api.status import UnitState


class Phase(enum.StrEnum):
    """The phases, in the order in which a unit normally goes through them."""

    MISSING = Use.MISSING.value
    START = Use.START.value
    COMPILE = Use.COMPILE.value
    TRAINING = Use.TRAINING.value
    WAITING = Use.WAITING.value
    PAUSE = Use.PAUSE.value
    LOST_WORK = Use.LOST_WORK.value
    """No state shows this phase. It is known only afterwards, when a step has been lost."""
    RECOVERY = Use.RECOVERY.value
    RECONFIGURATION = Use.RECONFIGURATION.value
    FAILED = "failed"
    """The unit will not start again."""
    OVER = "over"
    """The unit is not to run: the job is complete or suspended, or wants fewer units."""

    @property
    def use(self) -> Use | None:
        """The use of the unit's time. None if it has no time that could be used."""
        return None if self in (Phase.FAILED, Phase.OVER) else Use(self.value)


class UnitFacts(Protocol):
    """The facts that decide the state of a unit (`reconcile.units.states`): of `api.status.UnitStatus`, or of reconcile's record of it."""

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
