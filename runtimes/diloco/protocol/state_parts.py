"""In which parts a learner's state goes to a peer. Pure: both ends need not know more of each other than the layout.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.algorithm.frozen import blocks
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.protocol.diloco_pb2 import StateArray
from diloco.wording import plural

PART_ELEMENTS = 1 << 18
"""Elements of the model in one part, each with its optimizer state: 3 MiB with two moments, a millisecond of a processor's copying."""
MOST_ARRAYS = 64
"""The most arrays of one piece of the model: the parameter, and what the optimizer keeps in its shape."""


class StateError(ValueError):
    """The state cannot be given, or what came is none. The message is human-readable."""


@dataclass(frozen=True, slots=True)
class PieceArray:
    """One array of a part: what a process keeps for a piece of the model."""

    piece: Piece
    name: str
    """"": the parameter itself; else what the optimizer calls it, such as "exp_avg"."""
    dtype: str
    """In which it is kept, such as "bfloat16". It travels as float32."""


def cut(tensors: Sequence[TensorSpec], most: int = PART_ELEMENTS) -> list[list[Piece]]:
    """All of the model in parts of at most `most` elements, in the order of the tensors. Small tensors share a part."""
    parts: list[list[Piece]] = []
    room = 0
    for spec in tensors:
        for piece in (Piece(spec.name, *block) for block in blocks((0,) * len(spec.shape), spec.shape, most)):
            if piece.elements > room:
                parts.append([])
                room = most
            parts[-1].append(piece)
            room -= piece.elements
    return parts


def to_message(layout: Layout, arrays: Sequence[PieceArray]) -> list[StateArray]:
    """For the wire."""
    index = {spec.name: number for number, spec in enumerate(layout.tensors)}
    return [
        StateArray(
            piece=PieceMessage(tensor=index[one.piece.tensor], start=one.piece.start, size=one.piece.size), name=one.name, dtype=one.dtype
        )
        for one in arrays
    ]


def from_message(layout: Layout, arrays: Sequence[StateArray]) -> list[PieceArray]:
    """From the wire. Raises StateError for what is no piece of the model."""
    found = []
    for one in arrays:
        if one.piece.tensor >= len(layout.tensors):
            raise StateError(f"the peer sends tensor {one.piece.tensor} of {plural(len(layout.tensors), 'tensor')}")
        spec = layout.tensors[one.piece.tensor]
        start, size = tuple(one.piece.start), tuple(one.piece.size)
        inside = len(start) == len(size) == len(spec.shape) and all(
            count and first + count <= length for first, count, length in zip(start, size, spec.shape, strict=True)
        )
        if not inside:
            raise StateError(f"the peer sends start {list(start)} and size {list(size)} of {spec}, which has shape {list(spec.shape)}")
        found.append(PieceArray(Piece(spec.name, start, size), one.name, one.dtype))
    return found


def elements(arrays: Sequence[PieceArray]) -> int:
    """Return the number of elements of all arrays."""
    return sum(one.piece.elements for one in arrays)
