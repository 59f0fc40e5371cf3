"""When a unit may no longer take part, because the guards refuse its contributions again and again.

After each refusal the unit takes the job's parameters anew. If its fault is over by then, it costs nothing more. A unit that is refused
again and again, without some clean cycles in between, is quarantined. As long as the guards accept nothing from other units, the job itself
may be the cause. Then the guards first learn anew, and only a unit that they still refuse is quarantined, so that the failure shows.
Pure. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from diloco.algorithm.guards import FORGET_AFTER

REFUSALS: Final = 3
"""Refusals that quarantine a unit while contributions of other units are accepted."""
REFUSALS_ALONE: Final = 3 * FORGET_AFTER
"""Refusals that quarantine a unit even if no contribution of another unit was accepted."""
CLEAN_CYCLES: Final = 4
"""Accepted contributions per fragment, without a refusal between them, after which earlier refusals are forgotten. Whole cycles count,
because a defect may be in one fragment alone."""


@dataclass(slots=True)
class Record:
    """The record of a unit that was refused recently."""

    refusals: int = 0
    clean: int = 0
    """Accepted contributions since the last refusal."""
    others_accepted: bool = False
    """Whether a contribution of another unit was accepted since the first refusal."""

    @property
    def hopeless(self) -> bool:
        return self.refusals >= (REFUSALS if self.others_accepted else REFUSALS_ALONE)


class Quarantine:
    def __init__(self, fragments: int) -> None:
        """`fragments`: P."""
        self._forgotten_after = CLEAN_CYCLES * fragments
        self._records: dict[str, Record] = {}

    def judged(self, refused: Collection[str], accepted: Collection[str]) -> set[str]:
        """One merge was judged. Returns the units that must no longer take part. Their records stay, so that one refusal quarantines a
        later attempt too, unless it has contributed cleanly for long enough."""
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
