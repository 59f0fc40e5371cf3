"""Writing tensors as a safetensors file in one pass, without a second copy of them in memory.

`safetensors.numpy.save` builds the whole file in memory, and `save_file` returns neither the checksum nor the operating system's
error. The format is an 8-byte length, a JSON header and the raw buffers; a test compares with the library, which reads it back.

See docs/decisions/0002-snapshots-and-rollback.md.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.generic]

_DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """Size and SHA-256 (hexadecimal) of a file."""

    bytes: int
    sha256: str


def write_tensors(file: BinaryIO, tensors: Mapping[str, Array]) -> Written:
    """Write `tensors` (float32 or int64, any shape) to `file` in safetensors format; return its size and checksum.

    Raises ValueError for another dtype or a reserved name before anything is written, OSError as the file does.
    """
    # Largest items first, so that every buffer starts at a multiple of its item size; by name, so that equal state gives equal bytes.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; a snapshot holds float32 and int64 only")
        if name == "__metadata__":
            raise ValueError("a tensor cannot be called __metadata__: safetensors reserves that name")
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    size = 0
    for chunk in (len(text).to_bytes(8, "little"), text):
        file.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    for name in names:
        # A view where the tensor is contiguous; little-endian is what the format demands and all our machines have.
        data = memoryview(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8))
        for at in range(0, len(data), _CHUNK):
            chunk_view = data[at : at + _CHUNK]
            file.write(chunk_view)
            digest.update(chunk_view)
        size += len(data)
    return Written(size, digest.hexdigest())


def tensors_checksum(tensors: Mapping[str, Array]) -> Written:
    """Size and checksum of the file that `write_tensors` would write."""
    return write_tensors(_Nowhere(), tensors)


class _Nowhere(io.RawIOBase, BinaryIO):
    """Takes everything and keeps nothing."""

    def write(self, data: Any, /) -> int:
        return len(data)


def checksum(file: BinaryIO) -> Written:
    """Size and checksum of what `file` holds from its present position on."""
    digest = hashlib.sha256()
    size = 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return Written(size, digest.hexdigest())
