"""How long the write of a job's status may be postponed. Pure.

See docs/decisions/0121-write-cost.md.
"""

from __future__ import annotations

from collections.abc import Hashable


class StatusPostponement[K: Hashable]:
    """At most `seconds` for each key, from the first postponement until the status is written."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[K, float] = {}

    def allows(self, key: K, now: float) -> bool:
        """Whether the status of `key` may be postponed, again or for the first time. `now`: seconds of a clock that does not go back."""
        return now - self._since.setdefault(key, now) < self._seconds

    def reset(self, key: K) -> None:
        """The status is written, or there is nothing left to write."""
        self._since.pop(key, None)
