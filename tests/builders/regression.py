"""A small real model in numpy and its inner optimizer, and a core whose learners train it in lock step on virtual time."""

from __future__ import annotations

from collections.abc import Buffer, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
from builders.core import InlineCore, Push
from diloco.algorithm import codec
from diloco.algorithm.effects import Broadcast, ContributionRejected, Effect, Pull, Reason, Refusal
from diloco.algorithm.events import Metadata, Offer
from diloco.algorithm.fragments import pack, unpack
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Training
from numpy.typing import NDArray

SHAPES = {"w1": (3, 8), "b1": (8,), "w2": (8, 2), "b2": (2,)}
LAYOUT = Layout(TensorSpec(name, shape) for name, shape in SHAPES.items())
BATCH = 16

type Parameters = dict[str, NDArray[np.float32]]


class Trainer(Protocol):
    """What a `Trainee` trains with; it keeps its optimizer's state."""

    step: int
    """Steps so far."""
    rate: np.float32
    """The learning rate."""

    def train(self, theta: Parameters) -> Parameters:
        """One step from theta, which may be views; new arrays."""
        ...


class Regression:
    """A two-layer network on a fixed teacher, trained by Adam; deterministic in (replica, step)."""

    def __init__(self, replica: int, inner_rate: float = 0.02, samples: int = BATCH) -> None:
        """`samples` of each batch."""
        self.replica, self.rate, self.step, self.samples = replica, np.float32(inner_rate), 0, samples
        self.first = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        self.second = {n: np.zeros(s, np.float32) for n, s in SHAPES.items()}
        self.loss = float("nan")
        """The loss of the last step."""

    @staticmethod
    def initial() -> Parameters:
        rng = np.random.default_rng(7)
        return {name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.5) for name, shape in SHAPES.items()}

    @staticmethod
    def loss_and_gradients(theta: Parameters, x: NDArray[np.float32], y: NDArray[np.float32]) -> tuple[float, Parameters]:
        h = np.tanh(x @ theta["w1"] + theta["b1"])
        error = h @ theta["w2"] + theta["b2"] - y
        back = (error @ theta["w2"].T) * (1 - h * h)
        n = np.float32(len(x))
        gradients = {"w1": x.T @ back / n, "b1": back.sum(0) / n, "w2": h.T @ error / n, "b2": error.sum(0) / n}
        return float((error * error).mean()), gradients

    @staticmethod
    def batch(replica: int, step: int, samples: int = BATCH) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        rng = np.random.default_rng([replica, step])
        x = rng.standard_normal((samples, 3), dtype=np.float32)
        return x, np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2]], axis=1)

    def batch_of(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What it trains in this step."""
        return self.batch(self.replica, step, self.samples)

    def gradients_of(self, theta: Parameters, step: int) -> tuple[float, Parameters]:
        """Loss and gradients of this step."""
        return self.loss_and_gradients(theta, *self.batch_of(step))

    def train(self, theta: Parameters) -> Parameters:
        """One step of Adam from theta; the moments live on, whatever theta is."""
        self.step += 1
        self.loss, gradients = self.gradients_of(theta, self.step)
        new: Parameters = {}
        for name, g in gradients.items():
            self.first[name] = np.float32(0.9) * self.first[name] + np.float32(0.1) * g
            self.second[name] = np.float32(0.99) * self.second[name] + np.float32(0.01) * g * g
            first = self.first[name] / np.float32(1 - 0.9**self.step)
            second = self.second[name] / np.float32(1 - 0.99**self.step)
            new[name] = (theta[name] - self.rate * first / (np.sqrt(second) + np.float32(1e-8))).astype(np.float32, copy=False)
        return new


@dataclass
class Trainee:
    """One learner of a `LockStep`."""

    trainer: Trainer
    every: int = 1
    """It takes a step every so many ticks."""
    tokens: int = 100
    """Tokens of each step."""
    theta: Parameters = field(default_factory=Regression.initial)
    steps: list[int] = field(default_factory=list)
    """Per fragment, since its adoption."""
    held: list[NDArray[np.float32]] = field(default_factory=list)
    """Per fragment, the value adopted last."""
    versions: list[int] = field(default_factory=list)
    """Per fragment, the outer step of that value."""


@dataclass
class Answer:
    """What a learner is about to send; a test may change it."""

    unit: str
    values: NDArray[np.float32]
    offer: Offer


def as_it_is(answer: Answer) -> Answer:
    return answer


class LockStep:
    """A job on virtual time: one tick, one step of every learner that is due. Answers take no time. A learner whose contribution is not
    trusted joins again; one that sends NaN is gone for good."""

    def __init__(
        self,
        training: Training,
        trainees: Mapping[str, Trainee],
        change: Callable[[Answer], Answer] = as_it_is,
        layout: Layout = LAYOUT,
        initial: Callable[[], Parameters] = Regression.initial,
    ) -> None:
        """`change` is called with every answer. `layout` and `initial`: of the model and its first parameters."""
        self.core = InlineCore(layout, training)
        assert self.core.begin([pack(f, initial()) for f in self.core.fragments]) is None
        self.trainees: dict[str, Trainee] = {}
        self.change = change
        self.now = 0
        self.rejected: list[ContributionRejected] = []
        self.refused: list[Reason] = []
        for unit, trainee in trainees.items():
            self.join(unit, trainee)

    def join(self, unit: str, trainee: Trainee) -> None:
        """The learner takes the core's parameters and begins to train; its optimizer's state stays as it is."""
        self.trainees[unit] = trainee
        trainee.held = [self.core.value(f.index) for f in self.core.fragments]
        trainee.theta = {name: x for f in self.core.fragments for name, x in unpack(f, trainee.held[f.index]).items()}
        trainee.steps = [0] * len(self.core.fragments)
        trainee.versions = [self.core.version(f.index) for f in self.core.fragments]
        self.core.join(unit, float(self.now))

    def leave(self, unit: str) -> None:
        self.trainees.pop(unit, None)
        self.core.leave(unit, float(self.now))

    def tick(self) -> None:
        self.now += 1
        for unit, trainee in self.trainees.items():
            if self.now % trainee.every:
                continue
            trainee.theta = trainee.trainer.train(trainee.theta)
            trainee.steps = [n + 1 for n in trainee.steps]
            self._report(unit)
        while actions := self.core.advance(float(self.now)):
            for action in actions:
                self._carry_out(action)

    def run(self, ticks: int) -> Self:
        """So many ticks, or up to the end of the job."""
        for _ in range(ticks):
            if not self.core.done:
                self.tick()
        return self

    def _report(self, unit: str) -> None:
        trainee = self.trainees[unit]
        tokens = tuple(n * trainee.tokens for n in trainee.steps)
        metadata = Metadata(trainee.trainer.step, tuple(trainee.steps), tokens, float(trainee.every))
        self.core.progress(unit, metadata, float(self.now))

    def _carry_out(self, action: Effect) -> None:
        match action:
            case Pull():
                for unit in action.units:
                    self._answer(unit, action)
            case Broadcast():
                p = action.fragment
                for trainee in self.trainees.values():
                    if trainee.versions[p] == action.t:
                        continue  # it has joined since the merge
                    trainee.versions[p] = action.t
                    trainee.held[p] = codec.value_of(action.coding, bytes(action.payload), trainee.held[p])
                    trainee.theta = trainee.theta | unpack(self.core.fragments[p], trainee.held[p])
                    trainee.steps[p] = 0
            case ContributionRejected():
                self.rejected.append(action)
                trainee = self.trainees.pop(action.unit)
                if not action.quarantined:
                    self.join(action.unit, trainee)

    def _answer(self, unit: str, pull: Pull) -> None:
        trainee, p = self.trainees[unit], pull.fragment
        n = trainee.steps[p]
        offer = Offer(p, pull.t, self.core.coding, self.core.version(p), n, n * trainee.tokens)
        answer = self.change(Answer(unit, pack(self.core.fragments[p], trainee.theta), offer))
        if refusal := self._push(unit, Push(answer.offer, self._coded(p, answer.values))):
            self.refused.append(refusal.reason)
            if refusal.reason is Reason.NON_FINITE:
                self.leave(unit)

    def _push(self, unit: str, push: Push) -> Refusal | None:
        return self.core.push(unit, push, float(self.now))

    def _coded(self, p: int, values: NDArray[np.float32]) -> Buffer:
        """As the learner's connection does it: NaN cannot be coded, and all bits set stands for it in every coding."""
        try:
            return codec.encode(self.core.coding, values - self.core.value(p) if self.core.coding.delta else values)
        except codec.NonFiniteError:
            return b"\xff" * codec.payload_bytes(self.core.coding, values.size)


def poisoned(answer: Answer, value: float) -> Answer:
    """With one value in it."""
    values = answer.values.copy()
    values[0] = value
    return replace(answer, values=values)
