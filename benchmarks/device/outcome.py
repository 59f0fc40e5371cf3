"""What one program showed of an adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.device.part import say
from benchmarks.device.script import EQUAL


@dataclass(frozen=True, slots=True)
class Outcome:
    program: str
    equal: int
    """Steps before the first adoption after which the parameters are the same bit for bit with and without a session."""
    repeats: bool
    """Two runs without a session give the same parameters, so that a difference is one of the session."""
    staged: bool
    """What was read is what the parameters were after that step."""
    adopted: bool
    """After the adoption the parameters are what was adopted."""
    waits: int
    """Calls that wait for the device in boundaries that move nothing."""
    waits_of_adoption: int
    waits_seen: int
    """In all, those of the program among them: on a GPU at least one, or nothing was counted."""

    @property
    def good(self) -> bool:
        """Return whether the session has changed nothing but what was adopted."""
        return self.equal == EQUAL and self.staged and self.adopted and not self.waits

    def say(self) -> None:
        say(
            self.program, self.equal, f"steps of {EQUAL} equal", repeats=self.repeats, staged_equal=self.staged, adopted_equal=self.adopted,
            waits_in_quiet_steps=self.waits, waits_of_adoption=self.waits_of_adoption, waits_seen=self.waits_seen,
        )  # fmt: skip


def failed(program: str, error: Exception) -> None:
    """Say that a program could not be looked at."""
    say(program, math.nan, f"steps of {EQUAL} equal", error=f"{type(error).__name__}: {error}"[:500])
