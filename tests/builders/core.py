"""A core whose arithmetic is done at once, simulated learners on virtual time, and short ways to say what a test of them needs."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Buffer, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from diloco.algorithm import codec
from diloco.algorithm.core import Core
from diloco.algorithm.effects import Broadcast, Close, Effect, Pull, Refusal, Refused, Rest
from diloco.algorithm.events import EndsAt, Joined, Left, Lives, Metadata, Offer, Offered, Paused, Reported, Seeded, Tick, Unusable
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.shard import CheckedPush
from diloco.contract import Grace, Training
from diloco.syncer.job.awake import AwakeClock
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Push:
    """A whole answer."""

    offer: Offer
    payload: Buffer = field(repr=False)
    """In the offer's coding."""


class InlineCore(Core):
    """Does its arithmetic at once, as a syncer does it for small fragments. Says its events in short."""

    def begin(self, values: Sequence[NDArray[np.float32]], now: float = 0.0) -> Refusal | None:
        """Seed it."""
        norms = self.seed(values)
        if isinstance(norms, Refusal):
            return norms
        self.take(Seeded(now, norms))
        return None

    def join(self, unit: str, now: float) -> None:
        self.take(Joined(now, unit))

    def leave(self, unit: str, now: float) -> None:
        self.take(Left(now, unit))

    def progress(self, unit: str, metadata: Metadata, now: float) -> None:
        self.take(Reported(now, unit, metadata))

    def paused(self, unit: str, until: float, now: float) -> None:
        self.take(Paused(now, unit, until))

    def alive(self, unit: str, now: float) -> None:
        self.take(Lives(now, unit))

    def end(self, t: int, now: float = 0.0) -> None:
        self.take(EndsAt(now, t))

    def admit(self, unit: str, offer: Offer, now: float) -> Refusal | None:
        return refusal_in(self.take(Offered(now, unit, offer)))

    def contribute(self, unit: str, offer: Offer, decoded: CheckedPush, now: float, countable_tokens: float = math.inf) -> Refusal | None:
        return refusal_in(self.use(unit, offer, decoded, now, countable_tokens))

    def reject(self, unit: str, offer: Offer, now: float) -> None:
        self.take(Unusable(now, unit, offer))

    def push(self, unit: str, push: Push, now: float) -> Refusal | None:
        """A whole answer, to its acceptance or refusal."""
        if refusal := self.admit(unit, push.offer, now):
            return refusal
        decoded = self.decode(unit, push.offer, push.payload)
        if isinstance(decoded, Refusal):
            self.reject(unit, push.offer, now)
            return decoded
        return self.contribute(unit, push.offer, decoded, now)

    def advance(self, now: float) -> list[Effect]:
        """All that is due now; merges are done."""
        done: list[Effect] = []
        while effects := self.take(Tick(now)):
            for effect in effects:
                done += self.computed(effect, self.compute(effect), now) if isinstance(effect, Close) else [effect]
        return done


def refusal_in(effects: Iterable[Effect]) -> Refusal | None:
    return next((effect.refusal for effect in effects if isinstance(effect, Refused)), None)


def a_layout(tensors: int = 4, size: int = 5) -> Layout:
    return Layout(TensorSpec(f"w{i}", (size,)) for i in range(tensors))


def a_job(**changes: Any) -> Training:
    """P = H = 4, tau = 1, K = 1, no compression, plain average without momentum at rate 1; far from its end."""
    values: dict[str, Any] = {
        "steps": 10**6,
        "sync_interval": 4,
        "fragments": 4,
        "overlap_steps": 1,
        "compression": "None",
        "merge": {"method": "Average", "embeddings": "Average"},
        "outer_optimizer": {"learning_rate": 1.0, "momentum": 0.0},
        "checkpoint": {"every_steps": 10**6},
        "grace": Grace(max_steps=1, safety_factor=0.8),
    }
    return Training(**(values | changes))


def a_seeded_core(
    training: Training | None = None, layout: Layout | None = None, units: Iterable[str] = (), value: float = 0.0
) -> InlineCore:
    core = InlineCore(layout or a_layout(), training or a_job())
    refusal = core.begin([np.full(f.size, value, np.float32) for f in core.fragments])
    assert refusal is None
    for unit in units:
        core.join(unit, 0.0)
    return core


def metadata(core: InlineCore, local_step: int, *, steps: int = 1, tokens: int = 100, seconds: float = 1.0) -> Metadata:
    """The same counters for every fragment."""
    count = len(core.fragments)
    return Metadata(local_step, (steps,) * count, (tokens,) * count, seconds)


def a_push(core: InlineCore, pull: Pull, value: float = 1.0, *, steps: int = 1, tokens: int = 100, **changes: Any) -> Push:
    """The answer of a learner whose parameters all are `value`."""
    p = pull.fragment
    theta = np.full(core.fragments[p].size, value, np.float32)
    payload: Buffer = codec.encode(core.coding, theta - core.value(p) if core.coding.delta else theta)
    payload = changes.pop("payload", payload)
    values: dict[str, Any] = {
        "fragment": p,
        "t": pull.t,
        "coding": core.coding,
        "base": core.version(p),
        "steps": steps,
        "tokens": tokens,
    }
    return Push(Offer(**(values | changes)), payload)


@dataclass
class SimulatedLearner:
    """Takes a step every `step_seconds` and answers a pull `answer_seconds` later; waits for nothing, unless it is told to rest.

    `between_steps`: the answer is read at the end of the step under way, as a real learner does, and comes `answer_seconds` after that.
    """

    unit: str
    step_seconds: float
    start: float = 0.0
    answer_seconds: float = 0.01
    tokens: int = 100
    between_steps: bool = False
    local_step: int = 0
    steps: list[int] = field(default_factory=list)
    stopped: bool = False
    """Neither steps nor answers, and its connection stays open (SIGSTOP)."""
    resting: bool = False
    """Was told to take no step. It says again how far it is where it would take one."""
    mute: bool = False
    """Steps, and never answers."""
    pulls: list[Pull] = field(default_factory=list)
    """Wait for the end of the step under way."""
    adopted_after: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Per fragment, local steps since the adoption before at each adoption."""

    def next_step(self) -> float:
        """Seconds that the next step takes."""
        return self.step_seconds

    def next_answer(self) -> float:
        """Seconds that the next answer takes."""
        return self.answer_seconds

    def train(self) -> None:
        self.local_step += 1
        self.steps = [n + 1 for n in self.steps]

    def adopt(self, fragment: int) -> None:
        self.adopted_after[fragment].append(self.steps[fragment])
        self.steps[fragment] = 0

    def trained(self) -> tuple[int, ...]:
        """Tokens of each fragment since its adoption."""
        return tuple(n * self.tokens for n in self.steps)


class Simulation[L: SimulatedLearner]:
    """Runs a core and its learners on virtual time. The network is as fast as the learners' `answer_seconds` say."""

    now = 0.0

    def __init__(self, core: InlineCore, learners: Iterable[L]) -> None:
        self.core = core
        self.learners: dict[str, L] = {x.unit: x for x in learners}
        self.actions: list[tuple[float, Effect]] = []
        self.refused: list[tuple[str, Refusal]] = []
        self.stepped: list[float] = []
        """When the outer steps were taken."""
        self._awake = AwakeClock()
        self._backlog: list[Callable[[], None]] | None = None
        """What came while the syncer was stopped; None: it runs."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for learner in self.learners.values():
            learner.steps = [0] * len(core.fragments)
            self.at(learner.start, functools.partial(self._join, learner.unit))
            self.at(learner.start + learner.next_step(), functools.partial(self._step, learner))

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), do))

    def run(self, until: float = math.inf, *, steps: float = math.inf) -> Self:
        """Up to virtual time `until`, to outer step `steps`, or to the job's end."""
        self._advance()
        while not self.core.done and self.core.t < steps:
            wake = self._wake_at()
            assert wake is None or wake > self.now, "the core asks to be woken in the past"
            event = self._queue[0][0] if self._queue else None
            following = min((x for x in (wake, event) if x is not None), default=None)
            if following is None or following > until:
                break
            self.now = following
            if event is not None and event <= following:
                heapq.heappop(self._queue)[2]()
            self._advance()
        return self

    def all(self, kind: type[Any]) -> list[Any]:
        return [a for _, a in self.actions if isinstance(a, kind)]

    def times(self, kind: type[Any]) -> list[float]:
        return [when for when, a in self.actions if isinstance(a, kind)]

    def stop_syncer(self, at: float, seconds: float) -> None:
        """It reads nothing for so long (SIGSTOP), and then everything that came."""

        def stop() -> None:
            self._awake.look(self.now)
            self._backlog = []
            self.at(self.now + seconds, go_on)

        def go_on() -> None:
            assert self._backlog is not None
            backlog, self._backlog = self._backlog, None
            self._awake.look(self.now)
            for call in backlog:
                call()
                self._advance()

        self.at(at, stop)

    def _at_syncer(self, call: Callable[[], None]) -> None:
        """A message comes to the syncer."""
        call() if self._backlog is None else self._backlog.append(call)

    @property
    def _core_now(self) -> float:
        return self._awake.of(self.now)

    def _wake_at(self) -> float | None:
        at = self.core.wake_at(self._core_now) if self._backlog is None else None
        return None if at is None else self._awake.back(at)

    def _advance(self) -> None:
        if self._backlog is not None:
            return
        before = self.core.t
        actions = self.core.advance(self._core_now)
        self.stepped += [self.now] * (self.core.t - before)
        for action in actions:
            self.actions.append((self.now, action))
            self._carry_out(action)

    def _carry_out(self, action: Effect) -> None:
        match action:
            case Pull():
                for unit in action.units:
                    learner = self.learners[unit]
                    if not learner.mute:
                        self._pulled(learner, action)
            case Broadcast():
                for learner in self.learners.values():
                    if not learner.stopped:
                        self._adopts(learner, action)
            case Rest():
                self.learners[action.unit].resting = action.rests

    def _join(self, unit: str) -> None:
        self._at_syncer(lambda: self.core.join(unit, self._core_now))

    def _pulled(self, learner: L, pull: Pull) -> None:
        if learner.between_steps:
            learner.pulls.append(pull)
        else:
            self._reply(learner, pull)

    def _adopts(self, learner: L, broadcast: Broadcast) -> None:
        learner.adopt(broadcast.fragment)

    def _step(self, learner: L) -> None:
        if not learner.stopped:
            if not learner.resting:
                learner.train()
            self._report(learner, Metadata(learner.local_step, tuple(learner.steps), learner.trained(), learner.step_seconds))
            read, learner.pulls = [(p, learner.steps[p.fragment]) for p in learner.pulls], []
            for pull, steps in read:
                self._reply(learner, pull, steps)
        self.at(self.now + learner.next_step(), lambda: self._step(learner))

    def _report(self, learner: L, metadata: Metadata) -> None:
        self._at_syncer(lambda: self.core.progress(learner.unit, metadata, self._core_now))

    def _reply(self, learner: L, pull: Pull, steps: int | None = None) -> None:
        """`steps` that the answer holds; None: those until it is sent."""
        self.at(self.now + learner.next_answer(), functools.partial(self._answer, learner, pull, steps))

    def _answer(self, learner: L, pull: Pull, steps: int | None = None) -> None:
        if learner.stopped:
            return
        steps = learner.steps[pull.fragment] if steps is None else steps
        self._push(learner, a_push(self.core, pull, float(learner.local_step), steps=steps, tokens=steps * learner.tokens))

    def _push(self, learner: L, push: Push) -> None:
        self._at_syncer(lambda: self._pushed(learner, push))

    def _pushed(self, learner: L, push: Push) -> None:
        if refusal := self.core.push(learner.unit, push, self._core_now):
            self.refused.append((learner.unit, refusal))
