"""How often a unit may take the whole model. Pure.

A learner that joins anew is sent every fragment in float32. One that resumes is sent every fragment whose version it says it lacks. A
program that joins again and again, because it crashes at its first step or means harm, would fill the syncer's uplink, which all units
share. So the brake counts what a unit was sent whole, as a share of the model. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from typing import Final

AT_ONCE: Final = 8
"""Models that a unit may be sent in a row: preempted nodes come and go."""
SECONDS: Final = 15.0
"""Seconds after which a unit may be sent one more model."""
_ROUNDING: Final = 1e-6
"""Tolerance for the sum of the ranks' shares, which add up to one model."""


class JoinBrake:
    """What all units were sent at their joins. `now` is in seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        """For each unit how many models count against it, and at what time they did. One is forgotten every SECONDS."""

    def sent(self, unit: str, share: float, now: float) -> None:
        """Note that the unit is sent this share of the model, 0..1."""
        if share:
            self._used[unit] = self._of(unit, now) + share, now

    def wait(self, unit: str, share: float, now: float) -> float:
        """Return the seconds until the unit may be sent this share of the model. 0 if it may be at once."""
        beyond = self._of(unit, now) + share - AT_ONCE
        return beyond * SECONDS if share and beyond > _ROUNDING else 0.0

    def reason(self, unit: str, share: float, now: float) -> str:
        """Return for people why the unit must wait before it is sent this share. Empty if it need not wait."""
        wait = self.wait(unit, share, now)
        return f"unit {unit} was sent the whole model {AT_ONCE} times in a row; it may join again in {wait:.0f} s" if wait else ""

    def _of(self, unit: str, now: float) -> float:
        used, at = self._used.get(unit, (0.0, now))
        return max(0.0, used - (now - at) / SECONDS)
