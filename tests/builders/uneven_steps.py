"""Learners whose steps are of uneven length, and what the syncer's clock makes of them."""

from __future__ import annotations

import functools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from builders.core import InlineCore, SimulatedLearner, Simulation, a_job, a_layout, a_push, a_seeded_core
from diloco.algorithm.effects import Broadcast, Merged, Pull, Skipped
from diloco.contract import HEARTBEAT, Training

type Steps = Callable[[random.Random], Iterator[float]]
"""The durations of a unit's steps, seconds, without end."""


def _in_turn(*seconds: float) -> Steps:
    def durations(random: random.Random) -> Iterator[float]:
        at = random.randrange(len(seconds))
        while True:
            yield seconds[at % len(seconds)]
            at += 1

    return durations


def _lognormal(sigma: float) -> Steps:
    def durations(random: random.Random) -> Iterator[float]:
        while True:
            yield random.lognormvariate(0.0, sigma)

    return durations


def one_other(usual: float, other: float, at: int) -> Steps:
    """Steps of `usual` seconds; step number `at` takes `other`."""

    def durations(_: random.Random) -> Iterator[float]:
        number = 0
        while True:
            number += 1
            yield other if number == at else usual

    return durations


@dataclass(frozen=True, slots=True)
class Pattern:
    """The steps of a unit."""

    steps: Steps
    mean: float
    """Seconds of a step."""
    period: float = 0.0
    """Seconds until each unit has taken its longest step, if that is long: before, one that has not looks like one of a faster machine."""


PATTERNS: dict[str, Pattern] = {
    "20 x 1 s, one of 21 s": Pattern(_in_turn(*[1.0] * 20, 21.0), 41 / 21),
    "lognormal, sigma 1.2": Pattern(_lognormal(1.2), math.exp(1.2**2 / 2)),
    "1 s and 19 s in turn": Pattern(_in_turn(1.0, 19.0), 10.0),
    "4 x 1 s, one of 61 s": Pattern(_in_turn(*[1.0] * 4, 61.0), 13.0),
    "10 s, one of 1 ms": Pattern(one_other(10.0, 0.001, 12), 10.0),
    "300 x 1 s, one of 300 s": Pattern(_in_turn(*[1.0] * 300, 300.0), 600 / 301, period=600.0),
}


@dataclass
class UnevenLearner(SimulatedLearner):
    """Reads its parameters and adopts between its steps only, as a real learner does."""

    durations: Iterator[float] = field(default_factory=lambda: iter(()))
    announces: float = math.inf
    """Its program declares a pause where a step will take as many seconds or more."""
    frozen: bool = False
    """No thread of its process runs but those that keep its connection: it does not even say that it is alive."""
    boundaries: list[float] = field(default_factory=list)
    """When its steps ended, ascending."""
    to_adopt: list[int] = field(default_factory=list)
    """Fragments of which it has received a version during the step under way."""
    trained_at: dict[int, list[float]] = field(default_factory=dict)
    """By fragment, the boundaries at which it has trained the fragment since its adoption."""

    def next_step(self) -> float:
        self.step_seconds = next(self.durations)
        return self.step_seconds


class UnevenSimulation(Simulation[UnevenLearner]):
    """All learners give the same: what is measured is when. Their processes say that they are alive, whatever their programs do."""

    def __init__(self, core: InlineCore, learners: Iterable[UnevenLearner]) -> None:
        super().__init__(core, learners)
        for learner in self.learners.values():
            self.at(learner.start, functools.partial(self._beat, learner))

    def _beat(self, learner: UnevenLearner) -> None:
        if not learner.frozen:
            self._at_syncer(lambda: self.core.alive(learner.unit, self._core_now))
        self.at(self.now + HEARTBEAT, functools.partial(self._beat, learner))

    def _say_pause(self, learner: UnevenLearner, until: float) -> None:
        self._at_syncer(lambda: self.core.paused(learner.unit, until, self._core_now))

    def freeze(self, unit: str) -> Callable[[], None]:
        """To be called when the unit's process falls silent. Its step goes on."""
        return functools.partial(setattr, self.learners[unit], "frozen", True)

    def thaw(self, unit: str) -> Callable[[], None]:
        return functools.partial(setattr, self.learners[unit], "frozen", False)

    def _answer(self, learner: UnevenLearner, pull: Pull, steps: int | None = None) -> None:
        assert steps is not None
        value = float(self.core.value(pull.fragment)[0]) + 1.0
        self._push(learner, a_push(self.core, pull, value, steps=steps, tokens=steps * learner.tokens))

    def _adopts(self, learner: UnevenLearner, broadcast: Broadcast) -> None:
        learner.to_adopt.append(broadcast.fragment)

    def _step(self, learner: UnevenLearner) -> None:
        learner.boundaries.append(self.now)
        for p, steps in enumerate(learner.steps):
            if steps or not learner.resting:
                learner.trained_at.setdefault(p, []).append(self.now)
        if learner.step_seconds >= learner.announces:
            self._say_pause(learner, self.now)
        super()._step(learner)
        if learner.step_seconds >= learner.announces:
            self._say_pause(learner, self.now + learner.step_seconds)
        for fragment in learner.to_adopt:
            learner.adopt(fragment)
        learner.to_adopt.clear()


@dataclass(frozen=True, slots=True)
class Pace:
    """What the clock made of the learners."""

    ratio: float
    """Outer steps per mean local step."""
    least: float
    most: float
    """The same over each H outer steps."""
    within: float
    """Share of these that are within 1 +- 0.1."""
    merged: float
    """Contributions in merges, of those that the answers of the learners allowed, in exchanges that were skipped as well: of learners that
    end a step before the mean learner has taken tau + 1."""
    units: float
    """Mean number of units in a merge."""
    merges: int


def a_job_of(interval: int, **changes: object) -> Training:
    return a_job(sync_interval=interval, fragments=interval, overlap_steps=2, **changes)


def uneven(core: InlineCore, steps: list[Steps], seed: int, announces: float = math.inf) -> UnevenSimulation:
    """One learner for each of `steps`; they begin at other times. They declare steps of `announces` seconds as pauses."""
    randoms = [random.Random(f"{seed} {i}") for i in range(len(steps))]
    learners = [
        UnevenLearner(f"u{i}", 1.0, start=randoms[i].random() * 24.0, between_steps=True, durations=of(randoms[i]), announces=announces)
        for i, of in enumerate(steps)
    ]
    return UnevenSimulation(core, learners)


def measure(name: str, units: int = 8, interval: int = 24, cycles: int = 20, seed: int = 0) -> Pace:
    """Equal units with the steps of a pattern."""
    pattern = PATTERNS[name]
    core = a_seeded_core(a_job_of(interval), a_layout(interval, 1))
    sim = uneven(core, [pattern.steps] * units, seed)
    begin = max(2 * interval * pattern.mean, pattern.period)
    return pace(sim.run(until=begin + cycles * interval * pattern.mean), after=begin)


def pace(sim: UnevenSimulation, after: float) -> Pace:
    """From `after` seconds on."""
    training = sim.core.training
    learners = list(sim.learners.values())
    boundaries = sorted(at for x in learners for at in x.boundaries)

    def local(at: float) -> float:
        return bisect_right(boundaries, at) / len(learners)

    stepped = [at for at in sim.stepped if at >= after]
    windows = [
        training.sync_interval / (local(end) - local(begin)) for begin, end in zip(stepped, stepped[training.sync_interval :], strict=False)
    ]
    pulls = {a.t: (at, a.fragment) for at, a in sim.actions if isinstance(a, Pull)}
    allowed = given = 0
    closed = [a for at, a in sim.actions if isinstance(a, Merged | Skipped) and at >= after and a.t in pulls]
    for one in closed:
        pulled, p = pulls[one.t]
        end = bisect_right(boundaries, pulled) + (training.overlap_steps + 1) * len(learners)
        if end <= len(boundaries):
            could = {x.unit for x in learners if _any_between(x.trained_at.get(p, []), pulled, boundaries[end - 1])}
            allowed += len(could)
            given += len(could & set(one.units)) if isinstance(one, Merged) else 0
    merges = [a for a in closed if isinstance(a, Merged)]
    taken = (stepped[0], stepped[-1])
    return Pace(
        (len(stepped) - 1) / (local(taken[1]) - local(taken[0])),
        min(windows),
        max(windows),
        sum(abs(ratio - 1) <= 0.1 for ratio in windows) / len(windows),
        given / allowed,
        sum(len(a.units) for a in merges) / len(merges),
        len(merges),
    )


def _any_between(ascending: list[float], begin: float, end: float) -> bool:
    return bisect_left(ascending, begin) < bisect_right(ascending, end)
