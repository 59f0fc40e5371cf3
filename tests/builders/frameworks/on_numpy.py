"""Parameters in numpy arrays."""

from __future__ import annotations

import numpy as np
from builders.frameworks.adapter import SHAPES, Framework, Model
from diloco.learner.arrays import ArrayStore


def model(matrix: str, vector: str) -> Model:
    assert matrix == vector == "float32"
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}

    def train() -> None:
        for array in arrays.values():
            array += 1

    return Model(ArrayStore(arrays), train)


NUMPY = Framework((("float32", "float32"),), model, reads_by_name=False)
