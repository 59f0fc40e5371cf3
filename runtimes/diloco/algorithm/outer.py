"""The outer optimizer: SGD with Nesterov momentum on the merged outer gradient. Each fragment has its own momentum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from diloco import kernels
from diloco.kernels import Status

Array = NDArray[np.float32]


def _new(n: int) -> Array:
    return np.empty(n, np.float32)


def nesterov(
    delta: Array, momentum: Array, onto: Array | None, learning_rate: float, mu: float, take: Callable[[int], Array] = _new
) -> tuple[Array, Array] | None:
    """Return (`onto` after one step, new momentum), or None if one of them is not finite.

    `buf = mu*momentum + delta; onto - lr*(delta + mu*buf)`. If `onto` is None, the first is the update alone, `-lr*(delta + mu*buf)`.
    All are contiguous float32 vectors of one size. `take(n)` gives the results' arrays, of any content.
    """
    after, buffer = take(delta.size), take(delta.size)
    status = kernels.nesterov(delta, momentum, onto, mu, learning_rate, buffer, after)
    return (after, buffer) if status is Status.OK else None
