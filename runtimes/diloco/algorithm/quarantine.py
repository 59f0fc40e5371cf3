"""When a unit may no longer take part: the guards refuse what it sends again and again.

After each refusal the unit takes the job's parameters anew. A fault that is over by then costs it nothing more. A unit that is refused
again before it has contributed cleanly for some cycles is quarantined at last. As long as the guards accept nothing from others, the job
itself may be the cause: then they learn anew first, and only a unit that they still refuse is quarantined, so that the failure shows.
Pure. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from diloco.algorithm.guards import FORGET_AFTER

REFUSALS: Final = 3
"""So many refusals quarantine a unit while contributions of others are accepted."""
REFUSALS_ALONE: Final = 3 * FORGET_AFTER
"""So many do so in any case."""
CLEAN_CYCLES: Final = 4
"""After so many accepted contributions per fragment without a refusal between them, earlier ones are forgotten. A defect may be in one
fragment alone, so what counts is whole cycles."""


@dataclass(slots=True)
class Record:
    """The record of a unit that was refused lately."""

    refusals: int = 0
    clean: int = 0
    """Accepted contributions since the last refusal."""
    others_accepted: bool = False
    """Whether a contribution of another unit was accepted since the first refusal."""

    @property
    def hopeless(self) -> bool:
        return self.refusals >= (REFUSALS if self.others_accepted else REFUSALS_ALONE)


class Quarantine:
    """The records of one job."""

    def __init__(self, fragments: int) -> None:
        """Begin with `fragments`: P."""
        self._forgotten_after = CLEAN_CYCLES * fragments
        self._records: dict[str, Record] = {}

    def judged(self, refused: Collection[str], accepted: Collection[str]) -> set[str]:
        """Note that one merge was judged. Returns the units that must not take part any longer. Their records stay: the next refusal of a
        later attempt quarantines that one too, until it has contributed cleanly for long enough."""
        for unit in accepted:
            if (record := self._records.get(unit)) is not None:
                record.clean += 1
                if record.clean >= self._forgotten_after:
                    del self._records[unit]
        for unit in refused:
            record = self._records.setdefault(unit, Record())
            record.refusals += 1
            record.clean = 0
        for unit, record in self._records.items():
            record.others_accepted = record.others_accepted or any(other != unit for other in accepted)
        return {unit for unit in refused if self._records[unit].hopeless}
