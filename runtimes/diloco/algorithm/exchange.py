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
"""Mean local steps are sums of many small parts."""


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
    """The unit as it was joined when it contributed."""


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
    """Asked, joined, and neither accepted nor refused."""
    arriving: set[str] = field(default_factory=set)
    """Those among them that are admitted, and being decoded."""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    """By unit, why its answer does not count."""
    closed_at: float = 0.0
    """When it was closed."""
    waits_for: str = ""
    """The unit for which it was waited longest when that was last looked for."""
    quorum_at: float | None = None
    """When as many as the quorum had answered."""
    worked_at_quorum: float = 0.0
    """Mean local steps so far at that moment."""

    def answered(self, unit: str, quorum: int, now: float, worked: float) -> None:
        """Note that `unit` is not waited for any more. `worked`: mean local steps so far."""
        self.waiting.discard(unit)
        self.arriving.discard(unit)
        if self.quorum_at is None and len(self.contributions) >= quorum:
            self.quorum_at, self.worked_at_quorum = now, worked

    def closes_at(self, now: float, deadline: Callable[[str], float], overlap_seconds: float, grace_seconds: float) -> float:
        """Return when to merge without the units that have not answered, once the overlap in outer steps is used up.

        With fewer answers than the quorum, the core waits for each unit until `deadline` of it. With the quorum, the others get
        `grace_seconds` from the end of the overlap, or from the quorum if that came later: on a network slower than the overlap one fast
        answer does not exclude the others.
        """
        if not self.waiting:
            return self.launched_at
        if self.quorum_at is None:
            # One unit that is waited for yet is enough to know, so not all are looked at after each answer.
            if self.waits_for not in self.waiting or deadline(self.waits_for) <= now:
                self.waits_for = max(self.waiting, key=deadline)
            return deadline(self.waits_for)
        return max(self.launched_at + overlap_seconds, self.quorum_at) + grace_seconds

    def used_up(self, worked: float, overlap_steps: int, grace_steps: float) -> bool:
        """Return whether the learners have taken the steps for which `closes_at` waits, once the quorum has answered. `worked`: mean local
        steps so far. Averages of durations lag behind where steps are uneven; steps that were taken do not."""
        if self.quorum_at is None:
            return False
        # A launch follows a report. An answer comes at any time, also just before the learners report, which is one more step.
        since = max(self.worked_at_launch + overlap_steps, self.worked_at_quorum + 1.0)
        return worked >= since + grace_steps - _ROUNDING
