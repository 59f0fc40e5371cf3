"""How a fragment's values travel: float32 values, or deltas against a base in bfloat16 or int4.

Payloads are little-endian. `BFLOAT16_DELTA`: the upper half of each float32, rounded to nearest, ties to even.
`INT4_DELTA`: blocks of 256 values; the last one may be short. First comes one float32 scale for each block (absolute maximum / 7, or 0
if that is subnormal), then the levels -7..7 as level + 8 in four bits, two in a byte, the even element in the low half.

Every function reads and writes each array once, and Python's global lock is free meanwhile (`diloco.kernels`).

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

import enum
from collections.abc import Buffer, Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from diloco import kernels
from diloco.kernels import Mode, Squares, Status, Vector

Array = NDArray[np.float32]
Array64 = NDArray[np.float64]

BLOCK: Final = 256
"""Values that share one scale in INT4_DELTA."""


class CodecError(ValueError):
    """A payload that does not fit the fragment, or values that cannot be coded."""


class NonFiniteError(CodecError):
    """Values or a payload hold NaN or infinity."""


class Coding(enum.IntEnum):
    """The same numbers as on the wire (`Chunk.Coding`)."""

    FLOAT32 = 1
    BFLOAT16_DELTA = 2
    INT4_DELTA = 3

    @property
    def delta(self) -> bool:
        """Whether the payload is a difference to a base, not the value."""
        return self is not Coding.FLOAT32


def coding_for(compression: Literal["None", "BFloat16", "Int4"]) -> Coding:
    return {"None": Coding.FLOAT32, "BFloat16": Coding.BFLOAT16_DELTA, "Int4": Coding.INT4_DELTA}[compression]


def payload_bytes(coding: Coding, n: int) -> int:
    match coding:
        case Coding.FLOAT32:
            return 4 * n
        case Coding.BFLOAT16_DELTA:
            return 2 * n
        case Coding.INT4_DELTA:
            return 4 * _blocks(n) + (n + 1) // 2


def finite(x: Array) -> bool:
    return kernels.finite(np.ascontiguousarray(x).reshape(-1))


def _new(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)


def encode(coding: Coding, x: Array, base: Array | None = None, take: Callable[[int], NDArray[np.uint8]] = _new) -> memoryview:
    """Return the payload of the float32 vector `x`. FLOAT32 codes the value `x`; the other codings code `x` as a delta, or `x - base`.

    `take(n)` gives n bytes of any content for a delta's payload. A FLOAT32 payload shares memory with `x` if `x` is contiguous: do not
    write to `x` while the payload is in use. Raises NonFiniteError if `x`, or its coded form, is not finite.
    """
    for array in (x, base):
        if array is not None and (array.ndim != 1 or array.dtype != np.float32):
            raise CodecError(f"expected a float32 vector, not {array.dtype} of shape {array.shape}")
    x = np.ascontiguousarray(x)
    payload = take(payload_bytes(coding, x.size)) if coding.delta else x.view(np.uint8)
    match coding:
        case Coding.FLOAT32:
            if base is not None:
                raise CodecError("FLOAT32 codes a value, which has no base")
            status = Status.OK if finite(x) else Status.INPUT_NOT_FINITE
        case Coding.BFLOAT16_DELTA:
            status = kernels.encode_bfloat16(x, base, payload.view(np.uint16))
        case Coding.INT4_DELTA:
            scales, packed = _int4_parts(payload, x.size)
            status = kernels.encode_int4(x, base, scales, packed)
    if status is Status.RESULT_NOT_FINITE:
        raise NonFiniteError("a delta is too large for bfloat16")
    if status is not Status.OK:
        raise NonFiniteError("the values hold NaN or infinity")
    return memoryview(payload)


def decode(coding: Coding, data: Buffer, n: int) -> Array:
    """Return the `n` float32 values of a payload, in a new array. For FLOAT32 it is a view of `data`, so read-only if `data` is.

    Raises CodecError for a payload of another size, NonFiniteError if a value is not finite.
    """
    if coding is Coding.FLOAT32:
        values: Array = payload_of(coding, data, n).view(np.float32)
        if not finite(values):
            raise NonFiniteError(_BAD_PAYLOAD)
        return values
    return _placed(coding, data, n, None, Mode.PLAIN)


def value_of(coding: Coding, data: Buffer, base: Array, out: Array | None = None) -> Array:
    """Return the value that a payload stands for: a FLOAT32 payload itself, else `base` plus the delta, in `out` or a new array. The syncer
    and every learner add with this function, so that all hold bit-identical values. Raises as `decode`."""
    return _placed(coding, data, base.size, base, Mode.ADDED, out) if coding.delta else decode(coding, data, base.size)


def outer_gradient(coding: Coding, data: Buffer, anchor: Array, out: Array | None = None) -> Array:
    """Return `anchor` minus the value that a payload stands for, in `out` or a new array. If the payload is a delta against `anchor`, that
    is minus the delta. Raises as `decode`."""
    out = np.empty(anchor.size, np.float32) if out is None else out
    _subtract(coding, data, anchor, out)
    return out


def gradient_squares(coding: Coding, data: Buffer, anchor: Array, sizes: Sequence[int]) -> Array64:
    """Return the sum of squares of each tensor of the outer gradient, float64. `sizes`: number of values of each tensor. Raises as
    `decode`, so a gradient for which this returns is finite."""
    squares = Squares(sizes)
    _subtract(coding, data, anchor, None, squares)
    return squares.sums


def vector_of(coding: Coding, payload: NDArray[np.uint8], anchor: Array) -> Vector:
    """Return the outer gradient that a payload stands for, as `kernels.combine` takes it. `payload` is a result of `payload_of`."""
    match coding:
        case Coding.FLOAT32:
            return Vector.of_float32(payload.view(np.float32), anchor)
        case Coding.BFLOAT16_DELTA:
            return Vector.of_bfloat16(payload.view(np.uint16))
        case Coding.INT4_DELTA:
            return Vector.of_int4(*_int4_parts(payload, anchor.size), anchor.size)


def _subtract(coding: Coding, data: Buffer, anchor: Array, out: Array | None, squares: Squares | None = None) -> None:
    base, mode = (None, Mode.NEGATED) if coding.delta else (anchor, Mode.SUBTRACTED)
    _place(coding, data, anchor.size, base, mode, out, squares)


def leave_rounding_error(coding: Coding, data: Buffer, x: Array) -> None:
    """Subtract from `x` what its payload `data` decodes to: `x` then holds the error of the coding. Raises as `decode`."""
    _placed(coding, data, x.size, x, Mode.SUBTRACTED, x)


_BAD_PAYLOAD: Final = "the payload holds NaN or infinity"


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _int4_parts(payload: NDArray[np.uint8], n: int) -> tuple[Array, NDArray[np.uint8]]:
    """Return scales and packed levels, as views."""
    return payload[: 4 * _blocks(n)].view(np.float32), payload[4 * _blocks(n) :]


def payload_of(coding: Coding, data: Buffer, n: int) -> NDArray[Any]:
    """Return `data` as uint8: a view if it is aligned for float32, else a copy. Raises CodecError if it has not the size of `n` values."""
    view = memoryview(data).cast("B")
    if view.nbytes != payload_bytes(coding, n):
        raise CodecError(f"the payload has {view.nbytes} bytes, {n} values in {coding.name} have {payload_bytes(coding, n)}")
    payload = np.frombuffer(view, np.uint8)
    return payload if payload.ctypes.data % 4 == 0 else payload.copy()


def _placed(coding: Coding, data: Buffer, n: int, base: Array | None, mode: Mode, out: Array | None = None) -> Array:
    """Decode into `out`, which may be `base`, or into a new array. `Mode` says what is done with `base`."""
    out = np.empty(n, np.float32) if out is None else out
    _place(coding, data, n, base, mode, out)
    return out


def _place(coding: Coding, data: Buffer, n: int, base: Array | None, mode: Mode, out: Array | None, squares: Squares | None = None) -> None:
    """Decode into `out`, which may be `base`, or is None if only `squares` are wanted."""
    payload = payload_of(coding, data, n)
    if base is not None:
        base = np.ascontiguousarray(base)
    match coding:
        case Coding.FLOAT32:
            assert base is not None
            status = kernels.place_float32(payload.view(np.float32), base, out, mode, squares)
        case Coding.BFLOAT16_DELTA:
            status = kernels.place_bfloat16(payload.view(np.uint16), base, out, mode, squares)
        case Coding.INT4_DELTA:
            scales, packed = _int4_parts(payload, n)
            status = kernels.place_int4(scales, packed, n, base, out, mode, squares)
    if status is Status.RESULT_NOT_FINITE and base is not None:
        raise NonFiniteError("base and payload are finite, what they give is not")
    if status is not Status.OK:
        raise NonFiniteError(_BAD_PAYLOAD)
