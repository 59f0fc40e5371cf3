"""How long the write of a job's status may be postponed. Pure.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations


class StatusPostponement:
    """Lets a status wait for at most `seconds` after its first postponement."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def postpone(self, now: float) -> bool:
        """Postpone the status, again or for the first time. False if it must be written. `now`: seconds of a clock that never goes back."""
        self._since = now if self._since is None else self._since
        return now - self._since < self._seconds

    def reset(self) -> None:
        """Begin anew: the status is written, or there is nothing left to write."""
        self._since = None
