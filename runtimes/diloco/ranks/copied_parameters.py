"""The parameters of a copy of another unit's state, until it is whole: what a rank owns of them, and which fragments are there. Pure.

Each element goes to the rank that owns it, as of a broadcast, and the framework's collectives fill the others' replicas when all ranks take
the copy at one local step.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.pieces import Piece, Portion, common
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import StateError


class CopiedParameters:
    """What one rank has of them."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        """Begin with `portions`: what the rank owns of each fragment."""
        self._portions = portions
        self._places = {piece: (index, at) for index, one in enumerate(portions) for piece, at in one.slices()}
        self._owned: dict[str, list[Piece]] = {}
        for piece in self._places:
            self._owned.setdefault(piece.tensor, []).append(piece)
        self._values: dict[int, Float32Array] = {}

    def put(self, piece: Piece, values: Float32Array) -> None:
        """Keep the values of a piece, float32 [elements]. Raises StateError for what this rank does not own."""
        for owned in self._owned.get(piece.tensor, ()):
            if common(owned, piece) == piece and values.size == piece.elements:
                index, at = self._places[owned]
                if index not in self._values:
                    self._values[index] = np.zeros(self._portions[index].size, np.float32)
                inner = Piece(piece.tensor, tuple(a - b for a, b in zip(piece.start, owned.start, strict=True)), piece.size)
                inner.of(self._values[index][at].reshape(owned.size))[...] = values.reshape(piece.size)
                return
        raise StateError(f"this rank owns no {piece} of {values.size} elements")

    def take(self, fragment: int) -> Float32Array:
        """Take the values of this rank's portion of a fragment that is all there, float32 [size of the portion]."""
        return self._values.pop(fragment, np.zeros(self._portions[fragment].size, np.float32))

    def clear(self) -> None:
        """Forget all of them."""
        self._values.clear()


class CopiedFragments:
    """Which fragments of a copy are all there, and newer than what the unit has adopted."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._sizes = [one.size for one in fragments]
        self._of: Mapping[str, int] = {tensor.name: index for index, one in enumerate(fragments) for tensor in one.tensors}
        self._elements = [0] * len(fragments)
        """Per fragment, those that came since it was adopted last."""

    def came(self, piece: Piece) -> None:
        """Note that a piece has come whose version is as new as what was adopted."""
        self._elements[self._of[piece.tensor]] += piece.elements

    def adopted(self, fragment: int) -> None:
        """Note that the fragment is overwritten with a broadcast: what came before is older."""
        self._elements[fragment] = 0

    def clear(self) -> None:
        """Begin another copy."""
        self._elements = [0] * len(self._sizes)

    def whole(self) -> tuple[int, ...]:
        """Return those that are taken. Of the others some part is older than what was adopted, and no mosaic is made of the two."""
        return tuple(index for index, size in enumerate(self._sizes) if self._elements[index] == size)
