"""One exchange of one fragment, from pull to merge.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from diloco.algorithm.effects import Refusal
from diloco.algorithm.events import Marks
from diloco.algorithm.guards import Measured
from diloco.algorithm.members import Member

_ROUNDING: Final = 1e-6
"""Allowance for rounding errors: mean local steps are sums of many small parts."""


@dataclass(slots=True)
class Contribution:
    """One accepted answer; the shard holds its values."""

    weight: float
    """tokens^2 / steps, see `weights.weight`."""
    steps: int
    """Local steps since the learner had adopted the fragment."""
    marks: Marks
    measured: Measured
    """For the guards."""
    member: Member = field(repr=False)
    """The membership of the process that contributed: the unit may have joined anew since."""


@dataclass(slots=True)
class Exchange:
    """An exchange that is not merged yet, or a remembered one."""

    t: int
    fragment: int
    launched_at: float
    """Seconds on the core's clock."""
    worked_at_launch: float
    """Mean local steps so far at that moment."""
    asked: frozenset[str]
    """Units that were pulled."""
    waiting: set[str]
    """Units that were asked and are joined, whose answers are neither accepted nor refused."""
    arriving: set[str] = field(default_factory=set)
    """Units in `waiting` whose answers are admitted and being decoded."""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    """Why an answer does not count, by unit."""
    closed_at: float = 0.0
    waits_for: str = ""
    """The unit with the latest deadline when `closes_at` last compared them all."""
    quorum_at: float | None = None
    """When the answers reached the quorum; None before, and after so many were withdrawn that it is lost."""
    worked_at_quorum: float = 0.0
    """Mean local steps so far at that moment."""

    def answered(self, unit: str, quorum: int, now: float, worked: float) -> None:
        """The exchange waits no longer for `unit`. `worked`: mean local steps so far."""
        self.waiting.discard(unit)
        self.arriving.discard(unit)
        if self.quorum_at is None and len(self.contributions) >= quorum:
            self.quorum_at, self.worked_at_quorum = now, worked

    def withdraw(self, unit: str, quorum: int) -> None:
        """Remove the contribution of `unit`. If fewer than `quorum` are left, the exchange waits as it did before it had so many."""
        del self.contributions[unit]
        if len(self.contributions) < quorum:
            self.quorum_at = None

    def closes_at(self, now: float, deadline: Callable[[str], float], overlap_seconds: float, grace_seconds: float) -> float:
        """Return when to merge without the units that have not answered, once the overlap in outer steps is used up.

        With fewer answers than the quorum, the core waits for each unit until its `deadline`. With the quorum, the others get
        `grace_seconds` from the end of the overlap, or from the quorum if that came later, so that on a network slower than the overlap one
        fast answer does not exclude the others.
        """
        if not self.waiting:
            return self.launched_at
        if self.quorum_at is None:
            # As long as the exchange waits for this unit, it stays open. So the deadlines need not all be compared after each answer.
            if self.waits_for not in self.waiting or deadline(self.waits_for) <= now:
                self.waits_for = max(self.waiting, key=deadline)
            return deadline(self.waits_for)
        return max(self.launched_at + overlap_seconds, self.quorum_at) + grace_seconds

    def used_up(self, worked: float, overlap_steps: int, grace_steps: float) -> bool:
        """Whether the learners have taken as many steps as `closes_at` waits for, once the quorum has answered.

        `worked`: mean local steps so far. `closes_at` computes with average durations, which lag behind if steps are uneven; steps that
        were taken do not.
        """
        if self.quorum_at is None:
            return False
        # A launch follows a report. An answer may come right before the learners report, and that report is one more step: hence the 1.0.
        since = max(self.worked_at_launch + overlap_steps, self.worked_at_quorum + 1.0)
        return worked >= since + grace_steps - _ROUNDING
