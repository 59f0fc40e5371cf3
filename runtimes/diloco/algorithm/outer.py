"""The outer optimizer: SGD with Nesterov momentum on the merged outer gradient, state per fragment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def nesterov(delta: Array, momentum: Array, learning_rate: float, mu: float) -> tuple[Array, Array]:
    """(step, new momentum) of SGD with Nesterov momentum: `buf = mu*buf + delta; step = lr*(delta + mu*buf)`.

    The caller subtracts `step` from the value. All arrays are float32 of one shape; the arguments are not written to.
    """
    buffer = momentum * np.float32(mu)
    buffer += delta
    step = buffer * np.float32(mu)
    step += delta
    step *= np.float32(learning_rate)
    return step, buffer
