"""Training as a plain program: a session's interface without a job. It is the baseline that a job is compared with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from diloco.session.data_feed import LeasedBatches, Shard, shard_of
from diloco.session.loop_check import MOST_AHEAD


class AloneLoop:
    """A loop without a syncer: takes the sequence numbers in order, and stops after a number of steps."""

    def __init__(self, steps: int, *, rank: int = 0, ranks: int = 1) -> None:
        self.steps = steps
        self._rank, self._ranks = rank, ranks
        self.step_count = 0
        self.held_out_loss: float | None = None

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int, *, ahead: int = MOST_AHEAD) -> Iterator[T]:
        """Yield `source(numbers)` for the numbers 0, 1, 2 … in batches of `batch_size`, until `step` was called `steps` times. If there are
        several ranks, they take batches in turn."""
        start = self._rank * batch_size
        while not self.done:
            yield source(np.arange(start, start + batch_size, dtype=np.int64))
            start += self._ranks * batch_size

    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = MOST_AHEAD) -> LeasedBatches:
        """The same batches as a batch sampler for data loaders."""
        return LeasedBatches(lambda: self.batches(lambda numbers: numbers, batch_size), batch_size, samples, seed)

    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]:
        """Yield all shards, epoch by epoch, until `step` was called `steps` times."""
        number = 0
        while not self.done:
            yield shard_of(number, count, seed)
            number += 1

    def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
        self.step_count += 1

    @property
    def optimizer_steps(self) -> int:
        """Equal to `step_count`, as no state comes from a peer."""
        return self.step_count

    @property
    def t(self) -> int:
        """Equal to `step_count`: a program alone is its own clock."""
        return self.step_count

    @property
    def progress(self) -> float:
        return 1.0 if self.done else self.step_count / self.steps

    @property
    def done(self) -> bool:
        return self.step_count >= self.steps

    @property
    def draining(self) -> bool:
        return False

    @property
    def over(self) -> bool:
        return self.done

    def evaluate(self, held_out_loss: float, tokens: int) -> None:
        self.held_out_loss = held_out_loss

    @contextlib.contextmanager
    def paused(self, reason: str, at_most: float) -> Iterator[None]:
        """Does nothing, as no syncer waits."""
        yield

    def finish(self, reason: str) -> None:
        """End training after the step under way."""
        self.steps = self.step_count

    def close(self) -> None:
        """Does nothing, as there is no job to leave."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class AloneSession(AloneLoop):
    """A session without a job, for a program whose parameters change in place."""

    def step(self, *, tokens: int, loss: float | None = None, batches: int = 1) -> None:
        self._count_step(tokens, loss, batches)
