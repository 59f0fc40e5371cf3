"""Chunks as protobuf has them, for tests that look at messages or send them with the generated code."""

from __future__ import annotations

from diloco.protocol.diloco_pb2 import Chunk, FromLearner, ToLearner
from diloco.protocol.pieces import Piece, to_wire


def piece_of(chunk: Chunk) -> Piece:
    """`chunk` as it comes from the wire."""
    header = Chunk()
    header.CopyFrom(chunk)
    header.ClearField("data")
    return Piece(header, memoryview(chunk.data))


def chunk_of(piece: Piece) -> Chunk:
    """`piece` with its data."""
    return FromLearner.FromString(to_wire(piece)).chunk


def as_from_learner(message: FromLearner | Piece | bytes) -> FromLearner:
    """What the syncer gets."""
    return FromLearner.FromString(to_wire(message))


def as_to_learner(message: ToLearner | Piece) -> ToLearner:
    """What the learner gets."""
    return ToLearner.FromString(to_wire(message))
