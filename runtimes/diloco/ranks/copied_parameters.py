"""The parameters that a rank owns of a copy of another unit's state, until the copy is whole. Pure.

As with a broadcast, each element goes to the rank that owns it. When all ranks take the copy at one local step, the framework's collectives
fill the replicas.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diloco.algorithm.pieces import Piece, Portion, by_tensor, common, within
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import StateError


class CopiedParameters:
    def __init__(self, portions: Sequence[Portion]) -> None:
        """`portions`: what the rank owns of each fragment."""
        self._portions = portions
        self._places = {piece: (index, at) for index, portion in enumerate(portions) for piece, at in portion.slices()}
        self._owned = by_tensor(self._places)
        self._values: dict[int, Float32Array] = {}
        self._elements = [0] * len(portions)
        """For each fragment, how many elements came since it was adopted last."""

    def put(self, piece: Piece, values: Float32Array) -> None:
        """Keep the values of a piece, float32 [elements]. Their version must be at least as new as the adopted one.

        Raises StateError for a piece that this rank does not own.
        """
        for owned in self._owned.get(piece.tensor, ()):
            if common(owned, piece) == piece and values.size == piece.elements:
                index, at = self._places[owned]
                if index not in self._values:
                    self._values[index] = np.zeros(self._portions[index].size, np.float32)
                within(piece, owned, self._values[index][at])[...] = values.reshape(piece.size)
                self._elements[index] += piece.elements
                return
        raise StateError(f"this rank owns no {piece} of {values.size} elements")

    def adopted(self, fragment: int) -> None:
        """Note that a broadcast has overwritten the fragment. What was put before is older."""
        self._elements[fragment] = 0

    def whole(self) -> list[int]:
        """Return the fragments that are complete. The others have parts older than the adopted version, and the two are never mixed."""
        return [index for index, portion in enumerate(self._portions) if self._elements[index] == portion.size]

    def take(self, fragment: int) -> Float32Array:
        """Take this rank's portion of a complete fragment, float32 [size of the portion]."""
        values = self._values.pop(fragment, None)
        return np.zeros(self._portions[fragment].size, np.float32) if values is None else values

    def clear(self) -> None:
        self._values.clear()
        self._elements = [0] * len(self._portions)
