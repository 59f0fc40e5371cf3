"""How often one job may be written to. Pure.

Each write of the operator wakes the job again. If something else changes each time what was written (an admission webhook, another
controller, a server that shows another object), reconcile and write would repeat without end and without a pause.

See docs/decisions/0031-writes.md.
"""

from __future__ import annotations

import math

BURST = 100
"""Reconciles of a job that may write without a pause, as at the start of a big job, or when many hosts are lost at once."""
PER_SECOND = 2.0
"""Reconciles with writes, in a second, that are no burst. Pauses are no longer than their interval."""
_ENDLESS = 60
"""Pauses in a row, half a minute of them, that are worth a line in the log."""


class WriteLimit:
    """Allows `burst` reconciles with writes at once, and `per_second` after that. `now`: seconds of a clock that does not go back."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        self._interval = 1 / per_second
        self._burst = burst * self._interval
        self._due = -math.inf
        """When all reconciles so far would be done at the lasting rate."""
        self._pauses = 0
        """Pauses in a row."""

    def wrote(self, now: float) -> float:
        """Count a reconcile that wrote something. Return the seconds for which the next one must wait."""
        self._due = max(self._due, now) + self._interval
        pause = max(0.0, self._due - now - self._burst)
        self._pauses = self._pauses + 1 if pause else 0
        return pause

    @property
    def just_became_endless(self) -> bool:
        """True once, when the job has been written to without end."""
        return self._pauses == _ENDLESS
