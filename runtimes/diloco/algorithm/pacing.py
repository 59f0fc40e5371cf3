"""How fast the syncer's clock runs: one outer step per mean local step of the learners, and at least one per 1.5 steps of the fastest.

The quorum alone does not limit the clock: with K = 1, M learners that are not aligned would drive it M times too fast, and every merge
would contain the work of one learner. So an outer step costs one *mean learner step*: the local steps of all learners that count, divided
by their number. A silent learner counts until it is lost, see `members`: if it were left out at once, the clock would run ahead of all
during each long step of one learner. A fragment then returns after H mean learner steps, that is `H * step_time / P` seconds between
launches at any speed of the network. Steps are counted and not predicted from times, so errors of averages do not add up.

A learner that is much faster than the mean would take many times H local steps between two adoptions of a fragment. A learner never waits,
so the clock follows it: an outer step is also due when one learner has done `MOST_LOCAL_STEPS` steps since the last one. The slower
learners then bring fewer steps to each merge, which lowers their weights.

A learner with uneven steps is fast for a while and then takes a long step. Its lead is counted over both: the outer steps that pass during
a long step allow for local steps after it.

While it waits for the quorum, the clock cannot follow. Then a learner rests when its lead is the largest that the clock can make up. What
it trained beyond that would come into the next merge all at once, and the outer optimizer's momentum would carry it far beyond.

See docs/decisions/0060-outer-clock-and-quorum.md.
See docs/decisions/0153-guards.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LOCAL_STEPS: Final = 1.5
"""The most local steps of one learner per outer step, so 1.5 H between two adoptions. The speeds of the paper's learners differ by 18 %, so
such jobs never reach it."""
LENIENCE: Final = 0.5
"""How far a learner may be ahead for a while, in units of H: steps have uneven lengths, and reports come in bunches."""
LEAST_LENIENCE: Final = 4.0
"""The least value of the same, in steps."""
MOST_BEHIND: Final = 0.25
"""How far the clock may fall behind the learners while it waits for answers, in units of H; it catches up afterwards. What it falls
behind beyond that, in a long pause, is forgotten."""
LEAST_BEHIND: Final = 2.0
"""The least value of the same, in outer steps."""
_CATCH_UP: Final = 2.0
"""Outer steps that the clock makes up at once when it goes on."""
REMEMBERED_GAPS: Final = 4
"""A learner's long step is remembered for this many times its own length, measured in outer steps."""
GAPS_BEHIND: Final = 3.0
"""How far a learner may be behind: as far as the outer steps in this many of its longest recent steps allow. With steps in random order,
long ones come in bunches, and so do short ones."""
_COUNTABLE: Final = 8.0
"""Additional local steps that may count in a weight, because reports come in bunches."""
_ROUNDING: Final = 1e-9


def countable_steps(outer_steps: int, sync_interval: int) -> float:
    """The most local steps in `outer_steps` outer steps that may count in a weight: what the clock allows for, plus H and some bunched
    reports. A learner that trained on while the syncer was away has done more, and its weight is that of a learner at the bound."""
    return MOST_LOCAL_STEPS * outer_steps + sync_interval + _COUNTABLE


@dataclass(slots=True)
class _Ahead:
    """How far one unit is ahead: its local steps beyond those that the outer steps have allowed for."""

    lead: float
    """In local steps. Never below -lenience: a unit that was slow before may not train on for as long while the clock stands still."""
    lead_with_gaps: float
    """The same, but it may go lower after long steps. A unit that evaluates for 300 steps and then trains 300 is not a fast one."""
    spent: int
    """Outer steps so far when the two were counted."""
    gap: int = 0
    """Outer steps that passed in its longest recent step."""
    gap_ended: int = 0
    """Outer steps so far when that step ended."""


class OuterStepBudget:
    """Budget in mean learner steps. Reports of learners add to it, an outer step spends 1.

    The cost of a call does not grow with the number of learners, except for `forget`.
    """

    def __init__(self, sync_interval: int) -> None:
        """`sync_interval`: H."""
        self._lenience = max(LEAST_LENIENCE, LENIENCE * sync_interval)
        self._overdue = MOST_LOCAL_STEPS * MOST_BEHIND * sync_interval
        self._furthest = self._overdue + _CATCH_UP * MOST_LOCAL_STEPS
        self._most_saved = max(LEAST_BEHIND, MOST_BEHIND * sync_interval)
        self._credit = 0.0
        self.worked = 0.0
        """Mean local steps so far, whether spent, saved or forgotten."""
        self._spent = 0
        """Outer steps so far."""
        self._ahead: dict[str, _Ahead] = {}
        self._most = -self._lenience
        """Upper bound of the units' present `lead_with_gaps`; exact above -lenience."""

    def add(self, unit: str, steps: int, counting: int) -> None:
        """The unit has reported `steps` new local steps. `counting`: how many learners count now, at least this one."""
        mean = steps / max(1, counting)
        self._credit = min(self._most_saved, self._credit + mean)
        self.worked += mean
        ahead = self._ahead.get(unit)
        if ahead is None:
            ahead = self._ahead[unit] = _Ahead(-self._lenience, -self._lenience, self._spent)
        gap = self._spent - ahead.spent
        if self._spent - ahead.gap_ended > REMEMBERED_GAPS * ahead.gap:
            ahead.gap, ahead.gap_ended = gap, self._spent
        elif 2 * gap >= ahead.gap:  # a step of the same kind: evaluations do not all take equally long
            ahead.gap, ahead.gap_ended = max(gap, ahead.gap), self._spent
        ahead.lead = min(self._furthest, self._present_lead(ahead) + steps)
        ahead.lead_with_gaps = min(self._furthest, self._present_lead_with_gaps(ahead) + steps)
        ahead.spent = self._spent
        self._most = max(self._most, ahead.lead_with_gaps)

    def forget(self, unit: str) -> None:
        """A unit has left. Idempotent."""
        if self._ahead.pop(unit, None) is not None:
            self._most = max((self._present_lead_with_gaps(other) for other in self._ahead.values()), default=-self._lenience)

    @property
    def ready(self) -> bool:
        """Whether the next outer step is due."""
        return max(self._credit, self._most / MOST_LOCAL_STEPS) >= 1 - _ROUNDING

    @property
    def overdue(self) -> bool:
        """Whether a learner is so far ahead that the clock should wait no longer for answers than this learner's outer steps last."""
        return self._most >= self._overdue

    def exhausted(self, unit: str) -> bool:
        """Whether the unit is so far ahead that the clock could not make up for one more step."""
        ahead = self._ahead.get(unit)
        return ahead is not None and self._present_lead(ahead) > self._furthest - 1

    def spend(self) -> None:
        """An outer step was taken: subtract its cost."""
        self._credit = max(0.0, self._credit - 1)
        self._spent += 1
        self._most = max(-self._lenience, self._most - MOST_LOCAL_STEPS)

    def _present_lead(self, ahead: _Ahead) -> float:
        return max(-self._lenience, ahead.lead - MOST_LOCAL_STEPS * (self._spent - ahead.spent))

    def _present_lead_with_gaps(self, ahead: _Ahead) -> float:
        least = max(self._lenience, GAPS_BEHIND * MOST_LOCAL_STEPS * ahead.gap)
        return max(-least, ahead.lead_with_gaps - MOST_LOCAL_STEPS * (self._spent - ahead.spent))
