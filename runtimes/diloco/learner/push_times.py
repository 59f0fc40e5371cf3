"""How long pushes take on one stream, and how long exchanges live.

See docs/decisions/0150-bad-links.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class PushTimes:
    """What pushes of this stream took, and how long exchanges stay open: whether a push that waits can still arrive in time.

    Without it a link just too slow can lose every push: each begins too late by the same part of a step, again and again.
    """

    def __init__(self, overlap_steps: int, now: Callable[[], float]) -> None:
        self._overlap_steps = overlap_steps
        self._now = now
        self._added: dict[int, float] = {}
        self._begun = 0.0
        self._duration = 0.0
        """Seconds of the last complete transfer; 0: none yet."""
        self._lifetime = math.inf
        """Seconds from the answer to a pull to the end of its exchange, the last time."""
        self._skipped = False

    def added(self, t: int) -> None:
        """The answer to the pull of outer step `t` is ready to be sent."""
        self._added[t] = self._now()

    def clock(self, t: int) -> None:
        """The syncer has taken outer step `t`."""
        for step in [step for step in self._added if step + self._overlap_steps < t]:
            added = self._added.pop(step)
            if step + self._overlap_steps + 1 == t:
                self._lifetime = self._now() - added

    def begun(self) -> None:
        """A transfer begins now."""
        self._begun = self._now()

    def sent(self) -> None:
        """It is complete."""
        self._duration = self._now() - self._begun

    def worth_sending(self, t: int) -> bool:
        """Whether the push of outer step `t` can be there before its exchange is over. No is followed by yes: the link is measured anew."""
        waited = self._now() - self._added.get(t, self._now())
        self._skipped = not self._skipped and waited + self._duration > self._lifetime
        return not self._skipped
