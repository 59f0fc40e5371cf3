"""Chunks as protobuf has them, for tests that look at messages or send them with the generated code."""

from __future__ import annotations

from diloco.protocol.chunks import DataChunk, to_wire
from diloco.protocol.diloco_pb2 import Chunk, FromLearner, ToLearner


def data_chunk(chunk: Chunk) -> DataChunk:
    """`chunk` as it comes from the wire."""
    header = Chunk()
    header.CopyFrom(chunk)
    header.ClearField("data")
    return DataChunk(header, memoryview(chunk.data))


def chunk_of(chunk: DataChunk) -> Chunk:
    """`chunk` with its data."""
    return FromLearner.FromString(to_wire(chunk)).chunk


def as_from_learner(message: FromLearner | DataChunk | bytes) -> FromLearner:
    """What the syncer gets."""
    return FromLearner.FromString(to_wire(message))


def as_to_learner(message: ToLearner | DataChunk) -> ToLearner:
    """What the learner gets."""
    return ToLearner.FromString(to_wire(message))
