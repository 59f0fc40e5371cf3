"""Parameters that are plain numpy arrays: for programs without a framework, tests and benches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from diloco.algorithm.layout import TensorSpec
from diloco.learner.store import Float32Array


class ArrayStore:
    """A `ParameterStore` over a dict of float32 arrays. The arrays are the caller's: a training step may change them in place, and
    `write` changes them in place."""

    def __init__(self, arrays: Mapping[str, Float32Array], *, embeddings: Collection[str] = ()) -> None:
        """`embeddings` names those tensors that the merge treats as embeddings. Raises ValueError for an unknown name there, and
        TypeError for an array that is not float32."""
        for name, array in arrays.items():
            if array.dtype != np.float32:
                raise TypeError(f"tensor {name!r} is {array.dtype}: canonical parameters are float32")
        if unknown := sorted(set(embeddings) - set(arrays)):
            raise ValueError(f"embeddings names tensors that do not exist: {', '.join(unknown)}")
        self.arrays = dict(arrays)
        self._embeddings = frozenset(embeddings)

    def specs(self) -> Sequence[TensorSpec]:
        return [TensorSpec(name, array.shape, name in self._embeddings) for name, array in sorted(self.arrays.items())]

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        return {name: np.array(self.arrays[name], dtype=np.float32, order="C") for name in names}

    def write(self, values: Mapping[str, Float32Array]) -> None:
        for name, value in values.items():
            target = self.arrays[name]
            if value.shape != target.shape:
                raise ValueError(f"tensor {name!r} has shape {target.shape}, got {value.shape}")
            target[...] = value
