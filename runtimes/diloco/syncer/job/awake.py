"""The time that the syncer was awake. Pure.

A process that was stopped, or that got no processor time, finds afterwards that every deadline is over, while the messages of its units
wait to be read. The core's clock leaves such a time out: no unit counts as silent because the syncer did not listen.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

from typing import Final

TICK: Final = 1.0
"""The engine looks at least this often, seconds."""
LONGEST_GAP: Final = 2 * TICK
"""Seconds between two looks. If more have passed, the process was not awake for the rest, which does not count."""


class AwakeClock:
    """Turns the time of a monotonic clock into the time of the core."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._slept = 0.0

    def look(self, now: float) -> None:
        """Note that the process is awake."""
        if self._looked_at is not None:
            self._slept += max(0.0, now - self._looked_at - LONGEST_GAP)
        self._looked_at = now

    def of(self, now: float) -> float:
        """Return the core's time at `now`, seconds."""
        return now - self._slept

    def back(self, awake: float) -> float:
        """Return when the core's time will be `awake`, if this process stays awake until then."""
        return awake + self._slept
