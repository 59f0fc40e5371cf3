"""The header of a safetensors file: which tensors it holds, and where. Pure; what it is read with comes in.

The format is an 8-byte length, little-endian, a JSON header and the raw buffers: https://huggingface.co/docs/safetensors. The library reads
paths of a disk and writes whole models from memory; tests of those who use this compare with it.

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
    """As the format names it, such as "BF16"."""
    shape: tuple[int, ...]
    begin: int
    """In bytes from the end of the header."""
    end: int


class Header(NamedTuple):
    """What a file holds."""

    data_at: int
    """Where the first buffer begins, in bytes from the beginning of the file."""
    tensors: Sequence[TensorPlace]
    """In the order in which they lie."""


class NotSafetensorsError(ValueError):
    """The bytes are no header of a safetensors file."""


def read_header(read: Callable[[int], bytes], size: int) -> Header:
    """Read the header of a file of `size` bytes; `read` gives exactly so many bytes. Whether the places are within the file, without gaps
    and as long as type and shape need is for the caller to judge. Raises NotSafetensorsError, and what `read` raises."""
    length = int.from_bytes(read(_LENGTH), "little")
    if length > min(_LONGEST, size - _LENGTH):
        raise NotSafetensorsError(f"its header would have {length} bytes")
    text = read(length)
    try:
        entries = json.loads(text)
        found = [_place(name, entry) for name, entry in entries.items() if name != METADATA]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise NotSafetensorsError(f"its header cannot be read: {type(error).__name__}: {error}") from error
    return Header(_LENGTH + length, sorted(found, key=lambda each: (each.begin, each.end, each.name)))


def _place(name: str, entry: Mapping[str, Any]) -> TensorPlace:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    return TensorPlace(name, str(entry["dtype"]), tuple(int(length) for length in entry["shape"]), begin, end)


def header_bytes(shapes: Mapping[str, Sequence[int]], dtype: str, item: int, **metadata: str) -> bytes:
    """Return the beginning of a file that holds these tensors, one after the other: the length and the header. `item`: bytes of an element
    of `dtype`."""
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * item
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text
