"""How fast the syncer's clock runs: one outer step per mean local step of the learners, and at least one per 1.5 steps of the fastest.

The quorum alone does not limit the clock: with K = 1, M learners that are not aligned would drive it M times too fast, and every merge
would contain the work of one learner. So an outer step costs one *mean learner step*: the local steps of all learners that count, divided
by their number. One that is silent counts until it is lost, see `members`: were it left out at once, each long step of one learner would
let the clock run ahead of all. A fragment then returns after H mean learner steps, that is `H * step_time / P` seconds between launches at
any speed of the network. Steps are counted and not predicted from times, so errors of averages do not add up.

A learner that is much faster than the mean would take many times H local steps between two adoptions of a fragment. A learner never waits,
so the clock follows it: an outer step is due as well when one learner has done `MOST_LOCAL_STEPS` steps since the one before. The slower
learners then bring fewer steps to each merge, and their weights say so.

A learner with uneven steps is fast for a while and then takes a long one. What it may be ahead by is counted over both: the outer steps
that pass in its long steps allow for local steps after them.

The clock cannot follow while it waits for the quorum. There a learner that is as far ahead as the clock can ever catch up with rests: what
it trained beyond that would come into the next merge all at once, and the momentum of the outer optimizer would carry it far beyond.

See docs/decisions/0060-outer-clock-and-quorum.md.
See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LOCAL_STEPS: Final = 1.5
"""Local steps of one learner per outer step, so 1.5 H between two adoptions. The speeds of the paper's learners differ by 18 %; 1.5 leaves
such jobs alone."""
LENIENCE: Final = 0.5
"""How far a learner may be ahead for a while, in H: steps are of uneven length, and reports come in bunches."""
LEAST_LENIENCE: Final = 4.0
"""The same in steps, at least."""
MOST_BEHIND: Final = 0.25
"""How far the clock may fall behind the learners while it waits for answers, in H; it catches up afterwards. What it falls
behind beyond that, in a long pause, is forgotten."""
LEAST_BEHIND: Final = 2.0
"""The same in outer steps, at least."""
_CATCH_UP: Final = 2.0
"""Outer steps that the clock, once it goes on, makes up for at once."""
REMEMBERED_GAPS: Final = 4
"""The longest recent step of a learner is one that ended no more than so many times its own length ago, in outer steps."""
GAPS_BEHIND: Final = 3.0
"""A learner may be behind by what the outer steps in so many of its longest recent steps allow for: with steps in random order long ones
come in bunches, and so do short ones."""
_COUNTABLE: Final = 8.0
"""Local steps beyond the others that may count in a weight: reports come in bunches."""
_ROUNDING: Final = 1e-9


def countable_steps(outer_steps: int, sync_interval: int) -> float:
    """Return how many of the local steps that a learner says it has done in so many outer steps may count in a weight: what the clock
    allows for, and H with some bunched reports more. A learner that trained on while the syncer was away has more, and counts as one at the
    bound."""
    return MOST_LOCAL_STEPS * outer_steps + sync_interval + _COUNTABLE


@dataclass(slots=True)
class _Ahead:
    """How far one unit is ahead: its local steps beyond those that the outer steps have allowed for."""

    steps: float
    """Not below -lenience: what a unit did not do before is no reason to train on where the clock stands."""
    over_all: float
    """With what its longest recent step has cost it. A unit that evaluates for 300 steps and then trains 300 is no fast one."""
    spent: int
    """Outer steps so far when these were counted."""
    gap: int = 0
    """Outer steps that passed in its longest recent step."""
    gap_ended: int = 0
    """Outer steps so far at the end of it."""


class OuterStepBudget:
    """Budget in mean learner steps. Reports of learners add to it, an outer step spends 1.

    Each call but `forget` costs the same however many learners there are.
    """

    def __init__(self, sync_interval: int) -> None:
        """Begin with `sync_interval`: H."""
        self._lenience = max(LEAST_LENIENCE, LENIENCE * sync_interval)
        self._overdue = MOST_LOCAL_STEPS * MOST_BEHIND * sync_interval
        self._furthest = self._overdue + _CATCH_UP * MOST_LOCAL_STEPS
        self._most_saved = max(LEAST_BEHIND, MOST_BEHIND * sync_interval)
        self._credit = 0.0
        self.worked = 0.0
        """Mean local steps so far: spent, saved and forgotten ones."""
        self._spent = 0
        """Outer steps so far."""
        self._ahead: dict[str, _Ahead] = {}
        self._most = -self._lenience
        """Upper bound of how far the units are ahead over all now; exact above -lenience."""

    def add(self, unit: str, steps: int, counting: int) -> None:
        """Count `steps` new local steps that the unit has reported while `counting` learners, at least this one, count."""
        mean = steps / max(1, counting)
        self._credit = min(self._most_saved, self._credit + mean)
        self.worked += mean
        ahead = self._ahead.get(unit)
        if ahead is None:
            ahead = self._ahead[unit] = _Ahead(-self._lenience, -self._lenience, self._spent)
        gap = self._spent - ahead.spent
        if self._spent - ahead.gap_ended > REMEMBERED_GAPS * ahead.gap:
            ahead.gap, ahead.gap_ended = gap, self._spent
        elif 2 * gap >= ahead.gap:  # one of its kind: evaluations do not all take as long
            ahead.gap, ahead.gap_ended = max(gap, ahead.gap), self._spent
        ahead.steps = min(self._furthest, self._now_ahead(ahead) + steps)
        ahead.over_all = min(self._furthest, self._over_all(ahead) + steps)
        ahead.spent = self._spent
        self._most = max(self._most, ahead.over_all)

    def forget(self, unit: str) -> None:
        """Forget a unit that has left. Idempotent."""
        if self._ahead.pop(unit, None) is not None:
            self._most = max((self._over_all(other) for other in self._ahead.values()), default=-self._lenience)

    @property
    def ready(self) -> bool:
        """Whether the next outer step is due."""
        return max(self._credit, self._most / MOST_LOCAL_STEPS) >= 1 - _ROUNDING

    @property
    def overdue(self) -> bool:
        """Whether a learner is so far ahead of the clock that it waits no longer than its own outer steps last."""
        return self._most >= self._overdue

    def exhausted(self, unit: str) -> bool:
        """Return whether the unit is so far ahead of the clock that the clock would not catch up with one more step."""
        ahead = self._ahead.get(unit)
        return ahead is not None and self._now_ahead(ahead) > self._furthest - 1

    def spend(self) -> None:
        """Spend the outer step that was taken."""
        self._credit = max(0.0, self._credit - 1)
        self._spent += 1
        self._most = max(-self._lenience, self._most - MOST_LOCAL_STEPS)

    def _now_ahead(self, ahead: _Ahead) -> float:
        return max(-self._lenience, ahead.steps - MOST_LOCAL_STEPS * (self._spent - ahead.spent))

    def _over_all(self, ahead: _Ahead) -> float:
        least = max(self._lenience, GAPS_BEHIND * MOST_LOCAL_STEPS * ahead.gap)
        return max(-least, ahead.over_all - MOST_LOCAL_STEPS * (self._spent - ahead.spent))
