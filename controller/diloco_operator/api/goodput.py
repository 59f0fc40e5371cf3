"""`status.goodput`: the time of a job's units by what it was used for.

The uses are the members of `diloco.goodput.Use`; tests/unit/diloco_operator/api/test_goodput.py compares the two lists.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

from typing import Annotated

from diloco.goodput import BADPUT, Use
from pydantic import Field, StringConstraints
from pydantic.alias_generators import to_camel

from diloco_operator.accelerators import MAX_NAME
from diloco_operator.api.base import ApiModel
from diloco_operator.kube.timestamps import Timestamp

_MOST = 1e15
"""Seconds. 2,048 units take 15,000 years to reach this."""


class UnitSeconds(ApiModel):
    """Seconds of all units together, by what they were used for. A unit of several hosts counts as one."""

    training: float = Field(0.0, ge=0, le=_MOST, description="Local steps; all other classes are badput.")
    start: float = Field(0.0, ge=0, le=_MOST, description="First starts, from the slice to the program: pods, images, the parameters.")
    compile: float = Field(0.0, ge=0, le=_MOST, description="Compilation of first starts, up to the first step.")
    recovery: float = Field(
        0.0, ge=0, le=_MOST, description="Units that start again, most often after a failure, until they train: pause, start, compilation."
    )
    reconfiguration: float = Field(0.0, ge=0, le=_MOST, description="Units that hand back their state to leave their slices.")
    waiting: float = Field(0.0, ge=0, le=_MOST, description="Units that are ready and rest until a quorum trains, or the syncer serves.")
    pause: float = Field(0.0, ge=0, le=_MOST, description="Pauses that programs announced, to evaluate, for example.")
    lost_work: float = Field(
        0.0, ge=0, le=_MOST, description="Steps that a failure ended: from the unit's last sign of work until the failure."
    )
    missing: float = Field(
        0.0, ge=0, le=_MOST, description="Units without hardware that the minima ask for, or that trained before and wait for a slice."
    )

    def of(self, use: Use) -> float:
        return float(getattr(self, field_of(use)))

    @property
    def total(self) -> float:
        return sum(self.of(use) for use in Use)


MAX_KINDS = 16
"""Kinds of hardware of which status counts the hours."""
MOST_HOURS = 1e12
type AcceleratorHours = Annotated[
    dict[Annotated[str, StringConstraints(max_length=MAX_NAME)], Annotated[float, Field(ge=0, le=MOST_HOURS)]], Field(max_length=MAX_KINDS)
]
"""Accelerator, as in the catalogue -> hours for which units held one of it."""


class GoodputStatus(ApiModel):
    """Where the time of the units went. It is written along with other changes, so it may be older than them by some seconds."""

    productive_share: float = Field(0.0, ge=0, le=1, description="Training in all time of the units, 0 to 1.")
    interruptions: int = Field(0, ge=0, description="Attempts that a failure or disruption ended.")
    unit_seconds: UnitSeconds = Field(
        default_factory=UnitSeconds,
        description="Time of the units by use, from when a unit is wanted until the job ends, is suspended, or gives it up.",
    )
    accelerator_hours: AcceleratorHours | None = Field(
        None,
        description="Hours for which units in this cluster held accelerators, by accelerator: a unit with 4 chips counts 4 hours an hour, "
        "from when it gets its slice until it leaves it. Absent: none held any.",
    )
    measured_at: Timestamp = Field(description="Up to when time is counted.")

    @property
    def badput(self) -> dict[Use, float]:
        """Use -> its share of all time, 0..1. Only uses other than training whose share is not 0, the largest first."""
        seconds, total = self.unit_seconds, self.unit_seconds.total
        shares = {use: seconds.of(use) / total for use in BADPUT if seconds.of(use) > 0}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))


def field_of(use: Use) -> str:
    """The name of the use in Python: `lost_work`."""
    return use.name.lower()


def key_of(use: Use) -> str:
    """The name of the use in the API: `lostWork`."""
    return to_camel(field_of(use))
