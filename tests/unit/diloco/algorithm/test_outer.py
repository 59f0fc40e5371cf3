"""The outer optimizer."""

import numpy as np
from diloco.algorithm.outer import nesterov
from numpy.typing import NDArray


def vector(*x: float) -> NDArray[np.float32]:
    return np.array(x, np.float32)


def test_two_steps_by_hand() -> None:
    # lr 0.5, mu 0.5. First: buf = 0*0.5 + 2 = 2, step = 0.5*(2 + 0.5*2) = 1.5. Then: buf = 1 + 4 = 5, step = 0.5*(4 + 2.5) = 3.25.
    step, buffer = nesterov(vector(2), vector(0), 0.5, 0.5)
    assert (step.tolist(), buffer.tolist()) == ([1.5], [2.0])
    step, buffer = nesterov(vector(4), buffer, 0.5, 0.5)
    assert (step.tolist(), buffer.tolist()) == ([3.25], [5.0])


def test_without_momentum_it_is_plain_sgd() -> None:
    step, _ = nesterov(vector(3, -1), vector(9, 9), 1.0, 0.0)
    assert step.tolist() == [3, -1]


def test_arguments_stay_as_they_are() -> None:
    delta, momentum = vector(1, 2), vector(3, 4)
    nesterov(delta, momentum, 0.7, 0.9)
    assert (delta.tolist(), momentum.tolist()) == ([1, 2], [3, 4])
