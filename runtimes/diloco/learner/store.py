"""The driver's interface to a framework's parameters: their canonical form, and how to read and overwrite them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import TensorSpec

type Float32Array = NDArray[np.float32]


class ParameterStore(Protocol):
    """A model's parameters in canonical form: (name, shape, float32 values). An adapter of a framework implements it.

    `read` and `write` are called on the training thread, between two steps, never while a step runs. Neither touches the
    state of the inner optimizer. They must be synchronous: when they return, the values are read, or in place for the next step.
    """

    def specs(self) -> Sequence[TensorSpec]:
        """Every tensor of the model in canonical form: name, shape and whether it is an embedding. Any order, always the same answer."""
        ...

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copies in host memory of the named tensors, float32 and C-contiguous in canonical shape. The caller owns the copies:
        later steps must not change them. Raises KeyError for a name that `specs` does not have."""
        ...

    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors. The arrays are the caller's, read-only, and may not be kept. Raises KeyError for an unknown
        name and ValueError for another shape."""
        ...
