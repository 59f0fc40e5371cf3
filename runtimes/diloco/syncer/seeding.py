"""The job's first parameters as they came: one FLOAT32 payload a fragment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment


def seed_values(fragments: Sequence[Fragment], payloads: Mapping[int, memoryview]) -> list[NDArray[np.float32]]:
    """Flat float32 values by fragment, not checked for NaN: the core refuses those and says where they are."""
    return [np.frombuffer(payloads[fragment.index], "<f4").astype(np.float32, copy=False) for fragment in fragments]
