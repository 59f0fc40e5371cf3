"""A training loop that a test takes step by step."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator

from diloco.learner.store import Float32Array
from diloco.session.session import JobSession, Session
from diloco.session.step_timer import StepTimer

BATCH = 2
TOKENS = 16
"""Tokens of every step."""


class TrainingLoop(ABC):
    """The loop of a program whose parameters are `arrays`."""

    arrays: dict[str, Float32Array]
    _batches: Iterator[list[int]]

    @property
    @abstractmethod
    def session(self) -> Session: ...

    def begin[S: JobSession](self, session: S) -> S:
        """Steps last a second each: the amount of work to ask for does not depend on the machine."""
        ticks = itertools.count()
        session._timer = StepTimer(1.0, lambda: float(next(ticks)))
        self._batches = session.batches(lambda numbers: numbers.tolist(), BATCH)
        return session

    def batch(self) -> list[int]:
        """The sequence numbers of the next batch."""
        assert self.session
        return next(self._batches)

    def step(self) -> None:
        """One optimizer step: every parameter grows by 1."""
        for array in self.arrays.values():
            array += 1
        self.session.step(tokens=TOKENS)

    def train(self, steps: int = 1) -> list[int]:
        """Batch and step, `steps` times; the sequence numbers of the batches."""
        numbers = []
        for _ in range(steps):
            numbers += self.batch()
            self.step()
        return numbers
