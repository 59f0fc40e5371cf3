"""What the core knows of the joined units: newest metadata, speed, liveness, time to answer.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from diloco.algorithm.events import Metadata
from diloco.algorithm.pacing import MOST_LOCAL_STEPS
from diloco.algorithm.quorum import SPEED_ALPHA, SYNC_ALPHA, MovingAverage

SILENT_STEPS: Final = 3.0
"""A learner without a report for so many of its own steps is silent: neither pulled nor waited for until it reports again."""
SILENT_SECONDS: Final = 1.0
"""No learner is silent before so many seconds: a shared machine has pauses of that length."""
SHORTEST_STEP: Final = 1e-6
LONGEST_STEP: Final = 1e8
"""Seconds between which the duration of a step lies; any other is unknown. Sums and quotients of such numbers stay finite."""
ANSWER_TIMEOUT_FACTOR: Final = 2.0
"""Where the quorum depends on an answer, the core waits so many times the unit's average time to answer."""
FIRST_ANSWER_SECONDS: Final = 30.0
"""How long the core waits for the first answer of a unit."""


@dataclass(slots=True)
class Member:
    """One joined unit."""

    unit: str
    joined_t: int
    steps: list[int]
    """Per fragment, local steps since adoption as last reported; set to 0 when a broadcast goes out."""
    local_step: int = 0
    heard: float | None = None
    """When its newest metadata came, seconds on the core's clock; None: none yet."""
    fresh: bool = False
    """Whether it has reported a new step since the last outer step."""
    speed: MovingAverage = field(default_factory=lambda: MovingAverage(SPEED_ALPHA))
    """Local steps per second."""
    answer: MovingAverage = field(default_factory=lambda: MovingAverage(SYNC_ALPHA))
    """Seconds from a pull to the push, late answers included."""
    loss: float = math.nan
    """Training loss as last reported; NaN: never."""
    missed: bool = False
    """Its last pull was closed without it, and it has not answered since."""
    resting: bool = False
    """It was told to rest: the clock waits for the quorum, and it is as far ahead as it may be."""

    def report(self, metadata: Metadata, now: float) -> int:
        """Take metadata and return the number of new local steps in it."""
        new = metadata.local_step - self.local_step
        if self.heard is None:
            new = min(new, 1)  # steps from before it joined do not drive the clock
        self.heard = now
        self.steps = list(metadata.steps)
        if math.isfinite(metadata.loss):
            self.loss = metadata.loss
        if new <= 0:
            return 0
        self.local_step = metadata.local_step
        self.fresh = True
        if usable_step_seconds(metadata.step_seconds):
            # A moving average of speed, not of duration: one long pause (compilation, evaluation) counts as one slow step.
            self.speed.add(1 / metadata.step_seconds)
        return new

    @property
    def step_seconds(self) -> float:
        """Average duration of its steps, seconds; 0: unknown."""
        return 1 / self.speed.value if self.speed.value else 0.0

    @property
    def expected_at(self) -> float:
        """When its next report is due at its average speed; infinity before the first."""
        return math.inf if self.heard is None else self.heard + self.step_seconds

    @property
    def silent_at(self) -> float:
        """When it becomes silent if no report comes."""
        if self.heard is None:
            return -math.inf
        return self.heard + max(SILENT_SECONDS, SILENT_STEPS * self.step_seconds)

    def live(self, now: float) -> bool:
        """Whether its last report is recent enough to believe that it trains."""
        return now < self.silent_at

    def answer_deadline(self, launched_at: float) -> float:
        """Until when to wait for an answer to a pull of `launched_at` where the quorum depends on it. Not at all after a missed pull."""
        if self.missed:
            return launched_at
        expected = FIRST_ANSWER_SECONDS if self.answer.value is None else ANSWER_TIMEOUT_FACTOR * max(self.answer.value, self.step_seconds)
        return min(launched_at + expected, self.silent_at)


def usable_step_seconds(seconds: float) -> bool:
    """Whether a reported duration can be that of a step."""
    return SHORTEST_STEP <= seconds <= LONGEST_STEP


def outer_step_seconds(members: Iterable[Member]) -> float:
    """How long an outer step takes that waits for nothing but the pace of the clock, see `pacing`; seconds, 0 if no speed is known."""
    members = list(members)
    fastest = max((m.speed.value or 0.0 for m in members), default=0.0)
    return min(mean_step_seconds(members), MOST_LOCAL_STEPS / fastest) if fastest else 0.0


def mean_step_seconds(members: Iterable[Member]) -> float:
    """The mean learner step in seconds: 1 / mean(speed), over the members whose speed is known; 0 if none is."""
    speeds = [m.speed.value for m in members if m.speed.value]
    return len(speeds) / math.fsum(speeds) if speeds else 0.0
