"""The tensors of a safetensors file of any program, block by block: memory does not grow with the model.

The safetensors library reads paths of a disk only, and as numpy arrays no bfloat16. A test compares with the library.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diloco.export.places import ExportError
from diloco.safetensors_header import TensorPlace, read_header

_BLOCK = 4 << 20
_BFLOAT16 = "BF16"
FLOATS: Mapping[str, str] = MappingProxyType({"F64": "<f8", "F32": "<f4", "F16": "<f2", _BFLOAT16: "<u2"})
"""Types of parameters: as a file names them -> the type of numpy with which the bytes are read."""


class Block(NamedTuple):
    """A run of elements of a tensor, in canonical order."""

    name: str
    first: int
    """Number of its first element."""
    values: NDArray[np.float32]
    """Flat."""


class StoredTensor(NamedTuple):
    """What a file says of one tensor."""

    dtype: str
    """As the format names it, such as "BF16"."""
    shape: tuple[int, ...]


class SafetensorsFile:
    """A file that is open. Raises ExportError for what is no such file."""

    def __init__(self, file: Any, size: int, name: str) -> None:
        """Read the header. `file`: binary and seekable; `size`: of all of it; `name`: for messages."""
        self._file = file
        self._name = name
        try:
            self._data_at, self._places = read_header(self._read, size)
            _judge(self._places, size - self._data_at)
        except ValueError as error:
            raise ExportError(f"{name} is no safetensors file: {error}") from error

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """All of them, by name."""
        return {each.name: StoredTensor(each.dtype, each.shape) for each in self._places}

    def blocks(self, names: Collection[str]) -> Iterator[Block]:
        """Yield these tensors, in the order in which they lie. Each must have one of the types `FLOATS`."""
        for place in self._places:
            if place.name not in names:
                continue
            self._file.seek(self._data_at + place.begin)
            form = np.dtype(FLOATS[place.dtype])
            first, left = 0, place.end - place.begin
            while left:
                data = self._read(min(_BLOCK, left))
                left -= len(data)
                values = _decoded(np.frombuffer(data, form), place.dtype)
                yield Block(place.name, first, values)
                first += values.size

    def _read(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = self._file.read(left)
            if not part:
                raise ExportError(f"{self._name} ends too early: it is truncated")
            left -= len(part)
            parts.append(bytes(part))
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _judge(places: Sequence[TensorPlace], size: int) -> None:
    """Raise ValueError for tensors that do not lie within `size` bytes, or not as their types and shapes need."""
    for each in places:
        if not 0 <= each.begin <= each.end <= size:
            raise ValueError(f"tensor {each.name} lies beyond its end: it is truncated")
        form = FLOATS.get(each.dtype)
        if form is None:
            continue
        if min(each.shape, default=0) < 0 or each.end - each.begin != np.dtype(form).itemsize * math.prod(each.shape):
            raise ValueError(f"tensor {each.name} has not as many bytes as its shape and type need")
    for before, after in itertools.pairwise(places):
        if after.begin < before.end:
            raise ValueError(f"tensors {before.name} and {after.name} overlap")


def _decoded(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == _BFLOAT16:
        return (values.astype("<u4") << 16).view("<f4").astype(np.float32, copy=False)
    with np.errstate(over="ignore"):  # infinity is refused as such
        return values.astype(np.float32, copy=False)
