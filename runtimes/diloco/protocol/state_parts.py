"""The parts in which a learner's state goes to a peer. Pure: the two ends need to share only the layout.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diloco.algorithm.frozen import blocks
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.protocol.diloco_pb2 import StateArray
from diloco.wording import plural

PART_ELEMENTS = 1 << 18
"""Elements of the model in one part, each with its optimizer state. With two moments it has 3 MiB, which a processor copies in a
millisecond."""
AS_FLOAT32 = ("float32", "bfloat16", "float16")
"""Types whose values float32 holds exactly."""
MOST_ARRAYS = 64
"""The most arrays of one piece of the model: the parameter, and the optimizer's arrays in its shape."""


class StateError(ValueError):
    """A state cannot be given, or what came cannot be used. The message is human-readable."""


@dataclass(frozen=True, slots=True)
class PieceArray:
    """One array of a part: what a process keeps for a piece of the model."""

    piece: Piece
    name: str
    """The optimizer's name of the array, such as "exp_avg". Empty for the parameter itself."""
    dtype: str
    """The type in which the process keeps it, such as "bfloat16". It travels as float32."""


def cut(pieces: Iterable[Piece], most: int = PART_ELEMENTS) -> list[list[Piece]]:
    """Cut pieces of the model into parts of at most `most` elements, in the same order. Small pieces share a part."""
    parts: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        for block in (Piece(piece.tensor, *block) for block in blocks(piece.start, piece.size, most)):
            if block.elements > room:
                parts.append([])
                room = most
            parts[-1].append(block)
            room -= block.elements
    return parts


def to_message(layout: Layout, arrays: Sequence[PieceArray]) -> list[StateArray]:
    pieces = pieces_to_message(layout, [array.piece for array in arrays])
    return [StateArray(piece=piece, name=array.name, dtype=array.dtype) for piece, array in zip(pieces, arrays, strict=True)]


def from_message(layout: Layout, arrays: Sequence[StateArray]) -> list[PieceArray]:
    """Raises StateError for an array that is of no piece of the model."""
    pieces = pieces_from_message(layout, [array.piece for array in arrays])
    return [PieceArray(piece, array.name, array.dtype) for piece, array in zip(pieces, arrays, strict=True)]


def pieces_to_message(layout: Layout, pieces: Sequence[Piece]) -> list[PieceMessage]:
    index = {spec.name: number for number, spec in enumerate(layout.tensors)}
    return [PieceMessage(tensor=index[piece.tensor], start=piece.start, size=piece.size) for piece in pieces]


def pieces_from_message(layout: Layout, pieces: Sequence[PieceMessage]) -> list[Piece]:
    """Raises StateError for what is no piece of the model."""
    read = []
    for message in pieces:
        if message.tensor >= len(layout.tensors):
            raise StateError(f"the peer names tensor {message.tensor} of {plural(len(layout.tensors), 'tensor')}")
        spec = layout.tensors[message.tensor]
        piece = Piece(spec.name, tuple(message.start), tuple(message.size))
        if not piece.is_inside(spec.shape):
            start, size = list(piece.start), list(piece.size)
            raise StateError(f"the peer names start {start} and size {size} of {spec}, which has shape {list(spec.shape)}")
        read.append(piece)
    return read


def elements(arrays: Sequence[PieceArray]) -> int:
    return sum(array.piece.elements for array in arrays)
