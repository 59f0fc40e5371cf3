"""The outer optimizer."""

import numpy as np
import pytest
from diloco.algorithm.outer import nesterov
from numpy.typing import NDArray


def vector(*x: float) -> NDArray[np.float32]:
    return np.array(x, np.float32)


def listed(result: tuple[NDArray[np.float32], NDArray[np.float32]] | None) -> list[list[float]]:
    assert result is not None
    return [x.tolist() for x in result]


def test_two_steps_by_hand() -> None:
    # lr 0.5, mu 0.5. First: buf = 0*0.5 + 2 = 2, step = 0.5*(2 + 0.5*2) = 1.5. Then: buf = 1 + 4 = 5, step = 0.5*(4 + 2.5) = 3.25.
    assert listed(nesterov(vector(2), vector(0), vector(10), 0.5, 0.5)) == [[8.5], [2]]
    assert listed(nesterov(vector(4), vector(2), vector(8.5), 0.5, 0.5)) == [[5.25], [5]]


def test_without_a_value_it_is_the_update() -> None:
    assert listed(nesterov(vector(4), vector(2), None, 0.5, 0.5)) == [[-3.25], [5]]


def test_without_momentum_it_is_plain_sgd() -> None:
    assert listed(nesterov(vector(3, -1), vector(9, 9), None, 1.0, 0.0)) == [[-3, 1], [3, -1]]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("n", [1, 2047, 5000])
def test_every_operation_is_rounded_to_float32(n: int) -> None:
    rng = np.random.default_rng(n)
    delta, momentum, value = (rng.standard_normal(n, dtype=np.float32) for _ in range(3))
    buffer = momentum * np.float32(0.9) + delta
    after = value - np.float32(0.7) * (delta + np.float32(0.9) * buffer)
    found = nesterov(delta, momentum, value, 0.7, 0.9)
    assert found is not None
    assert (found[0].tobytes(), found[1].tobytes()) == (after.tobytes(), buffer.tobytes())


@pytest.mark.parametrize(
    ("delta", "momentum", "onto"),
    [(np.inf, 0, 0), (3e38, 3e38, 0), (-1, 0, np.inf), (np.nan, 0, 0), (2e38, 0, -3e38)],
    ids=["input", "momentum", "value", "nan", "sum"],
)
def test_a_result_that_is_not_finite_is_none(delta: float, momentum: float, onto: float) -> None:
    assert nesterov(vector(0, delta), vector(0, momentum), vector(0, onto), 1.0, 0.9) is None


def test_arguments_stay_as_they_are() -> None:
    delta, momentum, value = vector(1, 2), vector(3, 4), vector(5, 6)
    nesterov(delta, momentum, value, 0.7, 0.9)
    assert (delta.tolist(), momentum.tolist(), value.tolist()) == ([1, 2], [3, 4], [5, 6])
