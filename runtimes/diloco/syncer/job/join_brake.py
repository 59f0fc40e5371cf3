"""How often a unit may take the whole model. Pure.

A learner that joins anew is sent every fragment in float32, and one that resumes every fragment whose version it says it lacks. One that
does so again and again (a program that crashes at its first step, or one that means harm) would fill the syncer's uplink, which all units
share. So what counts is what is sent whole, in parts of the model. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from typing import Final

AT_ONCE: Final = 8
"""Models that a unit may be sent in a row: preempted nodes come and go."""
SECONDS: Final = 15.0
"""After so many seconds it may be sent one more."""
_ROUNDING: Final = 1e-6
"""The shares of the ranks of a unit add up to one model."""


class JoinBrake:
    """What all units were sent at their joins. `now` is in seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        """By unit: models that are not forgotten yet, and when that was so."""

    def sent(self, unit: str, share: float, now: float) -> None:
        """Note that the unit is sent this share of the model, 0..1."""
        if share:
            self._used[unit] = self._of(unit, now) + share, now

    def wait(self, unit: str, share: float, now: float) -> float:
        """Return seconds until the unit may be sent this share of the model; 0: now."""
        beyond = self._of(unit, now) + share - AT_ONCE
        return beyond * SECONDS if share and beyond > _ROUNDING else 0.0

    def reason(self, unit: str, share: float, now: float) -> str:
        """Return why the unit must wait before it is sent this share, for people; empty: it need not."""
        wait = self.wait(unit, share, now)
        return f"unit {unit} was sent the whole model {AT_ONCE} times in a row; it may join again in {wait:.0f} s" if wait else ""

    def _of(self, unit: str, now: float) -> float:
        used, at = self._used.get(unit, (0.0, now))
        return max(0.0, used - (now - at) / SECONDS)
