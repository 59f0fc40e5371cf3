"""The header of a safetensors file: which tensors it holds, and where. Pure; the caller reads the bytes.

The format is an 8-byte length, little-endian, a JSON header and the raw buffers: https://huggingface.co/docs/safetensors. The library only
reads paths of a disk and writes whole models from memory. The tests of this module's callers compare with it.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

METADATA = "__metadata__"
"""A name that no tensor may have."""
_LONGEST = 100_000_000
"""Bytes of the longest header, as the library has it."""
_LENGTH = 8


class TensorPlace(NamedTuple):
    """What a header says of one tensor."""

    name: str
    dtype: str
    """The format's name of the type, such as "BF16"."""
    shape: tuple[int, ...]
    begin: int
    """Bytes from the end of the header."""
    end: int


class Header(NamedTuple):
    data_at: int
    """Where the first buffer begins, in bytes from the beginning of the file."""
    tensors: Sequence[TensorPlace]
    """In the order of the file."""


class NotSafetensorsError(ValueError):
    """The bytes are no header of a safetensors file."""


def read_header(read: Callable[[int], bytes], size: int) -> Header:
    """Read the header of a file of `size` bytes. `read(n)` returns exactly the next n bytes. Raises NotSafetensorsError, and what `read`
    raises. The caller checks that the tensors lie within the file, leave no gaps, and have the lengths that type and shape need."""
    length = int.from_bytes(read(_LENGTH), "little")
    if length > min(_LONGEST, size - _LENGTH):
        raise NotSafetensorsError(f"its header would have {length} bytes")
    text = read(length)
    try:
        entries = json.loads(text)
        tensors = [_place(name, entry) for name, entry in entries.items() if name != METADATA]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise NotSafetensorsError(f"its header cannot be read: {type(error).__name__}: {error}") from error
    return Header(_LENGTH + length, sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end, tensor.name)))


def _place(name: str, entry: Mapping[str, Any]) -> TensorPlace:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    return TensorPlace(name, str(entry["dtype"]), tuple(int(length) for length in entry["shape"]), begin, end)


def header_bytes(shapes: Mapping[str, Sequence[int]], dtype: str, item: int, **metadata: str) -> bytes:
    """Return length and header of a file that holds these tensors, one after the other. `item`: bytes of an element of `dtype`."""
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * item
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text
