"""Policies of the outer clock: when an outer step is due, for whom its grace window stays open, and who is asked.

`PullClock` is the one of jobs. The paper's is benchmarks/evidence/report_clock.py.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

from typing import Protocol

from diloco.algorithm.members import Member, Members
from diloco.algorithm.pacing import OuterStepBudget


class Clock(Protocol):
    """What the coordinator asks at each report and outer step. Every call but `forget` costs the same however many learners there are."""

    @property
    def worked(self) -> float:
        """Mean local steps so far."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the next outer step is due, once the quorum is there."""
        ...

    @property
    def overdue(self) -> bool:
        """Whether a learner is so far ahead that it waits no longer for answers than its own outer steps last."""
        ...

    def add(self, unit: str, steps: int, counting: int) -> None:
        """Count `steps` new local steps that the unit has reported while `counting` learners, at least this one, count."""
        ...

    def forget(self, unit: str) -> None:
        """Forget a unit that has left. Idempotent."""
        ...

    def exhausted(self, unit: str) -> bool:
        """Return whether the unit, which has reported for the next outer step, is to rest until the quorum is there."""
        ...

    def spend(self) -> None:
        """Spend the outer step that was taken."""
        ...

    def waits_for(self, members: Members, fragment: int, begin: float, end: float) -> bool:
        """Return whether a learner is worth waiting for in the grace window from `begin` to `end`, seconds, of an exchange of the
        fragment."""
        ...

    def asks(self, member: Member, fragment: int) -> bool:
        """Return whether the learner is asked for the fragment, at the moment before the outer step is taken."""
        ...


class PullClock(OuterStepBudget):
    """An outer step costs a mean learner step, see `pacing`. Every learner that has trained the fragment is asked, whether it has just
    reported or not; the window is only for those that cannot be asked yet."""

    def waits_for(self, members: Members, fragment: int, begin: float, end: float) -> bool:
        return members.expects(fragment, begin, end)

    def asks(self, member: Member, fragment: int) -> bool:
        return member.counts and member.steps[fragment] > 0
