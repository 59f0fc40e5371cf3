"""How a fragment's values travel: float32 values, or deltas against a base in bfloat16 or int4.

Payloads are little-endian. `BFLOAT16_DELTA`: the upper half of each float32, rounded to nearest, ties to even.
`INT4_DELTA`: blocks of 256 values; first one float32 scale a block (absolute maximum / 7), then the levels -7..7 as level + 8
in four bits, two to a byte, the even element in the low half. The last block may be short.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import enum
from collections.abc import Buffer
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

BLOCK: Final = 256
"""Values that share one scale in INT4_DELTA."""
LEVELS: Final = 7
"""Largest level of INT4_DELTA."""
_CHUNK: Final = 1 << 16
"""Elements worked on at a time, so that temporaries stay in the cache. A multiple of BLOCK."""
_SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)
"""Blocks whose scale would be subnormal are coded as zeros."""


class CodecError(ValueError):
    """A payload that does not fit the fragment, or values that cannot be coded."""


class NonFiniteError(CodecError):
    """Values or a payload hold NaN or infinity."""


class Coding(enum.IntEnum):
    """As on the wire (`Chunk.Coding`)."""

    FLOAT32 = 1
    BFLOAT16_DELTA = 2
    INT4_DELTA = 3

    @property
    def delta(self) -> bool:
        """Whether the payload is a difference to a base instead of the value."""
        return self is not Coding.FLOAT32


def coding_for(compression: Literal["None", "BFloat16", "Int4"]) -> Coding:
    """The coding that `training.compression` asks for."""
    return {"None": Coding.FLOAT32, "BFloat16": Coding.BFLOAT16_DELTA, "Int4": Coding.INT4_DELTA}[compression]


def payload_bytes(coding: Coding, n: int) -> int:
    """Bytes of the payload of `n` values."""
    match coding:
        case Coding.FLOAT32:
            return 4 * n
        case Coding.BFLOAT16_DELTA:
            return 2 * n
        case Coding.INT4_DELTA:
            return 4 * _blocks(n) + (n + 1) // 2


def finite(x: Array) -> bool:
    """Whether all values are finite. Reads `x` twice and allocates nothing of its size."""
    return x.size == 0 or bool(np.isfinite(x.min()) and np.isfinite(x.max()))


def encode(coding: Coding, x: Array) -> memoryview:
    """The payload of the float32 vector `x` (a value for FLOAT32, else a delta).

    FLOAT32 shares memory with `x` where `x` is contiguous: do not write to `x` as long as the payload is in use.
    Raises NonFiniteError if `x`, or its coded form, is not finite.
    """
    if x.ndim != 1 or x.dtype != np.float32:
        raise CodecError(f"expected a float32 vector, not {x.dtype} of shape {x.shape}")
    if not finite(x):
        raise NonFiniteError("the values hold NaN or infinity")
    x = np.ascontiguousarray(x)
    match coding:
        case Coding.FLOAT32:
            return memoryview(x.astype("<f4", copy=False)).cast("B")
        case Coding.BFLOAT16_DELTA:
            return _encode_bfloat16(x)
        case Coding.INT4_DELTA:
            return _encode_int4(x)


def decode(coding: Coding, data: Buffer, n: int) -> Array:
    """The `n` float32 values of a payload; for FLOAT32 a view of `data`, so read-only if that is, else a new array.

    Raises CodecError for a payload of another size, NonFiniteError if a value is not finite.
    """
    view = memoryview(data).cast("B")
    if view.nbytes != payload_bytes(coding, n):
        raise CodecError(f"the payload has {view.nbytes} bytes, {n} values in {coding.name} have {payload_bytes(coding, n)}")
    match coding:
        case Coding.FLOAT32:
            values = np.frombuffer(view, "<f4").astype(np.float32, copy=False)
        case Coding.BFLOAT16_DELTA:
            values = _decode_bfloat16(view, n)
        case Coding.INT4_DELTA:
            values = _decode_int4(view, n)
    if not finite(values):
        raise NonFiniteError("the payload holds NaN or infinity")
    return values


def value_of(coding: Coding, data: Buffer, base: Array) -> Array:
    """The value that a payload stands for: itself for FLOAT32, else `base` plus the delta. The one addition that the syncer and
    every learner do, so that all hold bit-identical values. Never writes to `base`. Raises as `decode`."""
    decoded = decode(coding, data, base.size)
    if coding.delta:
        with np.errstate(over="ignore"):  # judged by the next line
            np.add(base, decoded, out=decoded)
        if not finite(decoded):
            raise NonFiniteError("base plus delta is not finite")
    return decoded


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _encode_bfloat16(x: Array) -> memoryview:
    out = np.empty(x.size, "<u2")
    bits = x.view(np.uint32)
    for start in range(0, x.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        out[start : start + _CHUNK] = rounded
        # finite values beyond bfloat16's largest round to infinity (exponent all ones)
        if ((rounded & 0x7F80) == 0x7F80).any():
            raise NonFiniteError("a delta is too large for bfloat16")
    return memoryview(out).cast("B")


def _decode_bfloat16(view: memoryview, n: int) -> Array:
    bits = np.frombuffer(view, "<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _encode_int4(x: Array) -> memoryview:
    blocks = _blocks(x.size)
    payload = np.empty(payload_bytes(Coding.INT4_DELTA, x.size), np.uint8)
    scales = np.empty(blocks, np.float32)
    packed = payload[4 * blocks :]
    for start in range(0, x.size, _CHUNK):
        part = x[start : start + _CHUNK]
        count = _blocks(part.size)
        if part.size % BLOCK:
            part = np.concatenate((part, np.zeros(count * BLOCK - part.size, np.float32)))
        part = part.reshape(count, BLOCK)
        scale = np.maximum(part.max(axis=1), -part.min(axis=1)) / np.float32(LEVELS)
        scale[scale < _SMALLEST_SCALE] = 0
        scales[start // BLOCK : start // BLOCK + count] = scale
        levels = part / np.where(scale > 0, scale, np.float32(np.inf))[:, None]
        np.rint(levels, out=levels)
        levels += LEVELS + 1
        nibbles = levels.astype(np.uint8).reshape(-1, 2)
        pairs = nibbles[:, 0] | (nibbles[:, 1] << 4)
        room = packed[start // 2 : start // 2 + pairs.size]
        room[:] = pairs[: room.size]
    payload[: 4 * blocks] = scales.astype("<f4", copy=False).view(np.uint8)
    return memoryview(payload)


_PAIRS: Final = np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=1).astype(np.float32) - (LEVELS + 1)
"""Byte -> its two levels."""


def _decode_int4(view: memoryview, n: int) -> Array:
    blocks = _blocks(n)
    scales = np.frombuffer(view[: 4 * blocks], "<f4").astype(np.float32, copy=False)
    if not finite(scales):
        raise NonFiniteError("a scale is NaN or infinity")
    packed = np.frombuffer(view[4 * blocks :], np.uint8)
    out = np.empty(blocks * BLOCK, np.float32)
    pairs = out.reshape(-1, 2)
    for start in range(0, packed.size, _CHUNK):
        np.take(_PAIRS, packed[start : start + _CHUNK], axis=0, out=pairs[start : start + _CHUNK][: packed.size - start])
    pairs[packed.size :] = 0
    shaped = out.reshape(blocks, BLOCK)
    shaped *= scales[:, None]
    return out[:n]
