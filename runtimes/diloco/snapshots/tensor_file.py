"""A state's tensors as a safetensors file, written and read in one pass, so that memory holds the state only once.

`safetensors.numpy.save` builds the whole file in memory, and `save_file` returns neither the checksum nor the operating system's error;
`load_file` makes a second copy. Tests compare with the library.

See docs/decisions/0152-snapshots.md.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from diloco.safetensors_header import METADATA, NotSafetensorsError, header_bytes, read_header

type Array = NDArray[np.float32]

_DTYPE = "F32"
_ITEM = 4
_CHUNK = 16 << 20
_SKIPPED = 1 << 20
"""Bytes that are read at a time for the checksum alone."""


@dataclass(frozen=True, slots=True)
class Written:
    """Size and SHA-256 (hexadecimal) of a file."""

    bytes: int
    sha256: str


class TensorParts:
    """Float32 arrays by name, in the order of a file, and in parts that are released one by one."""

    def __init__(self, parts: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        """Raises ValueError for another dtype, a repeated name, or a name that the format reserves."""
        self._parts = deque(parts)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, array in (item for part in self._parts for item in part.items()):
            if array.dtype != np.float32:
                raise ValueError(f"tensor {name!r} is {array.dtype}; a snapshot holds float32 only")
            if name == METADATA:
                raise ValueError(f"a tensor cannot be called {METADATA}: safetensors reserves that name")
            if name in self.shapes:
                raise ValueError(f"tensor {name!r} is there twice")
            self.shapes[name] = array.shape

    def arrays(self) -> Iterator[Array]:
        """Yield all arrays, in order."""
        for part in self._parts:
            yield from part.values()

    def take(self) -> Iterator[Array]:
        """Yield all arrays, in order, and release each part before the next one. If the core has replaced an array meanwhile, its memory is
        freed."""
        while self._parts:
            yield from self._parts.popleft().values()


def write_tensors(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], arrays: Iterable[Array]) -> Written:
    """Write a safetensors file; return its size and checksum. `arrays`: float32, in the order of `shapes`. Raises OSError."""
    digest = hashlib.sha256()
    header = header_bytes(shapes, _DTYPE, _ITEM)
    file.write(header)
    digest.update(header)
    size = len(header)
    for array in arrays:
        data = _bytes_of(np.ascontiguousarray(array))
        for at in range(0, len(data), _CHUNK):
            piece = data[at : at + _CHUNK]
            file.write(piece)
            digest.update(piece)
        size += len(data)
    return Written(size, digest.hexdigest())


def tensors_checksum(tensors: TensorParts) -> Written:
    """Size and checksum of the file that `write_tensors` would write."""
    return write_tensors(_Nowhere(), tensors.shapes, tensors.arrays())


@dataclass(frozen=True, slots=True)
class ReadTensors:
    """What `read_tensors` has read."""

    written: Written
    """Size and checksum of the whole file."""
    tensors: Mapping[str, Array]
    """Good only if the checksum is right and `wrong` is empty."""
    wrong: str
    """Why the file does not hold the expected tensors; "" if it does."""


def read_tensors(file: BinaryIO, size: int, into: Mapping[str, Array] | None = None) -> ReadTensors:
    """Read a safetensors file of `size` bytes from its beginning to its end.

    `into`: the arrays to fill, float32, contiguous and writable; without it the arrays are new. The file must have these names and shapes,
    and only float32. A wrong file is read to its end, too, for the checksum. Raises OSError as the file does.
    """
    hashing = HashingFile(file)
    tensors: Mapping[str, Array] = {}
    wrong = ""
    try:
        shapes = _shapes(hashing, size)
        tensors = {name: np.empty(shape, np.float32) for name, shape in shapes.items()} if into is None else into
        if {name: array.shape for name, array in tensors.items()} != shapes:
            raise ValueError("it holds other tensors than its manifest describes")
        for name in shapes:
            hashing.fill(_bytes_of(tensors[name]))
    except ValueError as error:
        wrong = str(error)
    hashing.skip_rest()
    return ReadTensors(hashing.written(), tensors, wrong)


def _shapes(hashing: HashingFile, size: int) -> dict[str, tuple[int, ...]]:
    """Read the header: shapes by name, in the order of the file. Raises ValueError."""
    header = read_header(hashing.read, size)
    shapes: dict[str, tuple[int, ...]] = {}
    at = 0
    for name, dtype, shape, begin, end in header.tensors:
        if dtype != _DTYPE or begin != at or end - begin != _ITEM * math.prod(shape):
            raise ValueError(f"tensor {name!r} does not lie there as float32 of its shape, without a gap")
        shapes[name], at = shape, end
    if header.data_at + at != size:
        raise ValueError(f"its header describes {at} bytes of tensors, {size - header.data_at} are there")
    return shapes


def checksum(file: BinaryIO, reading: Callable[[], None] = lambda: None) -> Written:
    """Size and checksum of `file` from its present position to its end. `reading` is called after each MiB."""
    hashing = HashingFile(file)
    hashing.skip_rest(reading)
    return hashing.written()


def _bytes_of(array: Array) -> memoryview:
    """A view of a contiguous array as bytes. They are little-endian, as the format demands, on all our machines."""
    return memoryview(array.reshape(-1).view(np.uint8))


class HashingFile:
    """Reads a file from its present position on, and keeps count and checksum of the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        """`file` must have `readinto`."""
        self._file: Any = file
        self._digest = hashlib.sha256()
        self._bytes = 0

    def seek(self, position: int, reading: Callable[[], None] = lambda: None) -> None:
        """Read on to `position`, in bytes from where the file was at first. Does nothing for a position that is passed. `reading` is called
        after each MiB. Raises NotSafetensorsError at the end of the file."""
        buffer = memoryview(bytearray(_SKIPPED))
        while (left := position - self._bytes) > 0:
            self.fill(buffer[:left])
            reading()

    def written(self) -> Written:
        """Size and checksum of what was read so far."""
        return Written(self._bytes, self._digest.hexdigest())

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raises NotSafetensorsError at the end of the file."""
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def fill(self, view: memoryview) -> None:
        """Fill the buffer. Raises NotSafetensorsError at the end of the file."""
        at = 0
        while at < len(view):
            count = self._file.readinto(view[at : at + _CHUNK])
            if not count:
                raise NotSafetensorsError("it ends too early: it is truncated")
            self._note(view[at : at + count])
            at += count

    def skip_rest(self, reading: Callable[[], None] = lambda: None) -> None:
        """Read on to the end of the file. `reading` is called after each MiB."""
        buffer = memoryview(bytearray(_SKIPPED))
        while count := self._file.readinto(buffer):
            self._note(buffer[:count])
            reading()

    def _note(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self._bytes += len(piece)


class _Nowhere(io.RawIOBase, BinaryIO):
    """Takes everything and keeps nothing."""

    def write(self, data: Any, /) -> int:
        return len(data)
