"""How long pushes take on one stream, and how long exchanges live.

See docs/decisions/0150-bad-links.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median

LIFETIMES = 3
"""The lifetime of exchanges is the median of so many last ones: on a busy machine single outer steps are short or long."""


class PushTimes:
    """What pushes of this stream took, and how long exchanges stay open: whether a push that waits can still arrive in time.

    Without it a link just too slow can lose every push: each begins too late by the same part of a step, again and again.
    """

    def __init__(self, overlap_steps: int, now: Callable[[], float]) -> None:
        self._overlap_steps = overlap_steps
        self._now = now
        self._added: dict[int, float] = {}
        self._duration = 0.0
        """Seconds of the last complete transfer; 0: none yet."""
        self._lifetimes: deque[float] = deque(maxlen=LIFETIMES)
        """Seconds from the answer to a pull to the end of its exchange, the last times."""
        self._skipped = False

    def added(self, t: int) -> None:
        """The answer to the pull of outer step `t` is ready to be sent."""
        self._added[t] = self._now()

    def clock(self, t: int) -> None:
        """The syncer has taken outer step `t`."""
        for step in [step for step in self._added if step + self._overlap_steps < t]:
            added = self._added.pop(step)
            if step + self._overlap_steps + 1 == t:
                self._lifetimes.append(self._now() - added)

    def took(self, seconds: float) -> None:
        """A transfer is complete that took so long."""
        self._duration = seconds

    def worth_sending(self, t: int) -> bool:
        """Whether the push of outer step `t` can be there before its exchange is over. No is followed by yes: the link is measured anew."""
        waited = self._now() - self._added.get(t, self._now())
        lifetime = median(self._lifetimes) if self._lifetimes else math.inf
        self._skipped = not self._skipped and waited + self._duration > lifetime
        return not self._skipped
