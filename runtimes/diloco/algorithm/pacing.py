"""How fast the syncer's clock runs: one outer step per mean local step of the learners.

The quorum alone does not limit the clock: with K = 1, M learners that are not aligned would drive it M times too fast, and every merge
would contain the work of one learner. So an outer step costs one *mean learner step*: the local steps of all live learners divided by
their number. A fragment then returns after H mean learner steps, that is `H * step_time / P` seconds between launches at any speed of
the network. Steps are counted and not predicted from times, so errors of averages do not add up.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 2.0
"""Upper bound of the saved budget, in mean learner steps: after a pause the clock continues at its usual speed."""
_ROUNDING: Final = 1e-9


class OuterStepBudget:
    """Budget in mean learner steps. Reports of learners add to it, an outer step spends 1."""

    def __init__(self) -> None:
        self._credit = 0.0

    def add(self, steps: int, live: int) -> None:
        """A learner has reported `steps` new local steps while `live` learners, at least this one, train."""
        self._credit = min(BURST, self._credit + steps / max(1, live))

    @property
    def ready(self) -> bool:
        """Whether the budget covers the next outer step."""
        return self._credit >= 1 - _ROUNDING

    def spend(self) -> None:
        """The outer step was taken."""
        self._credit = max(0.0, self._credit - 1)
