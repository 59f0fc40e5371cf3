"""How long pushes take on one stream, and how long exchanges live: which of them are worth the link.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from statistics import mean, median
from typing import Final

REMEMBERED: Final = 8
"""Transfers, lifetimes and intervals that are compared: on a busy machine any single one is long or short."""
FRESH: Final = 0.05
"""An answer is fresh for this part of the time between two answers, and one that is overdue comes in such a part."""
MARGIN: Final = 0.98
"""The part of a lifetime in which a push must arrive. Where it takes two outer steps of three, milliseconds decide."""


class PushTimes:
    """What pushes of this stream took, how long exchanges stay open, and how often there is something to send.

    A push that is begun keeps the link from a newer one. On a link just too slow every push would begin late by the same part of a step and
    end too late, again and again. So a push that has waited is begun only if that brings more pushes into merges, in the same time, than to
    wait for the next answer and to begin with that. How likely a push is to arrive is what the last transfers and lifetimes say, each
    against each: a difference of averages would be either sure or hopeless.
    """

    def __init__(self, overlap_steps: int, now: Callable[[], float]) -> None:
        self._overlap_steps = overlap_steps
        self._now = now
        self._added: dict[int, float] = {}
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from the choice of a push to its arrival."""
        self._lifetimes: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from the answer to a pull to the end of its exchange."""
        self._answers: deque[float] = deque(maxlen=REMEMBERED + 1)
        """When answers were ready to be sent."""
        self._skipped = False
        self._last: int | None = None
        """The job's last outer step, once it is known."""

    def ends_at(self, t: int) -> None:
        """Note that outer step `t` is the job's last one."""
        self._last = t

    def added(self, t: int) -> None:
        """Note that the answer to the pull of outer step `t` is ready to be sent."""
        self._added[t] = self._now()
        self._answers.append(self._added[t])

    def clock(self, t: int) -> None:
        """Note that the syncer has taken outer step `t`."""
        for step in [step for step in self._added if step + self._overlap_steps < t]:
            added = self._added.pop(step)
            if step + self._overlap_steps + 1 == t:
                self._lifetimes.append(self._now() - added)

    def took(self, seconds: float) -> None:
        """Note that a complete transfer took so long."""
        self._durations.append(seconds)

    def given_up_after(self, seconds: float) -> None:
        """Note that a transfer was ended unfinished, as its exchange was over: it would have taken longer than this."""
        if self._durations and seconds > median(self._durations):
            self._durations.append(seconds)

    def worth_sending(self, t: int) -> bool:
        """Return whether to begin the push of outer step `t` now. False: wait for the next answer. No is followed by yes, as times
        change; and at the end of the job the syncer waits for what is under way, and no next answer comes."""
        if self._last is not None and t + self._overlap_steps >= self._last:
            return True
        waited = self._now() - self._added.get(t, self._now())
        self._skipped = not self._skipped and self._is_better_left(waited)
        return not self._skipped

    def _is_better_left(self, waited: float) -> bool:
        if not self._durations or not self._lifetimes or len(self._answers) < 2:
            return False
        interval = (self._answers[-1] - self._answers[0]) / (len(self._answers) - 1)
        next_one = self._chance(0.0)
        if not next_one:
            return waited > FRESH * interval
        duration = mean(self._durations)
        until_next = max(FRESH * interval, interval - waited)
        return self._chance(waited) * (duration + until_next) < next_one * duration

    def _chance(self, waited: float) -> float:
        """Return that a push arrives in time which is begun so many seconds after its answer was ready, 0..1."""
        pairs = itertools.product(self._durations, self._lifetimes)
        return mean(waited + duration < MARGIN * lifetime for duration, lifetime in pairs)
