"""How often a unit may take the whole model. Pure.

A learner that joins anew is sent every fragment in float32. One that does so again and again (a program that crashes at its first step, or
one that means harm) would fill the syncer's uplink, which all units share. See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from typing import Final

AT_ONCE: Final = 8
"""Joins that a unit may do in a row: preempted nodes come and go."""
SECONDS: Final = 15.0
"""After so many seconds it may do one more."""


class JoinBrake:
    """The joins of all units. `now` is in seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        """By unit: joins that are not forgotten yet, and when that was so."""

    def joined(self, unit: str, now: float) -> None:
        """The unit is sent the whole model."""
        self._used[unit] = self._of(unit, now) + 1, now

    def wait(self, unit: str, now: float) -> float:
        """Seconds until the unit may join; 0: now."""
        return max(0.0, (self._of(unit, now) + 1 - AT_ONCE) * SECONDS)

    def _of(self, unit: str, now: float) -> float:
        used, at = self._used.get(unit, (0.0, now))
        return max(0.0, used - (now - at) / SECONDS)
