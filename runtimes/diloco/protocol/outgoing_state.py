"""Makes the messages of a state's parts for a donor. `incoming_state` reads them.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from diloco.algorithm.layout import Layout
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, StateMessage, StatePart
from diloco.protocol.framing import split
from diloco.protocol.state_parts import PieceArray, to_message

CHUNK_BYTES = 1 << 20
"""Bytes of one message. While it is made, a training thread or an event loop may have to wait."""


def part_messages(
    index: int, arrays: Sequence[PieceArray], payload: bytes | bytearray | memoryview, versions: Sequence[int], layout: Layout
) -> Iterator[StateMessage | DataChunk]:
    """Yield the messages of part `index` of a state.

    Args:
        arrays: of the part, empty for the small rest
        payload: the values of `arrays`, float32, one array after the other; or the small rest
        versions: for each fragment the version of its parameters, -1 if there are none
    """
    checksum = zlib.crc32(payload)
    part = StatePart(index=index, arrays=to_message(layout, arrays), versions=versions, bytes=len(payload), checksum=checksum)
    yield StateMessage(part=part)
    yield from split(Chunk(kind=Chunk.STATE, fragment=index, coding=Chunk.FLOAT32), payload, CHUNK_BYTES)
