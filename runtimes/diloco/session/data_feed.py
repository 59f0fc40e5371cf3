"""The forms in which a session gives work to data loaders: batches of indices, and shards.

See docs/decisions/0167-batches.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diloco.data.sampling import sample_indices
from diloco.wording import plural


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a data set that one unit reads from beginning to end, in one epoch."""

    index: int
    """0 <= index < count"""
    count: int
    """Number of parts that the data set is cut into."""
    epoch: int
    """From 0. In each epoch every shard is read once, in another order."""


def shard_of(number: int, count: int, seed: int) -> Shard:
    """Return the shard that a sequence number stands for. Raises ValueError if `count` is below 1."""
    return Shard(int(sample_indices(np.array([number]), count, seed)[0]), count, number // count)


class LeasedBatches:
    """A batch sampler: yields the samples of one batch after the other, as lists of indices. Iterate over it in the training process; the
    workers of a DataLoader get only the indices.

    Each iteration goes on where the last one stopped. It ends with the job, so it has no length.
    """

    drop_last = True
    """Every batch is full."""

    def __init__(self, numbers: Callable[[], Iterator[NDArray[np.int64]]], batch_size: int, samples: int | None, seed: int) -> None:
        """`numbers` begins an iteration over sequence numbers, int64 [batch_size] each. `samples` is the size of the data set; if it is
        None, the indices are the sequence numbers themselves."""
        if samples is not None and samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}: there is nothing to train on")
        self.batch_size = batch_size
        self._numbers = numbers
        self._samples = samples
        self._seed = seed
        self._reached = 0

    @property
    def epoch(self) -> float:
        """How often all units together have gone through the data set, judged by the newest batch. Raises ValueError without `samples`."""
        if self._samples is None:
            raise ValueError("there are no epochs without samples=: the indices are sequence numbers")
        return self._reached / self._samples

    def __iter__(self) -> Iterator[list[int]]:
        for numbers in self._numbers():
            self._reached = max(self._reached, int(numbers.max()) + 1)
            indices = numbers if self._samples is None else sample_indices(numbers, self._samples, self._seed)
            yield indices.tolist()

    def __repr__(self) -> str:
        of = "" if self._samples is None else f" of {plural(self._samples, 'sample')}"
        return f"<leased batches of {plural(self.batch_size, 'index', 'indices')}{of}>"
