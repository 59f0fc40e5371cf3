"""Where the time of a job's accelerators goes. The simulator, the status of jobs, and the record of a run share this list. Pure.

The list follows Google's ML Goodput Measurement, in the terms of this project.

See docs/decisions/0041-what-a-syncer-says.md.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field


class Use(enum.StrEnum):
    """What a slice of a unit does at a moment: one use at a time. All but the first are badput."""

    TRAINING = "training"
    """Steps that were completed."""
    START = "start"
    """The first start of a unit, from when it has its slices until its program runs."""
    COMPILE = "compile"
    """The program of a first start compiles, until its first step begins."""
    RECOVERY = "recovery"
    """The unit starts again, often without the slice that failed: pause, start, compilation, copy of the parameters, until it trains."""
    RECONFIGURATION = "reconfiguration"
    """The unit takes a slice that has come back, or hands back its state to leave its slice."""
    WAITING = "waiting"
    """The unit is ready and rests until others train too, or the syncer serves."""
    PAUSE = "pause"
    """The program announced that it takes no steps for a while, for an evaluation, say."""
    LOST_WORK = "lost work"
    """A step that a failure ended."""
    MISSING = "missing hardware"
    """The slice itself is out, whatever its unit does; or a unit that should train has no slice."""


BADPUT = tuple(use for use in Use if use is not Use.TRAINING)


@dataclass
class Accounts:
    """Slice-seconds by use, of all units."""

    by_use: defaultdict[Use, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, use: Use, slices: int, missing: int, seconds: float) -> None:
        """Book that `slices` of a unit had this use for `seconds`, while `missing` others were out."""
        self.by_use[use] += slices * seconds
        self.by_use[Use.MISSING] += missing * seconds

    def include(self, other: Accounts) -> None:
        for use, spent in other.by_use.items():
            self.by_use[use] += spent

    @property
    def total(self) -> float:
        """Slice-seconds."""
        return sum(self.by_use.values())

    def share(self, use: Use) -> float:
        """The share of this use in all slice-seconds, 0..1; 0 if there are none."""
        return self.by_use[use] / self.total if self.total else 0.0

    @property
    def goodput(self) -> float:
        """The share of all slice-seconds that went into completed steps."""
        return self.share(Use.TRAINING)
