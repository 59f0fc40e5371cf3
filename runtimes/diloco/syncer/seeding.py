"""The job's first parameters as received: one FLOAT32 payload per fragment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment


def seed_values(fragments: Sequence[Fragment], payloads: Mapping[int, memoryview]) -> list[NDArray[np.float32]]:
    """Per fragment, float32 [size], not checked for NaN: the core refuses those and names the tensors."""
    return [np.frombuffer(payloads[fragment.index], "<f4").astype(np.float32, copy=False) for fragment in fragments]
