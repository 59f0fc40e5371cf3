"""The tensors of a safetensors file, read block by block: memory does not grow with the model.

The caller opens the file: on a disk, in an object store, or with a wrapper that computes a checksum of what is read. The safetensors
library can do none of the latter two, and reads no bfloat16 into numpy. Tests compare with the library.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from diloco.safetensors_header import NotSafetensorsError, TensorPlace, read_header

BLOCK = 4 << 20
"""The most bytes of a block."""
FLOAT_BYTES: Mapping[str, int] = MappingProxyType({"F64": 8, "F32": 4, "F16": 2, "BF16": 2})
"""Types of parameters, as the format names them, with the bytes of an element."""


class Readable(Protocol):
    """A binary file. If it can only read on, as a stream does, `blocks` may be called once."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, position: int, /) -> object: ...


class SafetensorsFile:
    """The tensors of an open file."""

    def __init__(self, file: Readable, size: int) -> None:
        """Read and check the header. `file` is at its beginning and has `size` bytes. Raises NotSafetensorsError, and errors of reading."""
        self._file = file
        self.data_at, self.places = read_header(self._exactly, size)
        _judge(self.places, size - self.data_at)

    def blocks(self, names: Collection[str]) -> Iterator[tuple[TensorPlace, int, bytes]]:
        """Yield the blocks of these tensors in the order of the file: (tensor, offset of the block in the tensor, its bytes).

        Raises NotSafetensorsError if the file ends too early.
        """
        for place in self.places:
            if place.name not in names:
                continue
            self._file.seek(self.data_at + place.begin)
            at, size = 0, place.end - place.begin
            while at < size:
                data = self._exactly(min(BLOCK, size - at))
                yield place, at, data
                at += len(data)

    def _exactly(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = self._file.read(left)
            if not part:
                raise NotSafetensorsError("it ends too early: it is truncated")
            left -= len(part)
            parts.append(bytes(part))
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _judge(places: Sequence[TensorPlace], size: int) -> None:
    """Raise NotSafetensorsError if a tensor does not lie within `size` bytes, has another length than its type and shape need, or overlaps
    another."""
    for tensor in places:
        if not 0 <= tensor.begin <= tensor.end <= size:
            raise NotSafetensorsError(f"tensor {tensor.name} lies beyond its end: it is truncated")
        item = FLOAT_BYTES.get(tensor.dtype)
        if item is None:  # no floats, so no parameters: such a tensor is not read
            continue
        if min(tensor.shape, default=0) < 0 or tensor.end - tensor.begin != item * math.prod(tensor.shape):
            raise NotSafetensorsError(f"tensor {tensor.name} has not as many bytes as its shape and type need")
    for before, after in itertools.pairwise(places):
        if after.begin < before.end:
            raise NotSafetensorsError(f"tensors {before.name} and {after.name} overlap")
