"""How long pushes take on one stream, and how long exchanges stay open: decides which pushes are worth sending.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from statistics import fmean, median
from typing import Final

REMEMBERED: Final = 8
"""Transfers, lifetimes and intervals that are compared, because on a busy machine a single one may be long or short."""
FRESH: Final = 0.05
"""An answer counts as fresh for this share of the interval between two answers. An overdue answer is expected within the same share."""
MARGIN: Final = 0.98
"""Share of an exchange's lifetime within which a push must arrive. If a push takes two of three outer steps, milliseconds decide."""


class PushTimes:
    """How long pushes of this stream took, how long exchanges stay open, and how often an answer is ready.

    A push under way keeps a newer one from the link. On a link that is just too slow, every push would begin late by the same part of a
    step and end too late, again and again. So a push that has waited is begun only if this brings more pushes into merges, in the same
    time, than waiting for the next answer and sending that. The chance that a push arrives in time comes from all pairs of the last
    transfer times and lifetimes. A comparison of their averages would give only 0 or 1.
    """

    def __init__(self, overlap_steps: int, now: Callable[[], float]) -> None:
        self._overlap_steps = overlap_steps
        self._now = now
        self._added: dict[int, float] = {}
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from when a push began to its arrival."""
        self._lifetimes: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from the answer to a pull to the end of its exchange."""
        self._answers: deque[float] = deque(maxlen=REMEMBERED + 1)
        """When answers were ready to be sent."""
        self._skipped = False
        self._last: int | None = None
        """The job's last outer step. None until it is known."""

    def ends_at(self, t: int) -> None:
        self._last = t

    def added(self, t: int) -> None:
        """Note that the answer to the pull of outer step `t` is ready to be sent."""
        self._added[t] = self._now()
        self._answers.append(self._added[t])

    def clock(self, t: int) -> None:
        for step in [step for step in self._added if step + self._overlap_steps < t]:
            added = self._added.pop(step)
            if step + self._overlap_steps + 1 == t:
                self._lifetimes.append(self._now() - added)

    def took(self, seconds: float) -> None:
        """Note how long a complete transfer took."""
        self._durations.append(seconds)

    def given_up_after(self, seconds: float) -> None:
        """Note that a transfer was ended unfinished after `seconds`, because its exchange was over. It would have taken longer."""
        if self._durations and seconds > median(self._durations):
            self._durations.append(seconds)

    def worth_sending(self, t: int) -> bool:
        """Whether to begin the push of outer step `t` now. If not, wait for the next answer.

        Two answers in a row are never skipped, because times change. At the end of the job every push is sent: the syncer waits for it, and
        no next answer comes.
        """
        if self._last is not None and t + self._overlap_steps >= self._last:
            return True
        waited = self._now() - self._added.get(t, self._now())
        self._skipped = not self._skipped and self._is_better_left(waited)
        return not self._skipped

    def _is_better_left(self, waited: float) -> bool:
        if not self._durations or not self._lifetimes or len(self._answers) < 2:
            return False
        interval = (self._answers[-1] - self._answers[0]) / (len(self._answers) - 1)
        chance_of_next = self._chance(0.0)
        if not chance_of_next:
            return waited > FRESH * interval
        duration = fmean(self._durations)
        until_next = max(FRESH * interval, interval - waited)
        # Merges per second of link time: this push now, against the next answer after a wait in which the link is idle.
        return self._chance(waited) * (duration + until_next) < chance_of_next * duration

    def _chance(self, waited: float) -> float:
        """Return the probability, 0..1, that a push arrives in time if it begins `waited` seconds after its answer was ready."""
        lifetimes = sorted(MARGIN * lifetime for lifetime in self._lifetimes)
        in_time = sum(len(lifetimes) - bisect_right(lifetimes, waited + duration) for duration in self._durations)
        return in_time / (len(self._durations) * len(lifetimes))
