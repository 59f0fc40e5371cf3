"""A fragment's payload in chunks, and back. Transfers of different fragments may interleave on one stream; pieces of one do not reorder.
A sender may end a transfer unfinished with a chunk that says `cancelled`.

See docs/decisions/0150-bad-links.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diloco.protocol.diloco_pb2 import Chunk
from diloco.wording import plural

CHUNK_BYTES = 1 << 20
"""Payload bytes of one chunk: large enough that framing costs nothing, small enough that metadata is never stuck behind a fragment."""

OPEN_TRANSFERS = 2
"""Transfers of one stream that may be under way at a time: a peer cannot make this process reserve memory for the whole model."""


class FramingError(ValueError):
    """The peer's chunks do not make up a payload: a hole, a repetition, or more bytes than announced. The stream cannot go on."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A complete payload with the header fields of its last chunk."""

    header: Chunk
    payload: memoryview


def split(header: Chunk, payload: bytes | bytearray | memoryview, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """`payload` as chunks of at most `size` bytes that carry `header`'s other fields; an empty payload is one empty chunk.

    The slices are the only copy that is made here: a protobuf `bytes` field needs an object of its own.
    """
    view = memoryview(payload).cast("B")
    for offset in range(0, max(1, len(view)), size):
        chunk = Chunk()
        chunk.CopyFrom(header)
        chunk.total = len(view)
        chunk.offset = offset
        chunk.data = bytes(view[offset : offset + size])
        yield chunk


def is_last(chunk: Chunk) -> bool:
    """Whether the payload ends with this chunk."""
    return chunk.offset + len(chunk.data) >= chunk.total


def cancellation(of: Chunk) -> Chunk:
    """The chunk that ends, unfinished, the transfer to which the chunk `of` belongs."""
    return Chunk(kind=of.kind, fragment=of.fragment, t=of.t, cancelled=True)


class Assembler:
    """Puts the chunks of one stream together. One transfer per (kind, fragment) may be under way, and OPEN_TRANSFERS in all."""

    def __init__(self, expected: Callable[[Chunk], int]) -> None:
        """`expected`: bytes of the payload that a first chunk begins; it may raise FramingError. Memory is allocated only afterwards: a
        peer cannot make this process reserve memory at will."""
        self._expected = expected
        self._open: dict[tuple[int, int], tuple[bytearray, int, int]] = {}

    def add(self, chunk: Chunk) -> Transfer | None:
        """The complete transfer if `chunk` was its last piece. Raises FramingError."""
        key = (chunk.kind, chunk.fragment)
        what = f"{Chunk.Kind.Name(chunk.kind)} of fragment {chunk.fragment} at outer step {chunk.t}"
        if chunk.cancelled:
            self._cancel(chunk, what)
            return None
        if key not in self._open:
            if chunk.offset:
                raise FramingError(f"{what} begins at offset {chunk.offset}, not at 0")
            if len(self._open) >= OPEN_TRANSFERS:
                raise FramingError(f"{what} begins while {plural(len(self._open), 'transfer')} of this stream are unfinished")
            expected = self._expected(chunk)
            if chunk.total != expected:
                raise FramingError(f"{what} announces {plural(chunk.total, 'byte')}, the layout says {expected}")
            self._open[key] = (bytearray(chunk.total), 0, chunk.t)
        buffer, received, t = self._open[key]
        if (chunk.offset, chunk.t, chunk.total) != (received, t, len(buffer)):
            raise FramingError(
                f"{what} goes on at offset {chunk.offset} of {chunk.total}; expected offset {received} of {len(buffer)} of outer step {t}"
            )
        end = received + len(chunk.data)
        if end > len(buffer) or (not chunk.data and buffer):
            raise FramingError(f"{what} brings {plural(len(chunk.data), 'byte')} at offset {received} of {len(buffer)}")
        buffer[received:end] = chunk.data
        if end < len(buffer):
            self._open[key] = (buffer, end, t)
            return None
        del self._open[key]
        return Transfer(chunk, memoryview(buffer))

    def _cancel(self, chunk: Chunk, what: str) -> None:
        """Forget the transfer that `chunk` ends, and free its memory."""
        _, _, t = self._open.pop((chunk.kind, chunk.fragment), (b"", 0, None))
        if t != chunk.t:
            raise FramingError(f"{what} is cancelled, and no such transfer is under way")
