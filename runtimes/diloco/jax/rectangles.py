"""Rectangles of arrays on their way to the host: copies on the devices, so that the program may donate the arrays. And what brings values
to and from their types.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.pieces import Piece
from diloco.canonical import Part
from diloco.jax.shards import with_shards
from diloco.learner.store import Float32Array, check_size
from diloco.protocol.state_parts import StateError


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Where a piece of a canonical tensor lies in a leaf, in the leaf's own order of axes, the axis of layers included."""

    piece: Piece
    part: Part
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def where(self) -> tuple[slice, ...]:
        """As an index of the leaf."""
        return tuple(slice(low, low + length) for low, length in zip(self.start, self.size, strict=True))

    def native(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the piece's values, in canonical order, as they lie in the leaf: a view."""
        value = values.reshape(self.piece.size)
        return (value if self.part.axes is None else value.transpose(np.argsort(self.part.axes))).reshape(self.size)

    def canonical(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the values of the leaf's rectangle in canonical order: a view."""
        own = value.reshape(self.size if self.part.layer is None else self.size[1:])
        return own if self.part.axes is None else own.transpose(self.part.axes)


def rectangle(part: Part, piece: Piece) -> Rectangle:
    """Return where the piece of this tensor lies."""
    order = range(len(piece.size)) if part.axes is None else [int(axis) for axis in np.argsort(part.axes)]
    start, size = tuple(piece.start[axis] for axis in order), tuple(piece.size[axis] for axis in order)
    return Rectangle(piece, part, start, size) if part.layer is None else Rectangle(piece, part, (part.layer, *start), (1, *size))


type Shares = Sequence[tuple[tuple[slice, ...], jax.Array]]
"""What each device has of a rectangle, and where within it."""
_ALL = (slice(None),)


def cut(leaf: jax.Array, wanted: Rectangle) -> Shares:
    """Copy a rectangle of a leaf, all of which this process holds, and begin to bring it to the host. The host does not wait. Raises
    StateError where the process holds a part only."""
    if len(leaf.sharding.device_set) == 1:
        return [copied(leaf, wanted.start, wanted.size)]
    found = []
    # Replicas are equal: each element comes to the host once.
    for shard in {str(shard.index): shard for shard in with_shards(leaf).addressable_shards}.values():
        bounds = [index.indices(length)[:2] for index, length in zip(shard.index, leaf.shape, strict=True)]
        lows = [max(low, start) for (low, _), start in zip(bounds, wanted.start, strict=True)]
        highs = [min(high, start + size) for (_, high), start, size in zip(bounds, wanted.start, wanted.size, strict=True)]
        if all(low < high for low, high in zip(lows, highs, strict=True)):
            inside = tuple(low - first for low, (first, _) in zip(lows, bounds, strict=True))
            size = tuple(high - low for low, high in zip(lows, highs, strict=True))
            _, copy = copied(shard.data, inside, size)
            where = tuple(slice(low - start, high - start) for low, high, start in zip(lows, highs, wanted.start, strict=True))
            found.append((where, copy))
    if sum(copy.size for _, copy in found) != wanted.piece.elements:
        raise StateError(f"the optimizer keeps what belongs to {wanted.piece} otherwise sharded than the parameter itself")
    return found


def copied(data: jax.Array, start: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[slice, ...], jax.Array]:
    """Copy what an array of one device has there, and begin to bring it to the host: the whole share of a rectangle."""
    copy = _slice_of(data, np.array(start, np.int32), RUNTIME_ZERO, size=size)
    copy.copy_to_host_async()
    return _ALL, copy


class StagedRectangles:
    """A `Staged` of rectangles that are on their way to the host. JAX owns the memory of the copies."""

    def __init__(self, staged: Sequence[tuple[Rectangle, Shares]]) -> None:
        self._staged = list(staged)

    def wait(self) -> Float32Array:
        flat = np.empty(sum(wanted.piece.elements for wanted, _ in self._staged), np.float32)
        start = 0
        for wanted, shares in self._staged:
            if len(shares) == 1:
                values = cast(np.asarray(shares[0][1]), flat.dtype)
            else:
                values = np.empty(wanted.size, np.float32)
                for where, copy in shares:
                    values[where] = cast(np.asarray(copy), flat.dtype)
            flat[start : start + wanted.piece.elements].reshape(wanted.piece.size)[...] = wanted.canonical(values)
            start += wanted.piece.elements
        return flat

    def release(self) -> None:
        self._staged.clear()


@partial(jax.jit, static_argnames="size")
def _slice_of(data: jax.Array, start: NDArray[np.int32], nothing: jax.Array, *, size: tuple[int, ...]) -> jax.Array:
    """Return a rectangle of an array on one device. `nothing`: see `same`."""
    return same(jax.lax.dynamic_slice(data, [start[axis] for axis in range(len(size))], size), nothing)


def parted(names: Sequence[str], shapes: Sequence[tuple[int, ...]], values: Float32Array) -> list[Float32Array]:
    """Return views of `values`, float32 [sum of sizes], in these shapes, one after the other. Raises ValueError for another size, which
    names the tensors."""
    sizes = [math.prod(shape) for shape in shapes]
    check_size(names, sum(sizes), values)
    ends = itertools.accumulate(sizes)
    return [values[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


def cast(value: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a C-contiguous array as another floating type; the array itself if it has it.

    Piece by piece: numpy converts the types that it does not know itself, as bfloat16, under Python's lock, and the training thread
    must not wait for a whole fragment.
    """
    if value.dtype == dtype:
        return value
    source, result = value.reshape(-1), np.empty(value.size, dtype)
    for start in range(0, value.size, _CAST_ELEMENTS):
        result[start : start + _CAST_ELEMENTS] = source[start : start + _CAST_ELEMENTS]
    return result.reshape(value.shape)


_CAST_ELEMENTS = 1 << 16


RUNTIME_ZERO = np.uint8(0)
"""A 0 that the compiler does not know: see `same`."""


def same(value: jax.Array, nothing: jax.Array) -> jax.Array:
    """Return `value`, bit by bit, of a computation with arithmetic: `nothing` is 0, which the compiler does not know. Without arithmetic
    XLA's CPU client would take the computation for a small one and run it at once on the thread that asks for it, here for 10 ms."""
    bits = jnp.dtype(f"uint{8 * value.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(value, bits) ^ nothing.astype(bits), value.dtype)
