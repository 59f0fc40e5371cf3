"""What the ranks of a unit say to each other about their state, as messages and as data. Pure.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from diloco.algorithm.pieces import Piece
from diloco.protocol.state_parts import PieceArray
from diloco.ranks import ranks_pb2

CHUNK_BYTES = 1 << 19
"""Bytes of one message."""


def to_message(one: PieceArray) -> ranks_pb2.StateArray:
    piece = ranks_pb2.Piece(tensor=one.piece.tensor, start=one.piece.start, size=one.piece.size)
    return ranks_pb2.StateArray(piece=piece, name=one.name, dtype=one.dtype)


def from_message(one: ranks_pb2.StateArray) -> PieceArray:
    return PieceArray(Piece(one.piece.tensor, tuple(one.piece.start), tuple(one.piece.size)), one.name, one.dtype)


def chunks(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield (chunk, whether it is the last). Empty data gives one empty chunk."""
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES], start + CHUNK_BYTES >= len(data)
