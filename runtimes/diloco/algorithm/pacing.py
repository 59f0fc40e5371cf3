"""How fast the syncer's clock runs: one outer step per mean local step of the learners, and at least one per 1.5 steps of the fastest.

The quorum alone does not limit the clock: with K = 1, M learners that are not aligned would drive it M times too fast, and every merge
would contain the work of one learner. So an outer step costs one *mean learner step*: the local steps of all live learners divided by
their number. A fragment then returns after H mean learner steps, that is `H * step_time / P` seconds between launches at any speed of
the network. Steps are counted and not predicted from times, so errors of averages do not add up.

A learner that is much faster than the mean would take many times H local steps between two adoptions of a fragment. A learner never waits,
so the clock follows it: an outer step is due as well when one learner has done `MOST_LOCAL_STEPS` steps since the one before. The slower
learners then bring fewer steps to each merge, and their weights say so.

The clock cannot follow while it waits for the quorum. There a learner that is as far ahead as the clock can ever catch up with rests: what
it trained beyond that would come into the next merge all at once, and the momentum of the outer optimizer would carry it far beyond.

See docs/decisions/0060-outer-clock-and-quorum.md. See docs/decisions/0165-rest-for-the-quorum.md.
See docs/decisions/0182-bounds-of-counters.md.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 2.0
"""Upper bound of the saved budget, in outer steps: after a pause the clock continues at its usual speed."""
MOST_LOCAL_STEPS: Final = 1.5
"""Local steps of one learner per outer step, so 1.5 H between two adoptions. The speeds of the paper's learners differ by 18 %; 1.5 leaves
such jobs alone."""
LENIENCE: Final = 4.0
"""Steps by which a learner may be ahead for a while: reports of whole steps come in bunches, also of one that is slower in the long run."""
MOST_BEHIND: Final = 0.25
"""How far the clock may fall behind the fastest learner while it waits for the answers of slower ones, in H; it catches up afterwards."""
_ROUNDING: Final = 1e-9


def countable_steps(outer_steps: int, sync_interval: int) -> float:
    """Of the local steps that a learner says it has done in so many outer steps, how many may count in a weight: what the clock allows for,
    and H with some bunched reports more. A learner that trained on while the syncer was away has more, and counts as one at the bound."""
    return MOST_LOCAL_STEPS * outer_steps + sync_interval + 2 * LENIENCE


class OuterStepBudget:
    """Budget in mean learner steps. Reports of learners add to it, an outer step spends 1."""

    def __init__(self, sync_interval: int) -> None:
        """`sync_interval`: H."""
        self._overdue = MOST_LOCAL_STEPS * MOST_BEHIND * sync_interval
        self._furthest = self._overdue + BURST * MOST_LOCAL_STEPS
        self._credit = 0.0
        self._ahead: dict[str, float] = {}
        """By unit: local steps beyond those that the outer steps have allowed for; from -LENIENCE to `_furthest`."""

    def add(self, unit: str, steps: int, live: int) -> None:
        """The unit has reported `steps` new local steps while `live` learners, at least this one, train."""
        self._credit = min(BURST, self._credit + steps / max(1, live))
        self._ahead[unit] = min(self._furthest, self._ahead.get(unit, -LENIENCE) + steps)

    def forget(self, unit: str) -> None:
        """The unit has left. Idempotent."""
        self._ahead.pop(unit, None)

    @property
    def ready(self) -> bool:
        """Whether the next outer step is due."""
        return max(self._credit, *(x / MOST_LOCAL_STEPS for x in self._ahead.values()), 0.0) >= 1 - _ROUNDING

    @property
    def overdue(self) -> bool:
        """Whether a learner is so far ahead of the clock that it waits no longer than its own outer steps last."""
        return any(x >= self._overdue for x in self._ahead.values())

    def exhausted(self, unit: str) -> bool:
        """Whether the unit is so far ahead of the clock that the clock would not catch up with one more step."""
        return self._ahead.get(unit, -LENIENCE) > self._furthest - 1

    def spend(self) -> None:
        """The outer step was taken."""
        self._credit = max(0.0, self._credit - 1)
        self._ahead = {unit: max(-LENIENCE, x - MOST_LOCAL_STEPS) for unit, x in self._ahead.items()}
