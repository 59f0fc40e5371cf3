"""Outer gradients that wait for their merge. They stay in the coding in which they came, and the merge decodes them.

Decoded to float32 at once, contributions in Int4 would take eight times as much memory while they wait.

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
    """An outer gradient as it came. It is finite: that was checked when its norms were computed."""

    coding: Coding
    payload: Bytes = field(repr=False)
    anchor: Array = field(repr=False)

    def vector(self, take: Callable[[int], Array]) -> Vector:
        """The gradient as a merge reads it. `take` is not used."""
        return codec.vector_of(self.coding, self.payload, self.anchor)


@dataclass(frozen=True, slots=True)
class InPortions:
    """An outer gradient as it came from the ranks of a unit: in portions that cover the fragment exactly once, each coded as its own
    vector."""

    coding: Coding
    parts: Sequence[tuple[Portion, Bytes]] = field(repr=False)
    anchor: Array = field(repr=False)

    def values(self, out: Array) -> Array:
        """Decode the gradient into `out`, float32 [fragment size], and return `out`."""
        for portion, payload in self.parts:
            # A delta is a difference to the anchor already, so only the size of this array matters.
            against = np.empty(portion.size, np.float32) if self.coding.delta else portion.cut(self.anchor)
            portion.place(codec.outer_gradient(self.coding, payload, against), out)
        return out

    def vector(self, take: Callable[[int], Array]) -> Vector:
        """The gradient as a merge reads it, decoded, because its portions lie across the fragment. `take(n)` gives the array."""
        return Vector.of_values(self.values(take(self.anchor.size)))
