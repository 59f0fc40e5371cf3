"""The tensors of a safetensors file, read block by block: memory does not grow with the model.

The file comes in: one of a disk, of an object store, or one that keeps a checksum of all that is read of it. The safetensors library reads
paths of a disk only, as numpy arrays no bfloat16, and single tensors without a checksum of the file. Tests compare with the library.

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
"""Bytes of a block, at most."""
FLOAT_BYTES: Mapping[str, int] = MappingProxyType({"F64": 8, "F32": 4, "F16": 2, "BF16": 2})
"""Types of parameters, as the format names them -> bytes of an element."""


class Readable(Protocol):
    """A binary file. One that only reads on must not be asked to seek back."""

    def read(self, size: int, /) -> bytes: ...
    def seek(self, position: int, /) -> object: ...


class SafetensorsFile:
    """The tensors of an open file."""

    def __init__(self, file: Readable, size: int) -> None:
        """Read and judge the header of a file of `size` bytes, at whose beginning `file` is. Raises NotSafetensorsError, and what reading
        raises."""
        self._file = file
        self.data_at, self.places = read_header(self._exactly, size)
        _judge(self.places, size - self.data_at)

    def blocks(self, names: Collection[str]) -> Iterator[tuple[TensorPlace, int, bytes]]:
        """Yield these tensors in the order in which they lie: (tensor, where in it the block begins, its bytes). Raises NotSafetensorsError
        where the file ends too early."""
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
    """Raise NotSafetensorsError for tensors that do not lie within `size` bytes, or not as their types and shapes need."""
    for each in places:
        if not 0 <= each.begin <= each.end <= size:
            raise NotSafetensorsError(f"tensor {each.name} lies beyond its end: it is truncated")
        item = FLOAT_BYTES.get(each.dtype)
        if item is None:
            continue
        if min(each.shape, default=0) < 0 or each.end - each.begin != item * math.prod(each.shape):
            raise NotSafetensorsError(f"tensor {each.name} has not as many bytes as its shape and type need")
    for before, after in itertools.pairwise(places):
        if after.begin < before.end:
            raise NotSafetensorsError(f"tensors {before.name} and {after.name} overlap")
