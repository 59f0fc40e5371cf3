"""How much of a job is done, as a unit sees it, also between the outer steps that it hears of.

Pure, and a function of the unit's adoptions alone. The ranks of a unit adopt at the same local steps, so they all see the same progress.

See docs/decisions/0166-progress-pauses-and-ends.md.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from diloco.learner.timetable import Timetable

_ADOPTIONS: Final = 9
"""Adoptions over which the speed of the job's clock is measured."""


class JobProgress:
    """The job's progress as one process sees it."""

    def __init__(self, table: Timetable, budget: int | None = None) -> None:
        """`budget`: tokens at which the job ends. None if it has no budget."""
        self._table = table
        self._budget = budget
        self._tokens = 0
        self._adoptions: deque[tuple[int, int]] = deque(maxlen=_ADOPTIONS)
        """(local step, outer step) of the last adoptions that brought a newer outer step."""
        self._furthest = 0.0

    def adopted(self, step: int, t: int, tokens: int = 0) -> None:
        """Note an adoption. Several may come at one step, in any order.

        Args:
            step: local step of this process before it
            t: outer step of the adopted version
            tokens: the whole job's committed tokens when that version was made
        """
        if self._adoptions:
            last_step, last = self._adoptions[-1]
            if t <= last:
                return
            if step == last_step:
                self._adoptions.pop()
        self._adoptions.append((step, t))
        self._tokens = max(self._tokens, tokens)

    def share(self, step: int, steps: int) -> float:
        """Return the share of the job that is done after local step `step`, 0..1: of its `steps` outer steps or of its token budget,
        whichever is further. Never less than before.

        Between two adoptions it grows at the speed of the last ones, but not beyond the outer step at which the next one is due.
        """
        outer_step = self._outer_step(step)
        done = outer_step / steps
        if self._budget and self._adoptions and (last := self._adoptions[-1][1]):
            # Assumes that each outer step commits about as many tokens as the earlier ones.
            done = max(done, self._tokens * outer_step / last / self._budget)
        self._furthest = max(self._furthest, min(1.0, done))
        return self._furthest

    def _outer_step(self, step: int) -> float:
        if not self._adoptions:
            return 0.0
        (first_step, first), (last_step, last) = self._adoptions[0], self._adoptions[-1]
        if last_step == first_step:
            return float(last)
        speed = (last - first) / (last_step - first_step)
        return min(last + speed * (step - last_step), float(self._table.next_step(last)))
