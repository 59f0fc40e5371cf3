"""Units that this operator does not run, in other clusters or outside every one: what they do, as their syncer says. Pure.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diloco_operator.api.phases import Phase
from diloco_operator.api.status import ReportedUnit, Status
from diloco_operator.report import UnitPhase, UnitReport

from diloco_local.record.lines import PhaseBegan


class UnitElsewhere(NamedTuple):
    name: str
    state: UnitPhase
    attempt: int
    trained: bool
    """Tokens of it are in the global parameters."""
    resting: bool = False
    """It rests until the quorum trains. Only a report says so."""
    paused: bool = False
    """Its program takes no steps for a while. Only a report says so."""

    @property
    def phase(self) -> Phase:
        match self.state:
            case UnitPhase.JOINING:
                return Phase.RECOVERY if self.trained else Phase.START
            case UnitPhase.CONTRIBUTING if self.resting:
                return Phase.WAITING
            case UnitPhase.CONTRIBUTING:
                return Phase.PAUSE if self.paused else Phase.TRAINING
            case UnitPhase.DONE:
                return Phase.OVER
            case UnitPhase.DISCONNECTED | UnitPhase.REFUSED:
                return Phase.MISSING

    @property
    def works(self) -> bool:
        return self.state in (UnitPhase.JOINING, UnitPhase.CONTRIBUTING)

    def began(self, job: str, at: float) -> PhaseBegan:
        """The line that it is as it is from `at` on."""
        return PhaseBegan(at=at, job=job, unit=self.name, phase=self.phase, state=self.state.value, attempt=self.attempt)


def of_report(unit: UnitReport) -> UnitElsewhere:
    return UnitElsewhere(unit.unit, unit.phase, unit.attempt, unit.tokens > 0, unit.resting_seconds > 0, bool(unit.pause))


def of_status(unit: ReportedUnit) -> UnitElsewhere | None:
    """None if it has not joined, or if this version does not know its state."""
    if unit.state not in UnitPhase:
        return None
    return UnitElsewhere(unit.name, UnitPhase(unit.state), unit.attempt, unit.tokens > 0)


def in_status(status: Status) -> Iterator[UnitElsewhere]:
    yield from (unit for _, reported in status.elsewhere if (unit := of_status(reported)) is not None)
