"""Training as a plain single program: the driver's interface without a job. The baseline that a job is compared with."""

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
    """Takes the sequence numbers one after the other and stops after a number of steps; there is no syncer."""

    def __init__(self, steps: int, *, rank: int = 0, ranks: int = 1) -> None:
        self.steps = steps
        self._rank, self._ranks = rank, ranks
        self.step_count = 0
        self.held_out_loss: float | None = None

    def batches[T](self, source: Callable[[NDArray[np.int64]], T], batch_size: int, *, ahead: int = MOST_AHEAD) -> Iterator[T]:
        """Yield `source(numbers)` for the numbers 0, 1, 2 … in batches of `batch_size`, until `step` was called `steps` times. Several
        ranks take turns."""
        start = self._rank * batch_size
        while not self.done:
            yield source(np.arange(start, start + batch_size, dtype=np.int64))
            start += self._ranks * batch_size

    def numbers(self, batch_size: int, *, samples: int | None = None, seed: int = 0, ahead: int = MOST_AHEAD) -> LeasedBatches:
        """Return the same batches as a batch sampler for data loaders."""
        return LeasedBatches(lambda: self.batches(lambda numbers: numbers, batch_size), batch_size, samples, seed)

    def shards(self, count: int, *, seed: int = 0) -> Iterator[Shard]:
        """Yield all shards of one epoch after the other, until `step` was called `steps` times."""
        number = 0
        while not self.done:
            yield shard_of(number, count, seed)
            number += 1

    def _count_step(self, tokens: int, loss: float | None, batches: int) -> None:
        self.step_count += 1

    @property
    def optimizer_steps(self) -> int:
        """No state came from elsewhere."""
        return self.step_count

    @property
    def t(self) -> int:
        """A program alone is its own clock."""
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
        """Do nothing: no syncer waits."""
        yield

    def finish(self, reason: str) -> None:
        """End training after the step under way."""
        self.steps = self.step_count

    def close(self) -> None:
        """Do nothing: there is no job to leave."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class AloneSession(AloneLoop):
    """That of a program whose parameters change in place."""

    def step(self, *, tokens: int, loss: float | None = None, batches: int = 1) -> None:
        self._count_step(tokens, loss, batches)
