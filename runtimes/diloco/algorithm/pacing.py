"""How fast the syncer's clock runs: one outer step per mean local step of the learners.

Quorum alone does not hold the clock: with K = 1, M learners that are not aligned would drive it M times too fast, and every merge
would hold one learner's work. So an outer step costs one *mean learner step*: the local steps of all live learners divided by
their number. A fragment then returns after H mean learner steps, which is `H * step_time / P` between launches, whatever the
network's speed. Steps are counted, not predicted from times, so no error of an average adds up.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 2.0
"""Mean learner steps that can be saved up while the clock waits for something else. Whatever comes on top is forgotten: after a
pause the clock goes on, it does not race."""
_ROUNDING: Final = 1e-9


class OuterStepBudget:
    """Credit in mean learner steps; an outer step costs 1."""

    def __init__(self) -> None:
        self._credit = 0.0

    def add(self, steps: int, live: int) -> None:
        """A learner has reported `steps` new local steps; `live` learners (at least this one) are training."""
        self._credit = min(BURST, self._credit + steps / max(1, live))

    @property
    def ready(self) -> bool:
        """Whether the next outer step is paid for."""
        return self._credit >= 1 - _ROUNDING

    def spend(self) -> None:
        """The outer step was taken."""
        self._credit = max(0.0, self._credit - 1)
