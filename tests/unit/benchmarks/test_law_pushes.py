"""What units push in arms of the learning law."""

from __future__ import annotations

import numpy as np
import pytest
from builders.regression import Answer
from diloco.algorithm.codec import BLOCK, Coding
from diloco.algorithm.events import Offer
from diloco.learner.store import Float32Array

from benchmarks.law.pushes import changed, in_two_bits
from benchmarks.law.trials import TRAINED


def pushed(pushes: str, *rounds: dict[str, float], held: float = 10.0) -> list[list[float]]:
    """Return what is pushed of a fragment of one value, in rounds in which each unit trains so much."""
    change = changed(pushes, lambda unit, fragment: np.full(1, held, np.float32))
    offer = Offer(0, 1, Coding.FLOAT32, 0, 30, 100)
    return [
        [float(change(Answer(unit, np.full(1, held + trained, np.float32), offer)).values[0]) - held for unit, trained in each.items()]
        for each in rounds
    ]


def test_two_bits_are_three_levels_of_the_largest_value_of_each_block() -> None:
    values: Float32Array = np.zeros(BLOCK + 3, np.float32)
    values[:4] = [4.0, -2.1, 1.9, -4.0]
    values[BLOCK:] = [0.5, 0.2, -0.3]
    found = in_two_bits(values)
    assert found[:5].tolist() == [4.0, -4.0, 0.0, -4.0, 0.0]
    assert found[BLOCK:].tolist() == [0.5, 0.0, -0.5]
    assert not in_two_bits(np.zeros(5, np.float32)).any()


@pytest.mark.parametrize(
    ("pushes", "expected"),
    [
        (TRAINED, [[1.0, -1.0], [2.0, -2.0], [4.0, -4.0]]),
        ("a round late", [[1.0, -1.0], [1.0, -1.0], [2.0, -2.0]]),
        ("2 bit", [[1.0, -1.0], [2.0, -2.0], [4.0, -4.0]]),
    ],
)
def test_updates_that_are_late_are_those_that_the_unit_trained_the_round_before(pushes: str, expected: list[list[float]]) -> None:
    assert pushed(pushes, *({"a": value, "b": -value} for value in (1.0, 2.0, 4.0))) == expected
