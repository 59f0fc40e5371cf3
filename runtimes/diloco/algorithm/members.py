"""What the core knows about the joined units: newest metadata, speed, whether they are lost, time to answer.

A unit **counts** from its first report until it is lost: the clock divides the local steps of all units by the number of units that count.
Real programs have uneven steps (an evaluation, a checkpoint, a compilation), so a unit that is silent still counts as long as its process
says that it is alive. It is lost when that ends, and also after an hour without a report, which is taken for a hang. A pause that the unit
has declared is no silence.

The cost of a report does not grow with the number of units. What needs all units is done once per outer step.

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
"""A unit is lost after this many seconds without a report or a sign of life from its process: it neither counts nor is pulled until it
reports again. A live process gives a sign every `contract.HEARTBEAT`, unless its program keeps its other threads from running for a
while."""
LOST_STEPS: Final = 4.0
"""A unit is not lost before this many times its longest recent step: some programs keep other threads from running in every step."""
MOST_LOST_SECONDS: Final = 3600.0
"""A unit that is alive but has not reported for this many seconds hangs, and is lost. Usually the operator, which knows the job's
stallTimeout, has replaced it before."""
SILENT_STEPS: Final = 3.0
"""If the quorum depends on a learner's answer, the core waits until the learner has been silent for this many times its longest recent
step."""
SILENT_SECONDS: Final = 1.0
"""The least value of the same, in seconds: a shared machine has pauses of this length."""
FORGETS: Final = 0.99
"""With each step the longest recent step shrinks by this factor, and the shortest grows by it: half is forgotten in 69 steps."""
BUNCHED_STEPS: Final = 64.0
"""Steps that a unit may report beyond those that there was time for: reports come in bunches, and processes are stopped for a while."""
FASTEST: Final = 16.0
"""A unit counts as at most this many times as fast as the median of the others. On other hardware it may well be ten times as fast."""
SHORTEST_STEP: Final = 1e-6
LONGEST_STEP: Final = 1e8
"""Seconds. A step with a duration outside of these two has an unknown duration. Sums and quotients of durations within stay finite."""
ANSWER_TIMEOUT_FACTOR: Final = 2.0
"""If the quorum depends on an answer, the core waits this many times the unit's average time to answer."""
FIRST_ANSWER_SECONDS: Final = 30.0
"""Seconds that the core waits for the first answer of a unit."""


@dataclass(slots=True)
class Member:
    unit: str
    joined_t: int
    steps: list[int]
    """Local steps since the adoption of each fragment, as last reported; set to 0 when a broadcast goes out."""
    local_step: int = 0
    last_report_at: float | None = None
    """When its newest metadata came or its last pause ended, in seconds on the core's clock; None before the first metadata."""
    alive_at: float = -math.inf
    """When its process last said that it is alive."""
    fresh: bool = False
    """Whether it has reported a new step since the last outer step."""
    counts: bool = False
    """Whether it has reported and is not lost."""
    duration: MovingAverage = field(default_factory=lambda: MovingAverage(STEP_ALPHA, even=True))
    """Seconds of a local step."""
    longest: float = 0.0
    """Seconds of its longest recent step, see `FORGETS`."""
    shortest: float = 0.0
    """Seconds of its shortest recent step; 0 if unknown."""
    shortest_credible_step: float = 0.0
    """Seconds, judged by the other units, see `FASTEST`; 0 if unknown."""
    counted_at: float = 0.0
    """When its newest steps were counted."""
    spare_steps: float = BUNCHED_STEPS
    """Steps that it may report now beyond those that there was time for since `counted_at`."""
    paused_until: float = -math.inf
    """When its declared pause must be over."""
    answer: MovingAverage = field(default_factory=lambda: MovingAverage(SYNC_ALPHA))
    """Seconds from a pull to the push, late answers included."""
    missed: bool = False
    """Its last exchange was closed without its answer, and it has not answered since."""
    resting: bool = False
    """It was told to rest: the clock waits for the quorum, and the unit is as far ahead as it may be."""

    def report(self, metadata: Metadata, now: float) -> int:
        """Take a report, and return how many of its new local steps count: not more than there was time for."""
        new = metadata.local_step - self.local_step
        if self.last_report_at is None:
            new, self.counted_at = min(new, 1), now  # steps from before it joined do not drive the clock
        self.last_report_at = now
        self.steps = list(metadata.steps)
        if new <= 0:
            return 0
        self.local_step = metadata.local_step
        self.fresh = True
        if usable_step_seconds(metadata.step_seconds):
            # Averages of durations, not of speeds: one step of a millisecond would count as a thousand steps a second.
            self.duration.add(metadata.step_seconds)
            self.longest = max(metadata.step_seconds, FORGETS * self.longest)
            self.shortest = min(metadata.step_seconds, self.shortest / FORGETS or math.inf)
        return self._countable(new, now)

    def _countable(self, new: int, now: float) -> int:
        """Return how many of `new` steps count. Otherwise a unit that claims thousands in each report would drive the clock alone."""
        seconds = max(self.shortest_credible_step, self.shortest)
        since, self.counted_at = now - self.counted_at, now
        if not seconds:  # no unit has said yet how long a step takes
            return min(new, int(BUNCHED_STEPS))
        most = self.spare_steps + since / seconds
        counted = min(new, int(most))
        self.spare_steps = min(BUNCHED_STEPS, most - counted)
        return counted

    def pauses(self, until: float, now: float) -> None:
        """Its program takes no steps until `until`. A time in the past ends the pause."""
        # A pause that ends early counts as a sign of work now, or the time of the pause would look like silence.
        if until <= now < self.paused_until and self.last_report_at is not None:
            self.last_report_at = now
        self.paused_until = until

    @property
    def step_seconds(self) -> float:
        """Average duration of its steps in seconds; 0 if unknown."""
        return self.duration.value or 0.0

    @property
    def speed(self) -> float:
        """Local steps per second, at most what `FASTEST` allows; 0 if unknown."""
        return 1 / max(self.duration.value, self.shortest_credible_step) if self.duration.value else 0.0

    @property
    def expected_at(self) -> float:
        """When its next report is due, at its average speed or at the end of a declared pause. Infinity before the first report."""
        return math.inf if self.last_report_at is None else max(self.last_report_at + self.step_seconds, self.paused_until)

    @property
    def overdue_at(self) -> float:
        """When its report is so late that the unit must be doing something longer than a step: the report may come at any time."""
        return self.expected_at + self.step_seconds

    @property
    def lost_at(self) -> float:
        """When the unit is lost if nothing more is heard from it."""
        if self.last_report_at is None:
            return -math.inf
        works = max(self.last_report_at, self.paused_until)
        silence = max(LOST_SECONDS, LOST_STEPS * self.longest)
        return min(works + MOST_LOST_SECONDS, max(works, self.alive_at) + silence)

    @property
    def silent_at(self) -> float:
        """When an answer is no longer likely if no report comes before. In a declared pause no report is expected."""
        if self.last_report_at is None:
            return -math.inf
        return max(self.last_report_at, self.paused_until) + max(SILENT_SECONDS, SILENT_STEPS * self.longest)

    def answer_deadline(self, launched_at: float) -> float:
        """When to stop waiting for an answer to a pull of `launched_at` if the quorum depends on it. After a missed pull: at once."""
        return launched_at if self.missed else min(launched_at + self._expected_answer(), self.silent_at)

    def last_answer_deadline(self, launched_at: float) -> float:
        """The same at the end of the job. No later exchange makes up for one that is closed without answers, so this allows for a pause of
        a shared machine, and waits also after a missed pull."""
        return min(launched_at + max(SILENT_SECONDS, self._expected_answer()), self.lost_at)

    def _expected_answer(self) -> float:
        if self.answer.value is None:
            return FIRST_ANSWER_SECONDS
        return ANSWER_TIMEOUT_FACTOR * max(self.answer.value, self.step_seconds)


class Members:
    """All joined units, and what the clock needs to know about all of them together."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self.fresh = 0
        """How many units have reported a new step since the last outer step. For reading."""
        self.counting = 0
        """How many units count. For reading."""
        self._look_at = math.inf
        """No unit that counts is lost before this time."""
        self._speeds = 0.0
        """Sum of the known speeds of units that count."""
        self._with_speed = 0
        """How many speeds are in that sum."""
        self._fastest = 0.0
        """The highest speed since the last outer step."""
        self._untrained: list[tuple[float, int, Member]] = []
        """A heap of units that may not have trained fragment `_untrained_of` since its adoption: (`expected_at` at that time, number,
        member). An entry that is out of date is removed when it comes to the top."""
        self._untrained_of: int | None = None
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, unit: str) -> bool:
        return unit in self._members

    def __getitem__(self, unit: str) -> Member:
        return self._members[unit]

    def get(self, unit: str) -> Member | None:
        """None if the unit is not joined."""
        return self._members.get(unit)

    @property
    def step_seconds(self) -> float:
        """The mean learner step in seconds: 1 / mean(speed), over the units that count and whose speed is known; 0 if there are none."""
        return self._with_speed / self._speeds if self._speeds > 0 else 0.0

    @property
    def outer_step_seconds(self) -> float:
        """Duration in seconds of an outer step that only the pace of the clock holds up, see `pacing`; 0 if no speed is known."""
        return min(self.step_seconds, MOST_LOCAL_STEPS / self._fastest) if self._fastest else 0.0

    def join(self, member: Member) -> None:
        """Add a unit that is not joined."""
        self._members[member.unit] = member

    def leave(self, unit: str) -> bool:
        """Remove a unit. False if it was not joined."""
        member = self._members.pop(unit, None)
        if member is None:
            return False
        if member.fresh:
            self.fresh -= 1
        if member.counts:
            self.counting -= 1
        self._sum_up()
        return True

    def report(self, member: Member, metadata: Metadata, now: float) -> int:
        """Take a member's report, and return how many of its new local steps count."""
        speed = member.speed if member.counts else 0.0
        was_fresh, unknown = member.fresh, not member.shortest
        new = member.report(metadata, now)
        if member.fresh and not was_fresh:
            self.fresh += 1
        if not member.counts:
            member.counts = True
            self.counting += 1
            self._look_at = min(self._look_at, member.lost_at)
        self._note_untrained(member)
        present = member.speed
        if present != speed:
            if speed == 0.0:
                self._with_speed += 1
            self._speeds += present - speed
            self._fastest = max(self._fastest, present)
        if unknown and member.shortest:
            self._sum_up()  # at once, for `Member.shortest_credible_step`: before this is known, a unit may save up any number of steps
        return new

    def pauses(self, unit: str, until: float, now: float) -> None:
        """As `Member.pauses`. Ignored if the unit is not joined."""
        if (member := self._members.get(unit)) is not None:
            member.pauses(until, now)
            if member.counts:
                self._look_at = min(self._look_at, member.lost_at)
            self._note_untrained(member)

    def alive(self, unit: str, now: float) -> None:
        """The unit's process is alive. Ignored if the unit is not joined."""
        if (member := self._members.get(unit)) is not None:
            member.alive_at = now

    def look(self, now: float) -> None:
        """Find the units that are lost by now. They no longer count."""
        if now < self._look_at:
            return
        for member in self._members.values():
            if member.counts and member.lost_at <= now:
                member.counts = False
        self.counting = sum(m.counts for m in self._members.values())
        self._look_at = min((m.lost_at for m in self._members.values() if m.counts), default=math.inf)
        self._sum_up()

    def stepped(self) -> None:
        for member in self._members.values():
            member.fresh = False
        self.fresh = 0
        self._untrained_of = None
        self._sum_up()

    def merged(self, p: int) -> None:
        """A new version of fragment p goes out, which no unit has trained yet."""
        for member in self._members.values():
            member.steps[p] = 0
        self._untrained_of = None

    def expects(self, p: int, begin: float, end: float) -> bool:
        """Whether a unit that counts and has not trained fragment p since its adoption should report by `end`. Units whose report was
        overdue at `begin` are left out. `begin` must not go back between two outer steps, as entries that are overdue leave the heap."""
        if self._untrained_of != p:
            untrained = [(m.expected_at, next(self._numbers), m) for m in self._members.values() if m.counts and not m.steps[p]]
            heapq.heapify(untrained)
            self._untrained, self._untrained_of = untrained, p
        while self._untrained:
            expected_at, _, member = self._untrained[0]
            joined = self._members.get(member.unit) is member
            if joined and member.counts and not member.steps[p] and member.expected_at == expected_at and member.overdue_at >= begin:
                return expected_at <= end
            heapq.heappop(self._untrained)
        return False

    def _note_untrained(self, member: Member) -> None:
        """Update the heap after a change of the member's `expected_at` or of what it has trained."""
        p = self._untrained_of
        if p is None or member.steps[p]:
            return
        if len(self._untrained) > 2 * len(self._members):
            self._untrained_of = None  # most entries are out of date: `expects` makes a new heap
        else:
            heapq.heappush(self._untrained, (member.expected_at, next(self._numbers), member))

    def _sum_up(self) -> None:
        """Compute the sums anew. Rounding errors would grow in a sum that is only added to and subtracted from."""
        self._compare()
        speeds = [speed for m in self._members.values() if m.counts and (speed := m.speed)]
        self._speeds, self._with_speed, self._fastest = math.fsum(speeds), len(speeds), max(speeds, default=0.0)

    def _compare(self) -> None:
        """Set each unit's `shortest_credible_step` by the lower median of the others' shortest steps, see `FASTEST`."""
        known = [m for m in self._members.values() if m.counts and m.shortest]
        if not known:
            return
        shortest = sorted([m.shortest for m in known])
        for m in self._members.values():
            if not m.shortest:  # its reports say no duration, and must not count without bound
                m.shortest_credible_step = shortest[(len(shortest) - 1) // 2] / FASTEST
        if len(known) < 2:
            return
        middle = (len(shortest) - 2) // 2  # index of the lower median in a list with one value less
        for m in known:
            m.shortest_credible_step = shortest[middle if m.shortest > shortest[middle] else middle + 1] / FASTEST


def usable_step_seconds(seconds: float) -> bool:
    """Whether a reported duration, in seconds, can be a step's."""
    return SHORTEST_STEP <= seconds <= LONGEST_STEP
