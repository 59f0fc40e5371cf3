"""A coded fragment, cut for one rank: a broadcast is coded once for all units, and every rank gets the part that it owns.

All units must adopt the same bytes, whatever their sharding, so nothing is coded anew. FLOAT32 and BFLOAT16_DELTA are cut element by
element. A cut of INT4_DELTA has the scales of the blocks that the portion touches, in the order of the blocks, then the portion's levels,
two in a byte. Ranks that share a block all get its scale. The cut of a whole fragment, for a unit of one process, is its payload.

What a rank *pushes* is no cut: it is coded as a vector of its own, see `codec`.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections.abc import Buffer, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from diloco import kernels
from diloco.algorithm import codec
from diloco.algorithm.codec import BLOCK, CodecError, Coding, NonFiniteError
from diloco.algorithm.layout import TensorSpec
from diloco.algorithm.pieces import Piece, Portion
from diloco.kernels import Runs, Status
from diloco.wording import plural

Array = NDArray[np.float32]

_MOST_RUNS: Final = 1 << 16
"""Runs that are listed at a time. A piece of one column has as many runs as rows, too many to list at once."""


def cut_bytes(coding: Coding, portion: Portion) -> int:
    """Bytes of a portion's cut. For INT4_DELTA this depends on how the portion lies in the fragment."""
    if coding is not Coding.INT4_DELTA or portion.is_whole:
        return codec.payload_bytes(coding, portion.size)
    return 4 * int(_touched(portion).sum()) + (portion.size + 1) // 2


def cut(coding: Coding, payload: Buffer, portion: Portion) -> memoryview:
    """Return a copy of the part of the fragment's payload that a rank with this portion needs. Raises CodecError for a payload of another
    size."""
    n = portion.fragment.size
    coded = _checked(payload, codec.payload_bytes(coding, n), f"{n} values in {coding.name}")
    if coding is not Coding.INT4_DELTA:
        return memoryview(portion.cut(coded.view(np.float32 if coding is Coding.FLOAT32 else np.uint16))).cast("B")
    blocks = -(-n // BLOCK)
    scales = coded[: 4 * blocks].view(np.float32)[_touched(portion)]
    out = np.empty(scales.nbytes + (portion.size + 1) // 2, np.uint8)
    out[: scales.nbytes] = scales.view(np.uint8)
    packed, levels = coded[4 * blocks :], out[scales.nbytes :]
    for runs, at in _runs(portion):
        kernels.cut_int4(packed, runs, levels, at)
    return memoryview(out)


def value_of_cut(coding: Coding, data: Buffer, portion: Portion, base: Array) -> Array:
    """Return the portion's values that a cut stands for. They equal the result of `codec.value_of` for the whole fragment, bit by bit.

    `base`: the portion of the base, float32 [size]. Raises CodecError for a cut of another size, NonFiniteError if a value is not finite.
    """
    if base.shape != (portion.size,):
        raise CodecError(f"the portion has {portion.size} values, its base the shape {base.shape}")
    if coding is not Coding.INT4_DELTA or portion.is_whole:
        return codec.value_of(coding, data, base)
    touched = _touched(portion)
    count = int(touched.sum())
    coded = _checked(data, 4 * count + (portion.size + 1) // 2, f"{portion.size} values in {plural(count, 'block')} of {coding.name}")
    scales = np.zeros(touched.size, np.float32)
    scales[touched] = coded[: 4 * count].view(np.float32)
    if not codec.finite(scales):
        raise NonFiniteError("the payload holds NaN or infinity")
    base, value = np.ascontiguousarray(base), np.empty(portion.size, np.float32)
    statuses = [kernels.add_int4_runs(scales, coded[4 * count :], runs, base, value, at) for runs, at in _runs(portion)]
    if any(status is not Status.OK for status in statuses):
        raise NonFiniteError("base and payload are finite, what they give is not")
    return value


def _checked(data: Buffer, expected: int, what: str) -> NDArray[Any]:
    """Return `data` as uint8: a view if it is aligned for float32, else a copy. Raises CodecError for another size."""
    view = memoryview(data).cast("B")
    if view.nbytes != expected:
        raise CodecError(f"the payload has {view.nbytes} bytes, {what} have {expected}")
    coded = np.frombuffer(view, np.uint8)
    return coded if coded.ctypes.data % 4 == 0 else coded.copy()


def _touched(portion: Portion) -> NDArray[np.bool_]:
    """For each block of the fragment, whether the portion has a value in it."""
    marked = np.zeros(-(-portion.fragment.size // BLOCK), np.uint8)
    for runs, _ in _runs(portion):
        kernels.mark_blocks(runs, marked)
    return marked.view(np.bool_)


def _runs(portion: Portion) -> Iterator[tuple[Runs, int]]:
    """Yield runs of the portion's elements in the fragment, each group with the place of its first element in the portion."""
    tensors = {tensor.name: (tensor, at.start) for tensor, at in portion.fragment.slices()}
    for piece, at in portion.slices():
        done = at.start
        tensor, start = tensors[piece.tensor]
        for starts, length in _runs_of(piece, tensor):
            yield Runs(starts + np.uintp(start), length, portion.fragment.size), done
            done += starts.size * length


def _runs_of(piece: Piece, tensor: TensorSpec) -> Iterator[tuple[kernels.Indices, int]]:
    """Yield (starts, length) of a piece's runs of adjacent elements in its tensor, in order; at most `_MOST_RUNS` at a time."""
    strides = [math.prod(tensor.shape[d + 1 :]) for d in range(len(tensor.shape))]
    first = sum(start * stride for start, stride in zip(piece.start, strides, strict=True))
    inner = len(tensor.shape)  # from this axis on the piece has all of the tensor
    while inner and piece.size[inner - 1] == tensor.shape[inner - 1]:
        inner -= 1
    outer = max(inner - 1, 0)  # the axis before that one is cut: a run goes along the piece's part of it
    length = math.prod(piece.size[outer:])
    count = math.prod(piece.size[:outer])
    for begin in range(0, count, _MOST_RUNS):
        left = np.arange(begin, min(begin + _MOST_RUNS, count), dtype=np.uintp)
        starts = np.full(left.size, first, np.uintp)
        for d in reversed(range(outer)):
            left, index = np.divmod(left, np.uintp(piece.size[d]))
            starts += index * np.uintp(strides[d])
        yield starts, length
