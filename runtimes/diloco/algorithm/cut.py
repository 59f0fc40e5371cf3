"""A coded fragment, cut for one rank: a broadcast is coded once for all units, and every rank gets what it owns of it.

Whatever the sharding, all units adopt the same bytes, so nothing is coded anew. FLOAT32 and BFLOAT16_DELTA are cut element by element. Of
INT4_DELTA a cut has the scales of the blocks that the portion touches, in the order of the blocks, then the portion's levels, two to a
byte: several ranks get the scale of a block that they share. The cut of a whole fragment, as of a unit of one process, is its payload.

What a rank *pushes* is not cut: it is coded as a vector of its own, see `codec`.

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
"""Runs that are listed at a time: a piece of one column has as many as rows."""


def cut_bytes(coding: Coding, portion: Portion) -> int:
    """Return bytes of a portion's cut. Of INT4_DELTA it depends on how the portion lies in the fragment."""
    if coding is not Coding.INT4_DELTA or portion.is_whole:
        return codec.payload_bytes(coding, portion.size)
    return 4 * int(_touched(portion).sum()) + (portion.size + 1) // 2


def cut(coding: Coding, payload: Buffer, portion: Portion) -> memoryview:
    """Return what a rank with this portion needs of the fragment's payload, as a copy. Raises CodecError for a payload of another size."""
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
    """Return the portion's values that a cut stands for: bit for bit those which `codec.value_of` gives for the whole fragment. `base`: the
    portion's values of the base, float32 [size].

    Raises CodecError for a cut of another size, NonFiniteError if a value is not finite.
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
    found = [kernels.add_int4_runs(scales, coded[4 * count :], runs, base, value, at) for runs, at in _runs(portion)]
    if any(status is not Status.OK for status in found):
        raise NonFiniteError("base and payload are finite, what they give is not")
    return value


def _checked(data: Buffer, expected: int, what: str) -> NDArray[Any]:
    """Return `data` as bytes, a view where it lies as float32 must. Raises CodecError for another size."""
    view = memoryview(data).cast("B")
    if view.nbytes != expected:
        raise CodecError(f"the payload has {view.nbytes} bytes, {what} have {expected}")
    coded = np.frombuffer(view, np.uint8)
    return coded if coded.ctypes.data % 4 == 0 else coded.copy()


def _touched(portion: Portion) -> NDArray[np.bool_]:
    """Say of each block of the fragment whether the portion has a value in it."""
    marked = np.zeros(-(-portion.fragment.size // BLOCK), np.uint8)
    for runs, _ in _runs(portion):
        kernels.mark_blocks(runs, marked)
    return marked.view(np.bool_)


def _runs(portion: Portion) -> Iterator[tuple[Runs, int]]:
    """Yield the runs of the portion's elements in the fragment, and where the first of them lies in the portion."""
    tensors = {tensor.name: (tensor, at.start) for tensor, at in portion.fragment.slices()}
    for piece, at in portion.slices():
        done = at.start
        tensor, start = tensors[piece.tensor]
        for starts, length in _runs_of(piece, tensor):
            yield Runs(starts + np.uintp(start), length, portion.fragment.size), done
            done += starts.size * length


def _runs_of(piece: Piece, tensor: TensorSpec) -> Iterator[tuple[kernels.Indices, int]]:
    """Yield (starts, length) of the runs of a piece in its tensor, in order."""
    strides = [math.prod(tensor.shape[d + 1 :]) for d in range(len(tensor.shape))]
    first = sum(start * stride for start, stride in zip(piece.start, strides, strict=True))
    inner = len(tensor.shape)  # from this axis on the piece has all of the tensor
    while inner and piece.size[inner - 1] == tensor.shape[inner - 1]:
        inner -= 1
    outer = max(inner - 1, 0)  # the axis before is cut: one run of it
    length = math.prod(piece.size[outer:])
    count = math.prod(piece.size[:outer])
    for begin in range(0, count, _MOST_RUNS):
        left = np.arange(begin, min(begin + _MOST_RUNS, count), dtype=np.uintp)
        starts = np.full(left.size, first, np.uintp)
        for d in reversed(range(outer)):
            left, index = np.divmod(left, np.uintp(piece.size[d]))
            starts += index * np.uintp(strides[d])
        yield starts, length
