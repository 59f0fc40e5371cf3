"""Samples from a stream of tokens: windows of a fixed length, by sequence number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diloco.data.sampling import sample_indices
from diloco.wording import plural


class TokenWindows[T: np.unsignedinteger]:
    """Training windows by sequence number, and a fixed set of held-out windows.

    The tokens are cut into windows of `context` tokens and one more, the target of the last token, which is also the first token of the
    next window. Sequence numbers go through the windows in a pseudo-random order, a new one in every epoch. Number n is the n-th sample of
    the whole job, whichever unit trains it.
    """

    def __init__(self, train: NDArray[T], held_out: NDArray[T], *, context: int, seed: int) -> None:
        """`train`, `held_out`: unsigned integers [n], which may be memory-mapped. Raises ValueError if one of them has less than one
        window."""
        for name, tokens in (("training", train), ("held-out", held_out)):
            if len(tokens) < context + 1:
                raise ValueError(
                    f"the {name} text has {plural(len(tokens), 'token')}, and a window of context {context} takes {context + 1}"
                )
        self._train = train
        self._held_out = held_out
        self._context = context
        self._seed = seed
        self.windows = (len(train) - 1) // context
        """Samples of one epoch."""
        self.held_out_windows = (len(held_out) - 1) // context
        self.held_out_tokens = self.held_out_windows * context

    def batch(self, numbers: NDArray[np.int64]) -> NDArray[T]:
        """The samples of these sequence numbers (int64 [batch], from 0): [batch, context + 1]. Inputs are all but the last token of a row,
        targets all but the first."""
        return _rows(self._train, sample_indices(numbers, self.windows, self._seed), self._context)

    def held_out(self, batch: int = 32) -> Iterator[NDArray[T]]:
        """Yield every held-out window once, in order, at most `batch` at a time."""
        for start in range(0, self.held_out_windows, batch):
            yield _rows(self._held_out, np.arange(start, min(start + batch, self.held_out_windows)), self._context)


def _rows[T: np.unsignedinteger](tokens: NDArray[T], windows: NDArray[np.int64], context: int) -> NDArray[T]:
    rows: NDArray[T] = tokens[windows[:, None] * context + np.arange(context + 1)]
    return rows
