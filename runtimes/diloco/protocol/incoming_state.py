"""Puts together and checks the messages of a state that a learner takes.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import Layout
from diloco.protocol.chunks import DataChunk
from diloco.protocol.diloco_pb2 import Chunk, StateMessage, StatePart
from diloco.protocol.framing import Assembler, FramingError
from diloco.protocol.state_parts import MOST_ARRAYS, PART_ELEMENTS, PieceArray, StateError, elements, from_message
from diloco.protocol.state_values import MOST_BYTES

MOST_WAITS = 24
"""How often a donor may say that it waits before it sends the next part. This version says so twelve times and then ends. The taker does
not train meanwhile, so a donor must not hold it with such messages alone."""


@dataclass(frozen=True, slots=True)
class ArraysReceived:
    """A part whose checksum is right."""

    arrays: Sequence[PieceArray]
    versions: Sequence[int]
    values: NDArray[np.float32] = field(repr=False)
    """The values of all arrays, one after the other."""


@dataclass(frozen=True, slots=True)
class RestReceived:
    """The small rest, whose checksum is right."""

    data: memoryview = field(repr=False)
    """For `state_values.decode`."""


@dataclass(frozen=True, slots=True)
class EndReceived:
    """Everything has come that the donor's process has."""

    elements: int
    """Elements of the model in the pieces that it gave."""


class IncomingState:
    """One transfer of a state. Once `add` has raised, nothing more of it can be used."""

    def __init__(self, layout: Layout, fragments: int, *, with_rest: bool = True) -> None:
        """`with_rest`: the small rest must come after all parts."""
        self._layout = layout
        self._with_rest = with_rest
        self._fragments = fragments
        self._assembler = Assembler(self._expected)
        self._part: StatePart | None = None
        self._arrays: list[PieceArray] = []
        self._parts = 0
        self._rest = False
        self._waits = 0
        """How often the donor has said since the last part that it waits for its next step boundary."""
        self.bytes = 0
        """Bytes of the parts that are complete."""

    def add(self, message: StateMessage | DataChunk) -> ArraysReceived | RestReceived | EndReceived | None:
        """Take the next message. None if it completes nothing. Raises StateError and FramingError for a message that cannot be right."""
        if isinstance(message, DataChunk):
            transfer = self._assembler.add(message)
            return None if transfer is None else self._complete(transfer.payload)
        if message.WhichOneof("message") is None:
            self._waits += 1
            if self._waits > MOST_WAITS:
                raise StateError(f"the donor has said {self._waits} times that it waits, and sent nothing else")
            return None
        if self._part is not None:
            raise StateError(f"part {self._part.index} of the donor's state is not whole")
        if message.WhichOneof("message") == "end":
            if (message.end.parts, message.end.bytes) != (self._parts, self.bytes) or self._rest != self._with_rest:
                raise StateError(
                    f"the donor says that its state has {message.end.parts} parts and {message.end.bytes} bytes; {self._parts} and "
                    f"{self.bytes} came, {'with' if self._rest else 'without'} the small rest"
                )
            return EndReceived(message.end.elements)
        self._announced(message.part)
        return None

    def _announced(self, part: StatePart) -> None:
        self._waits = 0
        if self._rest:
            raise StateError(f"the donor sends part {part.index} after the small rest, which is the last one")
        if part.index != self._parts or len(part.versions) != self._fragments:
            raise StateError(f"the donor sends part {part.index} with {len(part.versions)} versions in the place of part {self._parts}")
        self._arrays = from_message(self._layout, part.arrays)
        expected = 4 * elements(self._arrays)
        if part.bytes > MOST_BYTES or (self._arrays and (part.bytes != expected or expected > 4 * PART_ELEMENTS * MOST_ARRAYS)):
            raise StateError(f"part {part.index} of the donor's state has {part.bytes} bytes, not {expected}")
        self._part = part

    def _expected(self, chunk: Chunk) -> int:
        if self._part is None or chunk.kind != Chunk.STATE or chunk.fragment != self._part.index:
            raise FramingError(f"the donor sends {Chunk.Kind.Name(chunk.kind)} {chunk.fragment} that it has not announced")
        return self._part.bytes

    def _complete(self, payload: memoryview) -> ArraysReceived | RestReceived:
        part, self._part = self._part, None
        assert part is not None
        if zlib.crc32(payload) != part.checksum:
            raise StateError(f"part {part.index} of the donor's state was changed on its way: its checksum is wrong")
        self._parts += 1
        self.bytes += len(payload)
        if not self._arrays:
            self._rest = True
            return RestReceived(payload)
        values = np.frombuffer(payload, np.float32)
        if not np.isfinite(values).all():
            raise StateError(f"part {part.index} of the donor's state is not finite")
        return ArraysReceived(self._arrays, list(part.versions), values)
