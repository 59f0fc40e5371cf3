"""Chunks on the wire without copies: as protobuf writes them, but their data never goes through protobuf.

Each way through protobuf copies a chunk's data three times. Here the sender joins it with its header once, and the receiver gets a view
into what gRPC has read. The bytes on the wire are protobuf's, so either end may be of another version.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from diloco.protocol.diloco_pb2 import Chunk, FromLearner, StateMessage, Taken, ToLearner

_CHUNK_TAG: Final = bytes([FromLearner.CHUNK_FIELD_NUMBER << 3 | 2])
"""Tag of the field `chunk`, the same in all directions, and of bytes and messages in general: wire type 2, a length and that many bytes."""
_DATA_TAG: Final = bytes([Chunk.DATA_FIELD_NUMBER << 3 | 2])
assert ToLearner.CHUNK_FIELD_NUMBER == FromLearner.CHUNK_FIELD_NUMBER == StateMessage.CHUNK_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class DataChunk:
    """A chunk."""

    header: Chunk
    """Without data."""
    data: memoryview = field(repr=False)
    """The data of the sender's payload, or of the message that came."""
    acknowledged: Taken | None = None
    """What goes beside a chunk that is sent; of one that came it is in the header."""


def divide(chunk: DataChunk, most: int) -> tuple[DataChunk, DataChunk | None]:
    """Return `chunk` with at most its first `most` bytes, and the rest of it; None: there is no rest."""
    if len(chunk.data) <= most:
        return chunk, None
    header = Chunk()
    header.CopyFrom(chunk.header)
    header.offset += most
    return DataChunk(chunk.header, chunk.data[:most]), DataChunk(header, chunk.data[most:])


def with_acknowledged[M: (FromLearner, ToLearner, DataChunk)](message: M, taken: Taken | None) -> M:
    """Return the message with an acknowledgement beside it; None: there is none. The message itself stays as it is: others may get it."""
    if taken is None:
        return message
    if isinstance(message, DataChunk):
        return replace(message, acknowledged=taken)
    made = type(message)()
    made.CopyFrom(message)
    (made.chunk if made.HasField("chunk") else made).acknowledged.CopyFrom(taken)
    return made


def acknowledged_in(message: FromLearner | ToLearner | DataChunk) -> Taken | None:
    """Return what a message that came acknowledges; None: it says nothing of that."""
    if not isinstance(message, DataChunk) and message.HasField("taken"):
        return message.taken
    said = message.header if isinstance(message, DataChunk) else message
    return said.acknowledged if said.HasField("acknowledged") else None


def to_wire(message: FromLearner | ToLearner | StateMessage | DataChunk | bytes) -> bytes:
    """Return the message's bytes; bytes are on the wire what they are."""
    if isinstance(message, bytes):
        return message
    if not isinstance(message, DataChunk):
        return message.SerializeToString()
    header = message.header.SerializeToString()
    if message.acknowledged is not None:
        header += Chunk(acknowledged=message.acknowledged).SerializeToString()
    # Data of no length is left out, as protobuf does.
    before = b"".join((_DATA_TAG, _varint(len(message.data)))) if message.data else b""
    length = len(header) + len(before) + len(message.data)
    return b"".join((_CHUNK_TAG, _varint(length), header, before, message.data))


def from_learner(raw: bytes) -> FromLearner | DataChunk:
    """Return what a learner has sent. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(FromLearner.FromString(raw))


def to_learner(raw: bytes) -> ToLearner | DataChunk:
    """Return what the syncer has sent. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(ToLearner.FromString(raw))


def to_taker(raw: bytes) -> StateMessage | DataChunk:
    """Return what a peer has sent of its state. Raises protobuf's DecodeError."""
    return _chunk(raw) or _whole(StateMessage.FromString(raw))


def _whole[M: (FromLearner, ToLearner, StateMessage)](message: M) -> M | DataChunk:
    """Return a chunk that lies otherwise than usual on the wire went through protobuf."""
    if not message.HasField("chunk"):
        return message
    data = memoryview(message.chunk.data)
    message.chunk.ClearField("data")
    return DataChunk(message.chunk, data)


def _chunk(raw: bytes) -> DataChunk | None:
    """Return the chunk in `raw`; None if it is something else, or a chunk in a form that protobuf allows but does not write."""
    if not raw.startswith(_CHUNK_TAG):
        return None
    try:
        length, start = _read_varint(raw, 1)
        if start + length != len(raw):
            return None
        found: tuple[int, int, int] | None = None
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
                        if found:
                            return None
                        found = field_start, at, at + length
                    at += length
                case _:
                    return None
    except IndexError:
        return None
    if at != len(raw) or found is None:
        return None
    before, data, after = found
    return DataChunk(Chunk.FromString(raw[start:before] + raw[after:]), memoryview(raw)[data:after])


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return (the number at `at`, where the next byte is). Raises IndexError at the end and for more than the ten bytes of a 64-bit
    number."""
    n = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, at
    raise IndexError
