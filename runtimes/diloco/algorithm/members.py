"""What the core knows of the joined units: newest metadata, speed, whether they are lost, time to answer.

A unit **counts** from its first report until it is lost: the clock divides the local steps of all by the number of those that count. Real
programs have uneven steps (an evaluation, a checkpoint, a compilation), so a unit without a report still counts as long as its process says
that it is alive. It is lost when that ends, or after an hour without a report: by then a hang is declared. A pause that it has declared is
no silence.

Each report costs the same however many units there are; what needs all of them is done once per outer step.

See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from diloco.algorithm.events import Metadata
from diloco.algorithm.pacing import MOST_LOCAL_STEPS
from diloco.algorithm.quorum import STEP_ALPHA, SYNC_ALPHA, MovingAverage

LOST_SECONDS: Final = 60.0
"""A unit of which nothing was heard for so many seconds, neither a report nor that its process is alive, is lost: it neither counts nor is
pulled until it reports again. A process that is alive says so every `contract.HEARTBEAT`, unless its program keeps its other threads from
running for a while."""
LOST_STEPS: Final = 4.0
"""Not before so many times its longest recent step: some programs do that in each."""
MOST_LOST_SECONDS: Final = 3600.0
"""A unit that is alive and has not reported for so many seconds hangs, and is lost. The operator, which knows the job's stallTimeout,
usually has replaced it before."""
SILENT_STEPS: Final = 3.0
"""A learner without a report for so many times its longest recent step is not waited for where the quorum depends on its answer."""
SILENT_SECONDS: Final = 1.0
"""Not before so many seconds: a shared machine has pauses of that length."""
FORGETS: Final = 0.99
"""By this factor the longest recent step shrinks with each step, and the shortest grows: to half in 69."""
BUNCHED_STEPS: Final = 64.0
"""Steps that a unit may report beyond those for which there was time: reports come in bunches, and clocks of processes stop."""
FASTEST: Final = 16.0
"""A unit counts as at most so many times as fast as the median of the others. One on other hardware may well be ten times as fast."""
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
    """When its newest metadata came or its last pause ended, seconds on the core's clock; None: no metadata yet."""
    alive_at: float = -math.inf
    """When its process last said that it is alive, with or without a step."""
    fresh: bool = False
    """Whether it has reported a new step since the last outer step."""
    counts: bool = False
    """Whether it has reported and is not lost."""
    duration: MovingAverage = field(default_factory=lambda: MovingAverage(STEP_ALPHA, even=True))
    """Seconds of a local step."""
    longest: float = 0.0
    """Seconds of its longest recent step, see `FORGETS`."""
    shortest: float = 0.0
    """Seconds of its shortest recent step; 0: unknown."""
    least: float = 0.0
    """Seconds that a step of it takes at least, as the others say, see `FASTEST`; 0: unknown."""
    counted_at: float = 0.0
    """When its newest steps were counted."""
    bunched: float = BUNCHED_STEPS
    """Steps that it may report now beyond those for which there was time since then."""
    paused_until: float = -math.inf
    """When its declared pause must be over."""
    answer: MovingAverage = field(default_factory=lambda: MovingAverage(SYNC_ALPHA))
    """Seconds from a pull to the push, late answers included."""
    missed: bool = False
    """Its last pull was closed without it, and it has not answered since."""
    resting: bool = False
    """It was told to rest: the clock waits for the quorum, and it is as far ahead as it may be."""

    def report(self, metadata: Metadata, now: float) -> int:
        """Take metadata and return how many new local steps in it count: not more than there was time for."""
        new = metadata.local_step - self.local_step
        if self.heard is None:
            new, self.counted_at = min(new, 1), now  # steps from before it joined do not drive the clock
        self.heard = now
        self.steps = list(metadata.steps)
        if new <= 0:
            return 0
        self.local_step = metadata.local_step
        self.fresh = True
        if usable_step_seconds(metadata.step_seconds):
            # Durations are averaged, not speeds: one step of a millisecond would be a thousand steps a second.
            self.duration.add(metadata.step_seconds)
            self.longest = max(metadata.step_seconds, FORGETS * self.longest)
            self.shortest = min(metadata.step_seconds, self.shortest / FORGETS or math.inf)
        return self._countable(new, now)

    def _countable(self, new: int, now: float) -> int:
        """Return how many of so many new steps count. A unit that claims thousands in each report would run the clock alone."""
        seconds = max(self.least, self.shortest)
        since, self.counted_at = now - self.counted_at, now
        if not seconds:
            return new
        most = self.bunched + since / seconds
        counted = min(new, int(most))
        self.bunched = min(BUNCHED_STEPS, most - counted)
        return counted

    def pauses(self, until: float, now: float) -> None:
        """Note that its program takes no steps until `until`. One that lies in the past: its pause is over."""
        if until <= now < self.paused_until and self.heard is not None:
            self.heard = now
        self.paused_until = until

    @property
    def step_seconds(self) -> float:
        """Average duration of its steps, seconds; 0: unknown."""
        return self.duration.value or 0.0

    @property
    def speed(self) -> float:
        """Local steps per second, not more than `FASTEST` allows; 0: unknown."""
        return 1 / max(self.duration.value, self.least) if self.duration.value else 0.0

    @property
    def expected_at(self) -> float:
        """When its next report is due at its average speed, or its declared pause is over; infinity before the first report."""
        return math.inf if self.heard is None else max(self.heard + self.step_seconds, self.paused_until)

    @property
    def overdue_at(self) -> float:
        """From when on its report can come at any time or never: it has begun something longer than a step."""
        return self.expected_at + self.step_seconds

    @property
    def lost_at(self) -> float:
        """When it is lost if nothing more is heard of it."""
        if self.heard is None:
            return -math.inf
        works = max(self.heard, self.paused_until)
        silence = max(LOST_SECONDS, LOST_STEPS * self.longest)
        return min(works + MOST_LOST_SECONDS, max(works, self.alive_at) + silence)

    @property
    def silent_at(self) -> float:
        """From when on no answer is likely if no report comes. In a pause that it has declared none is to be expected."""
        if self.heard is None:
            return -math.inf
        return max(self.heard, self.paused_until) + max(SILENT_SECONDS, SILENT_STEPS * self.longest)

    def answer_deadline(self, launched_at: float) -> float:
        """Return until when to wait for an answer to a pull of `launched_at` where the quorum depends on it. Not at all after a missed
        pull."""
        return launched_at if self.missed else min(launched_at + self._expected_answer(), self.silent_at)

    def last_answer_deadline(self, launched_at: float) -> float:
        """Return until when to wait for an answer at the end of the job where the quorum depends on it. No later exchange makes up for
        one that is closed without answers, so one more pause of a shared machine is allowed for, also after a missed pull."""
        return min(launched_at + max(SILENT_SECONDS, self._expected_answer()), self.lost_at)

    def _expected_answer(self) -> float:
        if self.answer.value is None:
            return FIRST_ANSWER_SECONDS
        return ANSWER_TIMEOUT_FACTOR * max(self.answer.value, self.step_seconds)


class Members:
    """All joined units, and what the clock needs of all of them together."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self.fresh = 0
        """How many have reported a new step since the last outer step. To read."""
        self.counting = 0
        """How many count. To read."""
        self._look_at = math.inf
        """No unit that counts is lost before."""
        self._speeds = 0.0
        """Sum over the units that count and whose speed is known."""
        self._with_speed = 0
        self._fastest = 0.0
        """Since the last outer step."""
        self._untrained: list[tuple[float, int, Member]] = []
        """A heap of who may not have trained fragment `_untrained_of` since its adoption: (`expected_at` of then, number, member). What is
        not so any more is taken out when it is the first."""
        self._untrained_of: int | None = None
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, unit: str) -> bool:
        return unit in self._members

    def __getitem__(self, unit: str) -> Member:
        return self._members[unit]

    def get(self, unit: str) -> Member | None:
        """Return the member; None if it is not joined."""
        return self._members.get(unit)

    @property
    def step_seconds(self) -> float:
        """The mean learner step, seconds: 1 / mean(speed), over the units that count and whose speed is known; 0 if none is."""
        return self._with_speed / self._speeds if self._speeds > 0 else 0.0

    @property
    def outer_step_seconds(self) -> float:
        """How long an outer step takes that waits for nothing but the pace of the clock, see `pacing`; seconds, 0 if no speed is known."""
        return min(self.step_seconds, MOST_LOCAL_STEPS / self._fastest) if self._fastest else 0.0

    def join(self, member: Member) -> None:
        """Join a unit that is not joined."""
        self._members[member.unit] = member

    def leave(self, unit: str) -> bool:
        """Return whether it was joined."""
        member = self._members.pop(unit, None)
        if member is None:
            return False
        self.fresh -= member.fresh
        self.counting -= member.counts
        self._sum_up()
        return True

    def report(self, member: Member, metadata: Metadata, now: float) -> int:
        """Take metadata and return how many new local steps in it count."""
        speed, fresh, unknown = member.speed if member.counts else 0.0, member.fresh, not member.shortest
        new = member.report(metadata, now)
        self.fresh += member.fresh - fresh
        if not member.counts:
            member.counts = True
            self.counting += 1
            self._look_at = min(self._look_at, member.lost_at)
        self._note_untrained(member)
        present = member.speed
        if present != speed:
            self._with_speed += speed == 0.0
            self._speeds += present - speed
            self._fastest = max(self._fastest, present)
        if unknown and member.shortest:
            self._sum_up()  # at once: until the others are known, a unit may save up any number of steps
        return new

    def pauses(self, unit: str, until: float, now: float) -> None:
        """Note a pause, as `Member.pauses`. Ignored if the unit is not joined."""
        if (member := self._members.get(unit)) is not None:
            member.pauses(until, now)
            self._look_at = min(self._look_at, member.lost_at) if member.counts else self._look_at
            self._note_untrained(member)

    def alive(self, unit: str, now: float) -> None:
        """Note that the unit's process is alive, whatever its program does. Ignored if the unit is not joined."""
        if (member := self._members.get(unit)) is not None:
            member.alive_at = now

    def look(self, now: float) -> None:
        """Find who is lost by now."""
        if now < self._look_at:
            return
        for member in self._members.values():
            if member.counts and member.lost_at <= now:
                member.counts = False
        self.counting = sum(m.counts for m in self._members.values())
        self._look_at = min((m.lost_at for m in self._members.values() if m.counts), default=math.inf)
        self._sum_up()

    def stepped(self) -> None:
        """Count an outer step that was taken."""
        for member in self._members.values():
            member.fresh = False
        self.fresh = 0
        self._untrained_of = None
        self._sum_up()

    def merged(self, p: int) -> None:
        """Note that a version of fragment p goes out: none has trained it."""
        for member in self._members.values():
            member.steps[p] = 0
        self._untrained_of = None

    def expects(self, p: int, begin: float, end: float) -> bool:
        """Return whether the report of a unit that counts and has not trained fragment p since its adoption is due by `end`, and was not
        overdue at `begin`. `begin` never goes back between two outer steps."""
        if self._untrained_of != p:
            found = [(m.expected_at, next(self._numbers), m) for m in self._members.values() if m.counts and not m.steps[p]]
            heapq.heapify(found)
            self._untrained, self._untrained_of = found, p
        while self._untrained:
            expected_at, _, member = self._untrained[0]
            joined = self._members.get(member.unit) is member
            if joined and member.counts and not member.steps[p] and member.expected_at == expected_at and member.overdue_at >= begin:
                return expected_at <= end
            heapq.heappop(self._untrained)
        return False

    def _note_untrained(self, member: Member) -> None:
        """Note that a change was made in when it is expected, or in what it has trained."""
        p = self._untrained_of
        if p is None or member.steps[p]:
            return
        if len(self._untrained) > 2 * len(self._members):
            self._untrained_of = None  # most of it is not so any more
        else:
            heapq.heappush(self._untrained, (member.expected_at, next(self._numbers), member))

    def _sum_up(self) -> None:
        """Sum up anew, as errors of a sum that is only added to and subtracted from would grow."""
        self._compare()
        speeds = [speed for m in self._members.values() if m.counts and (speed := m.speed)]
        self._speeds, self._with_speed, self._fastest = math.fsum(speeds), len(speeds), max(speeds, default=0.0)

    def _compare(self) -> None:
        """Find what the lower median of the others says of each unit's steps, see `FASTEST`."""
        known = [m for m in self._members.values() if m.counts and m.shortest]
        shortest = sorted([m.shortest for m in known])
        middle = (len(shortest) - 2) // 2  # of all but one
        for m in known if len(known) > 1 else ():
            m.least = shortest[middle if m.shortest > shortest[middle] else middle + 1] / FASTEST


def usable_step_seconds(seconds: float) -> bool:
    """Return whether a reported duration can be that of a step."""
    return SHORTEST_STEP <= seconds <= LONGEST_STEP
