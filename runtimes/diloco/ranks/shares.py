"""How arrays of a unit's state are divided over its ranks. Pure.

See docs/decisions/0268-peers-of-ranks.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diloco.algorithm.pieces import Piece, common
from diloco.learner.store import Float32Array
from diloco.protocol.state_parts import PieceArray


class Share(NamedTuple):
    """What one rank has of an array."""

    number: int
    """Which of the arrays it is."""
    array: PieceArray


def by_tensor(pieces: Sequence[Sequence[Piece]]) -> Mapping[str, Sequence[tuple[int, Piece]]]:
    """Return by tensor which rank has which piece of it, from the pieces of each rank."""
    found: defaultdict[str, list[tuple[int, Piece]]] = defaultdict(list)
    for rank, its in enumerate(pieces):
        for piece in its:
            found[piece.tensor].append((rank, piece))
    return found


def divide(arrays: Sequence[PieceArray], places: Mapping[str, Sequence[tuple[int, Piece]]]) -> dict[int, list[Share]]:
    """Return per rank what it has of the arrays."""
    shares: defaultdict[int, list[Share]] = defaultdict(list)
    for index, one in enumerate(arrays):
        for rank, piece in places.get(one.piece.tensor, ()):
            if (both := common(one.piece, piece)) is not None:
                shares[rank].append(Share(index, PieceArray(both, one.name, one.dtype)))
    return shares


def within(part: Piece, whole: Piece, values: Float32Array) -> Float32Array:
    """Return a view of a part of a piece's values."""
    where = tuple(slice(low - first, low - first + size) for low, first, size in zip(part.start, whole.start, part.size, strict=True))
    index: Any = (*where, ...)
    view: Float32Array = values[index]
    return view
