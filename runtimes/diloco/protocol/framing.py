"""Splits a fragment's payload into chunks, and puts it together again. Transfers of different fragments may interleave on one stream, but
the chunks of one transfer keep their order. A sender may end a transfer unfinished with a chunk that says `cancelled`.

See docs/decisions/0150-transfers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk
from diloco.wording import plural

Bytes = NDArray[np.uint8]

LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 256 << 10, 4 << 20
"""Payload bytes of one chunk: large enough that framing costs nothing, small enough that metadata never waits long behind a fragment. On a
narrow link the sender's window divides chunks further."""
CHUNKS = 8
"""Chunks of one payload, within the two sizes. So metadata, and the end of a cancelled transfer, wait for an eighth of the payload."""

_SAME: Final = tuple(each.name for each in Chunk.DESCRIPTOR.fields if each.name not in ("offset", "data", "acknowledged"))
"""Fields that must be the same in all chunks of a transfer: the first chunk's are checked, the last chunk's are used."""

OPEN_TRANSFERS = 2
"""Transfers of one stream that may be under way at a time, so that a peer cannot make this process reserve memory for the whole model."""


class FramingError(ValueError):
    """The peer has broken the rules of transfers, such as by a hole, a repetition, or too many bytes. The stream cannot go on."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A complete payload with the header of its last chunk."""

    header: Chunk
    payload: memoryview


def split(header: Chunk, payload: bytes | bytearray | memoryview, size: int | None = None) -> Iterator[DataChunk]:
    """Yield `payload` as chunks of at most `size` bytes (None: see CHUNKS) with the other fields of `header`. An empty payload is one empty
    chunk. Nothing is copied, so `payload` must not change until all chunks are sent."""
    view = memoryview(payload).cast("B")
    size = size or min(max(-(-len(view) // CHUNKS), LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES)
    for offset in range(0, max(1, len(view)), size):
        of_chunk = Chunk()
        of_chunk.CopyFrom(header)
        of_chunk.total = len(view)
        of_chunk.offset = offset
        yield DataChunk(of_chunk, view[offset : offset + size])


def is_last(chunk: DataChunk) -> bool:
    """Whether the payload ends with this chunk."""
    return chunk.header.offset + len(chunk.data) >= chunk.header.total


def cancellation(of: Chunk) -> Chunk:
    """Return the chunk that ends the transfer of the chunk `of` unfinished."""
    return Chunk(kind=of.kind, fragment=of.fragment, t=of.t, cancelled=True)


def _new(size: int) -> Bytes:
    return np.empty(size, np.uint8)


class Assembler:
    """Puts the chunks of one stream together. One transfer per (kind, fragment) may be under way, and OPEN_TRANSFERS in all."""

    def __init__(self, expected: Callable[[Chunk], int], take: Callable[[int], Bytes] = _new) -> None:
        """
        Args:
            expected: returns the size of the payload that a first chunk begins; may raise FramingError. It is called before memory is
                allocated, so that a peer cannot make this process reserve memory at will
            take: returns a buffer of the given number of bytes, with any content
        """
        self._expected = expected
        self._take = take
        self._open: dict[tuple[int, int], tuple[Bytes, int, Chunk]] = {}

    @property
    def reserved(self) -> int:
        """Bytes reserved for the transfers under way."""
        return sum(len(buffer) for buffer, _, _ in self._open.values())

    def add(self, chunk: DataChunk) -> Transfer | None:
        """Add a chunk, and return the transfer if it is complete now. The only copy of the data is made here. Raises FramingError."""
        header, data = chunk.header, chunk.data
        key = (header.kind, header.fragment)
        what = f"{Chunk.Kind.Name(header.kind)} of fragment {header.fragment} at outer step {header.t}"
        if header.cancelled:
            self._cancel(header, what)
            return None
        if key not in self._open:
            if header.offset:
                raise FramingError(f"{what} begins at offset {header.offset}, not at 0")
            if len(self._open) >= OPEN_TRANSFERS:
                raise FramingError(f"{what} begins while {plural(len(self._open), 'transfer')} of this stream are unfinished")
            expected = self._expected(header)
            if header.total != expected:
                raise FramingError(f"{what} announces {plural(header.total, 'byte')}, the layout says {expected}")
            self._open[key] = (self._take(header.total), 0, header)
        buffer, received, first = self._open[key]
        if (header.offset, header.t, header.total) != (received, first.t, len(buffer)):
            raise FramingError(
                f"{what} goes on at offset {header.offset} of {header.total}; expected offset {received} of {len(buffer)} of outer step "
                f"{first.t}"
            )
        if changed := [name for name in _SAME if getattr(header, name) != getattr(first, name)]:
            raise FramingError(f"{what} has another {changed[0]} at offset {header.offset} than in its first chunk")
        end = received + len(data)
        if end > len(buffer) or (not data and len(buffer)):
            raise FramingError(f"{what} brings {plural(len(data), 'byte')} at offset {received} of {len(buffer)}")
        buffer[received:end] = np.frombuffer(data, np.uint8)  # by numpy, which releases the global lock meanwhile
        if end < len(buffer):
            self._open[key] = (buffer, end, first)
            return None
        del self._open[key]
        return Transfer(header, memoryview(buffer))

    def _cancel(self, chunk: Chunk, what: str) -> None:
        """Forget the transfer that `chunk` ends, and free its memory."""
        _, _, first = self._open.pop((chunk.kind, chunk.fragment), (None, 0, None))
        if first is None or first.t != chunk.t:
            raise FramingError(f"{what} is cancelled, and no such transfer is under way")
