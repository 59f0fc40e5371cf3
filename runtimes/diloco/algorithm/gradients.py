"""Outer gradients while they wait for their merge: in the coding in which they came, which the merge decodes on the way.

Decoded at once, in float32, the contributions to the open exchanges would take eight times the memory of Int4.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.pieces import Portion
from diloco.kernels import Vector

Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Coded:
    """One as it came. It is finite: that was seen when its norms were taken."""

    coding: Coding
    payload: Bytes = field(repr=False)
    anchor: Array = field(repr=False)

    def vector(self, take: Callable[[int], Array]) -> Vector:
        """Return it for a merge."""
        return codec.vector_of(self.coding, self.payload, self.anchor)


@dataclass(frozen=True, slots=True)
class InPortions:
    """One as it came from the ranks of a unit, in portions that cover the fragment exactly once, each coded as a vector of its own."""

    coding: Coding
    parts: Sequence[tuple[Portion, Bytes]] = field(repr=False)
    anchor: Array = field(repr=False)

    def values(self, out: Array) -> Array:
        """Decode it into `out`, float32 [fragment size]."""
        for portion, payload in self.parts:
            # A delta is a difference to the anchor already.
            against = np.empty(portion.size, np.float32) if self.coding.delta else portion.cut(self.anchor)
            portion.place(codec.outer_gradient(self.coding, payload, against), out)
        return out

    def vector(self, take: Callable[[int], Array]) -> Vector:
        """Return it for a merge, decoded: its portions lie across the fragment. `take` gives the array."""
        return Vector.of_values(self.values(take(self.anchor.size)))
