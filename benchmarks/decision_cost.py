"""[decision-cost] What an outer step costs the syncer in decisions, by the number of units.

The real driver, guards and sessions run without arrays and without a network. They are called as the engine calls them: after each report
and each answer, expired sessions are ended, the coordinator decides, and both are asked when to look again. In a round every unit reports a
step and answers its pulls, spread over a second of virtual time. P = H = 24, tau = 2, K = 1. The cases:

- `all answer`.
- `one is mute`: one unit reports but answers nothing, and the grace is at its highest, so that the clock waits for it at every report.
- `one is slow`: the steps of one unit take 20 rounds, so that a grace window opens for it.

`decision-cost` is the processor time of one round at 512 units, in the case that costs most, over that of a pass of `reference` beside it,
the median of the rounds. Its limit, 15 % above what is reached, is for the code: a decision that became dearer by more than the noise of a
run.

`decision-growth` is the cost of one unit at 4,096 units over that at 512, of the case that grows most. Linear decisions give 1, decisions
that look at all units at each event 8. The limit is the geometric mean of both, the square root of 8: nearer to linear.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from builders.core import a_job
from diloco.algorithm.codec import Coding
from diloco.algorithm.coordinator import Coordinator
from diloco.algorithm.driver import Driver, NoArrays
from diloco.algorithm.effects import Close, Decode, Effect, Pull
from diloco.algorithm.events import Computed, Joined, Metadata, Offer, Offered, Reported, Seeded, Tick, Usable
from diloco.algorithm.guards import ARMED_AFTER, Guard
from diloco.contract import Grace
from diloco.syncer.streams.sessions import Accepted, JoinRequest, SessionRegistry

from benchmarks import reference
from benchmarks.figure import Figure

LIMIT = 3.7
"""Passes of `reference`."""
UNITS = (8, 64, 512, 2048, 4096)
AT = 512
H = 24
CASES = ("all answer", "one is mute", "one is slow")
SLOW = 20
"""Rounds for which a step of the slow unit lasts."""


def measure(*, smoke: bool) -> Iterator[Figure]:
    sizes = (8, 64) if smoke else UNITS
    rounds = H if smoke else 2 * H
    costs = {case: {units: cost(case, units, rounds if units <= AT else H) for units in sizes} for case in CASES}
    at, most = (AT if AT in sizes else sizes[0]), sizes[-1]
    dearest = max((by_units[at] for by_units in costs.values()), key=lambda cost_: cost_.passes)
    value = dearest.passes
    details = {
        "milliseconds": dearest.milliseconds,
        "passes": {case: {str(units): round(cost_.passes, 3) for units, cost_ in by_units.items()} for case, by_units in costs.items()},
    }
    yield Figure("decision-cost", value, "passes of benchmarks/reference.py", LIMIT, value <= LIMIT, rounds, details)
    growth = {case: (by_units[most].passes / most) / (by_units[at].passes / at) for case, by_units in costs.items()}
    worst, limit = max(growth.values()), math.sqrt(most / at)
    yield Figure("decision-growth", worst, "ratio", round(limit, 3), worst <= limit, rounds, {"growth": growth, "from": at, "to": most})


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over rounds."""

    milliseconds: float
    passes: float


def cost(case: str, units: int, rounds: int) -> Cost:
    """What a round costs once the guards are armed: the median of `rounds` rounds."""
    job = Decisions(case, units)
    for _ in range((ARMED_AFTER + 1) * H):
        job.round()
    gc.collect()
    before = job.t
    costs = [reference.in_passes(job.round) for _ in range(rounds)]
    assert job.t > before
    return Cost(1e3 * median(seconds for seconds, _ in costs), median(passes for _, passes in costs))


class Decisions:
    """A coordinator and its units. The last unit is the mute or the slow one."""

    def __init__(self, case: str, units: int) -> None:
        mute = case == "one is mute"
        grace = Grace(max_steps=16.0 if mute else 1.0, safety_factor=0.8)
        training = a_job(sync_interval=H, fragments=H, overlap_steps=2, grace=grace)
        self._driver = Driver(Coordinator(training, Guard([1] * H)), NoArrays())
        self._driver.take(Seeded(0.0, (1.0,) * H))
        self._sessions = SessionRegistry("job", {}, reconnect_window=5.0)
        self._units = [f"u-{number:04}" for number in range(units)]
        self._mute = self._units[-1] if mute else None
        self._slow = self._units[-1] if case == "one is slow" else None
        self._rounds = 0
        self._adopted = [0] * H
        """For each fragment, the round of its last adoption."""
        self._now = 0.0
        for stream, unit in enumerate(self._units):
            answer = self._sessions.join(JoinRequest("job", unit, 1, unit.encode()), stream)
            assert isinstance(answer, Accepted)
            self._driver.take(Joined(0.0, unit))

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self._driver.coordinator.t

    def round(self) -> float:
        """Run a round, and return the seconds of processor time that its decisions took."""
        self._rounds += 1
        usual = self._metadata(1)
        begin = time.process_time()
        for number, unit in enumerate(self._units):
            self._now = self._rounds + number / len(self._units)
            if unit != self._slow:
                self._reports(unit, usual)
            elif self._rounds % SLOW == 0:
                self._reports(unit, self._metadata(SLOW))
        return time.process_time() - begin

    def _metadata(self, rounds: int) -> Metadata:
        """The metadata of a unit whose steps take `rounds` rounds."""
        steps = tuple(self._rounds // rounds - adopted // rounds for adopted in self._adopted)
        return Metadata(self._rounds // rounds, steps, tuple(100 * n for n in steps), float(rounds))

    def _reports(self, unit: str, metadata: Metadata) -> None:
        self._driver.take(Reported(self._now, unit, metadata))
        effects = self._decide()
        while effects:
            effect = effects.pop()
            match effect:
                case Pull():
                    effects += self._answer(effect)
                case Close():
                    self._driver.take(Computed(self._now, effect.t, finite=True))
                    self._adopted[effect.fragment] = self._rounds
                    effects += self._decide()

    def _answer(self, pull: Pull) -> list[Effect]:
        effects: list[Effect] = []
        n = max(1, self._rounds - self._adopted[pull.fragment])
        usual = Offer(pull.fragment, pull.t, Coding.FLOAT32, 0, n, 100 * n)
        of_one_step = Offer(pull.fragment, pull.t, Coding.FLOAT32, 0, 1, 100)
        for unit in pull.units:
            if unit == self._mute:
                continue
            offer = of_one_step if unit == self._slow else usual
            (wanted,) = self._driver.take(Offered(self._now, unit, offer))
            assert type(wanted) is Decode
            assert not self._driver.take(Usable(self._now, unit, offer, 1.0))
            effects += self._decide()
        return effects

    def _decide(self) -> list[Effect]:
        """Do what the engine does after each event, and return the effects."""
        assert not self._sessions.expire(self._now)
        effects = self._driver.take(Tick(self._now))
        self._sessions.wake_at()
        self._driver.wake_at(self._now)
        return effects
