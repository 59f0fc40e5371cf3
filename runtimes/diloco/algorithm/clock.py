"""Policies of the outer clock: when an outer step is due, for which learners its grace window stays open, and which learners are asked.

Jobs use `PullClock`. The paper's clock is benchmarks/evidence/report_clock.py.

See docs/decisions/0209-simulator.md.
"""

from __future__ import annotations

from typing import Protocol

from diloco.algorithm.members import Member, Members
from diloco.algorithm.pacing import OuterStepBudget


class Clock(Protocol):
    """What the coordinator asks at each report and outer step. The cost of a call does not grow with the number of learners, except for
    `forget`."""

    @property
    def worked(self) -> float:
        """Local steps so far, the mean over learners."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the next outer step is due, once the quorum is there."""
        ...

    @property
    def overdue(self) -> bool:
        """Whether a learner is so far ahead that it should wait no longer for answers than its own outer steps last."""
        ...

    def add(self, unit: str, steps: int, counting: int) -> None:
        """The unit has reported `steps` new local steps. `counting`: how many learners count now, at least this one."""
        ...

    def forget(self, unit: str) -> None:
        """A unit has left. Idempotent."""
        ...

    def exhausted(self, unit: str) -> bool:
        """Whether the unit, which has reported for the next outer step, must rest until the quorum is there."""
        ...

    def spend(self) -> None:
        """An outer step was taken: subtract its cost."""
        ...

    def waits_for(self, members: Members, fragment: int, begin: float, end: float) -> bool:
        """Whether a learner is worth waiting for in the grace window (`begin` to `end`, in seconds) of an exchange of the fragment."""
        ...

    def asks(self, member: Member, fragment: int) -> bool:
        """Whether the learner is asked for the fragment. Called right before the outer step is taken."""
        ...


class PullClock(OuterStepBudget):
    """An outer step costs a mean learner step, see `pacing`. Every learner that has trained the fragment is asked, whether it has just
    reported or not. The grace window is only for learners that cannot be asked yet."""

    def waits_for(self, members: Members, fragment: int, begin: float, end: float) -> bool:
        return members.expects(fragment, begin, end)

    def asks(self, member: Member, fragment: int) -> bool:
        return member.counts and member.steps[fragment] > 0
