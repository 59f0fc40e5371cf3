"""Chunks on the wire without copies. Their bytes are those that protobuf would write, but the data never goes through protobuf.

Protobuf would copy a chunk's data three times at each end. Here the sender joins data and header once, and the receiver gets a view into
what gRPC has read. The bytes on the wire are protobuf's, so the ends may be of different versions.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from diloco.protocol.diloco_pb2 import Chunk, FromLearner, StateMessage, Taken, ToLearner

_CHUNK_TAG: Final = bytes([FromLearner.CHUNK_FIELD_NUMBER << 3 | 2])
"""Tag of the field `chunk`, the same in all directions. Its wire type is 2: a length, then that many bytes."""
_DATA_TAG: Final = bytes([Chunk.DATA_FIELD_NUMBER << 3 | 2])
assert ToLearner.CHUNK_FIELD_NUMBER == FromLearner.CHUNK_FIELD_NUMBER == StateMessage.CHUNK_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class DataChunk:
    """A chunk whose data is not in the protobuf message."""

    header: Chunk
    """The chunk without its data."""
    data: memoryview = field(repr=False)
    """A view into the sender's payload, or into the received message."""
    acknowledged: Taken | None = None
    """An acknowledgement that is sent within the chunk. In a received chunk it is in `header` instead."""


def divide(chunk: DataChunk, most: int) -> tuple[DataChunk, DataChunk | None]:
    """Return a chunk with the first `most` bytes of `chunk`, and one with the rest. None if there is no rest."""
    if len(chunk.data) <= most:
        return chunk, None
    header = Chunk()
    header.CopyFrom(chunk.header)
    header.offset += most
    return DataChunk(chunk.header, chunk.data[:most]), DataChunk(header, chunk.data[most:])


def with_acknowledged[M: (FromLearner, ToLearner, DataChunk)](message: M, taken: Taken | None) -> M:
    """Return the message with an acknowledgement in it, or as it is if `taken` is None. `message` is not changed, as others may send it."""
    if taken is None:
        return message
    if isinstance(message, DataChunk):
        return replace(message, acknowledged=taken)
    made = type(message)()
    made.CopyFrom(message)
    (made.chunk if made.HasField("chunk") else made).acknowledged.CopyFrom(taken)
    return made


def acknowledged_in(message: FromLearner | ToLearner | DataChunk) -> Taken | None:
    """Return the acknowledgement in a received message. None if there is none."""
    if not isinstance(message, DataChunk) and message.HasField("taken"):
        return message.taken
    outer = message.header if isinstance(message, DataChunk) else message
    return outer.acknowledged if outer.HasField("acknowledged") else None


def to_wire(message: FromLearner | ToLearner | StateMessage | DataChunk | bytes) -> bytes:
    """Return the message's bytes on the wire. `bytes` have been serialized before, and stay as they are."""
    if isinstance(message, bytes):
        return message
    if not isinstance(message, DataChunk):
        return message.SerializeToString()
    header = message.header.SerializeToString()
    if message.acknowledged is not None:
        header += Chunk(acknowledged=message.acknowledged).SerializeToString()
    # Empty data is left out, as protobuf does it.
    before = b"".join((_DATA_TAG, _varint(len(message.data)))) if message.data else b""
    length = len(header) + len(before) + len(message.data)
    return b"".join((_CHUNK_TAG, _varint(length), header, before, message.data))


def from_learner(raw: bytes) -> FromLearner | DataChunk:
    """Read what a learner has sent. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(FromLearner.FromString(raw))


def to_learner(raw: bytes) -> ToLearner | DataChunk:
    """Read what the syncer has sent. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(ToLearner.FromString(raw))


def to_taker(raw: bytes) -> StateMessage | DataChunk:
    """Read what a peer has sent of its state. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(StateMessage.FromString(raw))


def _whole[M: (FromLearner, ToLearner, StateMessage)](message: M) -> M | DataChunk:
    """Return the message, or its chunk: one in an unusual form has been read by protobuf."""
    if not message.HasField("chunk"):
        return message
    data = memoryview(message.chunk.data)
    message.chunk.ClearField("data")
    return DataChunk(message.chunk, data)


def _chunk(raw: bytes) -> DataChunk | None:
    """Return the chunk in `raw`. None if it is something else, or a chunk in a form that protobuf allows but does not write."""
    if not raw.startswith(_CHUNK_TAG):
        return None
    try:
        length, start = _read_varint(raw, 1)
        if start + length != len(raw):
            return None
        span: tuple[int, int, int] | None = None
        at = start
        while at < len(raw):
            field_start = at
            tag, at = _read_varint(raw, at)
            match tag & 7:
                case 0:
                    _, at = _read_varint(raw, at)
                case 2:
                    length, at = _read_varint(raw, at)
                    if tag == _DATA_TAG[0]:
                        if span:
                            return None
                        span = field_start, at, at + length
                    at += length
                case _:
                    return None
    except IndexError:
        return None
    if at != len(raw) or span is None:
        return None
    before, data, after = span
    return DataChunk(Chunk.FromString(raw[start:before] + raw[after:]), memoryview(raw)[data:after])


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return (the number at `at`, the place of the next byte). Raises IndexError if `raw` ends before that, or the number has more than the
    ten bytes of a 64-bit number."""
    n = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, at
    raise IndexError
