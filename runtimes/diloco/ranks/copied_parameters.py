"""The parameters of a copy of another unit's state, until it is whole: what a rank owns of them. Pure.

As of a broadcast each element goes to the rank that owns it, and the framework's collectives fill the others' replicas when all ranks take
the copy at one local step.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diloco.algorithm.pieces import Piece, Portion, by_tensor, common, within
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import StateError


class CopiedParameters:
    """What one rank has of them."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        """`portions`: what the rank owns of each fragment."""
        self._portions = portions
        self._places = {piece: (index, at) for index, one in enumerate(portions) for piece, at in one.slices()}
        self._owned = by_tensor(self._places)
        self._values: dict[int, Float32Array] = {}
        self._elements = [0] * len(portions)
        """Per fragment, those that came since it was adopted last."""

    def put(self, piece: Piece, values: Float32Array) -> None:
        """Keep the values of a piece, float32 [elements], whose version is as new as what was adopted. Raises StateError for what this rank
        does not own."""
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
        """Note that the fragment is overwritten with a broadcast: what came before is older."""
        self._elements[fragment] = 0

    def whole(self) -> list[int]:
        """Return the fragments of which all is there. Of the others a part is older than what was adopted, and no mosaic is made of the
        two."""
        return [index for index, one in enumerate(self._portions) if self._elements[index] == one.size]

    def take(self, fragment: int) -> Float32Array:
        """Take the values of this rank's portion of a fragment that is all there, float32 [size of the portion]."""
        return self._values.pop(fragment, np.zeros(self._portions[fragment].size, np.float32))

    def clear(self) -> None:
        """Begin another copy."""
        self._values.clear()
        self._elements = [0] * len(self._portions)
