"""How often one job may be written to. Pure.

Each write of the operator wakes the job again. If something else changes each time what was written (an admission webhook, another
controller, a server that shows another object), reconcile and write would repeat without end and without a pause.

See docs/decisions/0121-write-cost.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

BURST = 100
"""So many reconciles of a job may write without a pause: the start of a big job, or the loss of many hosts at once."""
PER_SECOND = 2.0
"""So many reconciles with writes a second are no burst, and pauses are no longer than their interval."""
_ENDLESS = 60
"""So many pauses in a row, which is half a minute, are worth a line in the log."""


class WriteLimit[K: Hashable]:
    """At most `burst` reconciles with writes at once for each key, and `per_second` on. `now`: seconds of a clock that does not go back."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND) -> None:
        self._interval = 1 / per_second
        self._burst = burst * self._interval
        self._due: dict[K, float] = {}
        """When all that was written would be done at the lasting rate."""
        self._pauses: dict[K, int] = {}

    def wrote(self, key: K, now: float) -> float:
        """A reconcile of `key` wrote something. Returns for how many seconds the next must wait; 0: not at all."""
        due = self._due[key] = max(self._due.get(key, -math.inf), now) + self._interval
        pause = max(0.0, due - now - self._burst)
        if pause:
            self._pauses[key] = self._pauses.get(key, 0) + 1
        else:
            self._pauses.pop(key, None)
        return pause

    def endless(self, key: K) -> bool:
        """True once, when `key` has been written to without end."""
        return self._pauses.get(key) == _ENDLESS

    def forget(self, key: K) -> None:
        """The job is gone."""
        self._due.pop(key, None)
        self._pauses.pop(key, None)
