"""Random sequences of everything that can happen to a driver: members, answers good and bad, arithmetic that takes its time, restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from builders.core import InlineCore, a_job, a_layout
from diloco.algorithm import codec
from diloco.algorithm.commit import Commit, commit_of
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Broadcast, Close, ContributionRejected, Decode, Effect, Pull
from diloco.algorithm.events import (
    Computed,
    EndsAt,
    Event,
    Joined,
    Left,
    Lives,
    Marks,
    Metadata,
    Offer,
    Offered,
    Paused,
    Reported,
    Seeded,
    Tick,
    Unusable,
    Usable,
)
from diloco.algorithm.shard import CheckedPush, Update
from diloco.algorithm.state import CoreState
from diloco.contract import Grace, Training
from numpy.typing import NDArray

UNITS = ("a", "b", "c", "d")


@dataclass
class Tape:
    """What one process took, and what followed."""

    state: CoreState | None
    """With which it began; None: with `seed`."""
    seed: list[NDArray[np.float32]] = field(default_factory=list)

    events: list[Event] = field(default_factory=list)
    effects: list[list[Effect]] = field(default_factory=list)
    decoded: dict[tuple[str, int], CheckedPush] = field(default_factory=dict)
    """By unit and outer step, what a learner's answer came to."""
    commits: list[tuple[Commit, NDArray[np.float32]]] = field(default_factory=list)
    """What is written down of each merge that took its place, and the merged outer gradient."""


@dataclass
class Sequence:
    """One job of random shape. The learners' values are random, too: nothing is trained."""

    seed: int
    tapes: list[Tape] = field(default_factory=list)
    """One for each start of the syncer."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._values = np.random.default_rng(self.seed)
        self.training = self._shape()
        self.layout = a_layout(self.training.fragments, 7)
        self.now = 0.0
        self._steps: dict[str, int] = {}
        self._since: dict[str, list[int]] = {}
        self._pulled: list[tuple[str, Pull]] = []
        self._later: list[Callable[[], None]] = []
        """Arithmetic under way."""
        self._start(None)

    def _shape(self) -> Training:
        choice = self._random
        interval = choice.choice([1, 2, 4, 6])
        return a_job(
            steps=300,
            quorum=choice.choice([1, 1, 2, 3]),
            sync_interval=interval,
            fragments=choice.randint(1, interval),
            overlap_steps=choice.randrange(interval),
            grace=Grace(max_steps=choice.choice([0.0, 1.0, 4.0]), safety_factor=0.8),
            compression=choice.choice(["None", "BFloat16", "Int4"]),
            merge={"method": choice.choice(["RDA", "Average"])},
            outer_optimizer={"learning_rate": 0.7, "momentum": 0.9},
            checkpoint={"every_steps": 7},
        )

    def run(self, happenings: int) -> Self:
        """So many things happen."""
        what = (
            [self._step] * 40
            + [self._answer] * 30
            + [self._go_on] * 24
            + [self._join, self._join, self._leave, self._pause, self._live, self._wait, self._say_tick]
        )
        for number in range(happenings):
            self.now += self._random.expovariate(4.0)
            self._random.choice(what)()
            if self._random.random() < 0.002:
                self._restart()
            if number == 3 * happenings // 4:
                self._take(EndsAt(self.now, self.core.t + 5))
            self._settle()
        return self

    # --- what happens -------------------------------------------------------------------------------------------------

    def _start(self, state: CoreState | None) -> None:
        self.core = InlineCore(self.layout, self.training, state)
        self.tapes.append(tape := Tape(state))
        if state is None:
            tape.seed = [self._values.standard_normal(f.size, np.float32) for f in self.core.fragments]
            norms = self.core.seed(tape.seed)
            assert isinstance(norms, tuple)
            self._take(Seeded(self.now, norms))
        for unit in UNITS[:3]:
            self._joined(unit)
        self._settle()

    def _restart(self) -> None:
        """The process dies, and the next one goes on from its snapshot."""
        self._pulled.clear()
        self._later.clear()
        self._start(self.core.state())

    def _joined(self, unit: str) -> None:
        self._steps[unit], self._since[unit] = 0, [0] * self.training.fragments
        self._take(Joined(self.now, unit))

    def _join(self) -> None:
        self._joined(self._random.choice(UNITS))

    def _leave(self) -> None:
        self._take(Left(self.now, self._random.choice(UNITS)))

    def _pause(self) -> None:
        self._take(Paused(self.now, self._random.choice(UNITS), self.now + self._random.choice([-1.0, 20.0])))

    def _live(self) -> None:
        self._take(Lives(self.now, self._random.choice(UNITS)))

    def _wait(self) -> None:
        self.now += self._random.choice([1.0, 10.0, 70.0])

    def _say_tick(self) -> None:
        self.now = max(self.now, self.core.wake_at(self.now) or self.now)

    def _step(self) -> None:
        unit = self._random.choice(sorted(self._steps))
        self._steps[unit] += 1
        self._since[unit] = [n + 1 for n in self._since[unit]]
        tokens = tuple(100 * n for n in self._since[unit])
        metadata = Metadata(self._steps[unit], tuple(self._since[unit]), tokens, self._random.choice([0.0, 1.0, 1.0, 3.0]))
        self._take(Reported(self.now, unit, metadata))

    def _answer(self) -> None:
        """A learner answers a pull, well or badly."""
        if not self._pulled:
            return
        unit, pull = self._pulled.pop(self._random.randrange(len(self._pulled)))
        p, steps = pull.fragment, self._since.get(unit, [1] * self.training.fragments)[pull.fragment]
        fault = self._random.choice([None] * 20 + ["long", "NaN", "short", "idle", "base", "again", "unknown", "mute"])
        if fault == "mute":
            return
        marks = Marks(f"{unit}/1", 8 * self._steps[unit], 100 * self._steps[unit], self._steps[unit])
        base = self.core.version(p) + (fault == "base")
        t = pull.t + 99 * (fault == "unknown")
        offer = Offer(p, t, self.core.coding, base, 0 if fault == "idle" else steps, 100 * steps, marks)
        if fault == "again":
            self._pulled.append((unit, pull))
        difference = self._values.standard_normal(self.core.fragments[p].size, np.float32) * np.float32(1e4 if fault == "long" else 0.1)
        payload = bytes(codec.encode(self.core.coding, difference if self.core.coding.delta else self.core.value(p) + difference))
        if fault == "NaN":
            payload = b"\xff" * len(payload)
        elif fault == "short":
            payload = payload[:-1]
        for effect in self._take(Offered(self.now, unit, offer)):
            if isinstance(effect, Decode):
                self._decode(unit, offer, payload)

    def _decode(self, unit: str, offer: Offer, payload: bytes) -> None:
        """Its result comes later."""
        core, decoded = self.core, self.core.decode(unit, offer, payload)
        if not isinstance(decoded, CheckedPush) or self._random.random() < 0.02:
            self._later.append(lambda: self._taken(core, Unusable(self.now, unit, offer)))
            return
        countable = self._random.choice([float("inf"), 150.0])

        def use() -> None:
            self.tapes[-1].decoded[unit, offer.t] = decoded
            core.shard.hold(unit, offer, decoded)
            self._taken(core, Usable(self.now, unit, offer, decoded.norm, countable))

        self._later.append(use)

    def _go_on(self) -> None:
        """Some arithmetic is done."""
        if self._later:
            self._later.pop(self._random.randrange(len(self._later)))()

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _taken(self, core: InlineCore, event: Event) -> None:
        if core is self.core:
            self._take(event)

    def _take(self, event: Event) -> list[Effect]:
        effects = self.core.take(event)
        tape = self.tapes[-1]
        tape.events.append(event)  # each counts: a tick without effects notes since when the quorum is there
        tape.effects.append(effects)
        for effect in effects:
            if isinstance(effect, Broadcast):
                for counts in self._since.values():
                    counts[effect.fragment] = 0
        return effects

    def _settle(self) -> None:
        while effects := self._take(Tick(self.now)):
            for effect in effects:
                match effect:
                    case Pull():
                        self._pulled += [(unit, effect) for unit in effect.units]
                    case Close():
                        self._close(effect)
                    case ContributionRejected():
                        self._steps[effect.unit] = 0

    def _close(self, close: Close) -> None:
        core, update = self.core, self.core.compute(close)

        def computed() -> None:
            if core is self.core:
                core.shard.hold_update(close, update)
                if update is not None:
                    commit = commit_of(core.coordinator.ordered(close.t), close, update.cosine)
                    self.tapes[-1].commits.append((commit, update.gradient.copy()))
                self._take(Computed(self.now, close.t, finite=update is not None))

        if self._random.random() < 0.5:
            computed()
        else:
            self._later.append(computed)


def replayed(core: Core, tape: Tape) -> Iterator[list[Effect]]:
    """What follows from each event of the tape. The learners' answers are the recorded ones; all other arithmetic is done anew."""
    if tape.state is None:
        core.seed(tape.seed)
    updates: dict[int, tuple[Close, Update | None]] = {}
    for event in tape.events:
        match event:
            case Usable():
                effects = core.use(event.unit, event.offer, tape.decoded[event.unit, event.offer.t], event.at, event.countable_tokens)
            case Computed():
                effects = core.computed(*updates.pop(event.t), event.at)
            case _:
                effects = core.take(event)
        updates |= {effect.t: (effect, core.compute(effect)) for effect in effects if isinstance(effect, Close)}
        yield effects
