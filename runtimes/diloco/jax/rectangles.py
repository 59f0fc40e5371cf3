"""Rectangles of arrays on their way to the host. They are copied on the devices first, so that the program may donate the arrays. Also
conversions of types.

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
    """Where a piece of a canonical tensor lies in a leaf, in the leaf's order of axes, with its axis of layers."""

    piece: Piece
    part: Part
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def where(self) -> tuple[slice, ...]:
        """The rectangle as an index into the leaf."""
        return tuple(slice(low, low + length) for low, length in zip(self.start, self.size, strict=True))

    def native(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view of the piece's values, which are in canonical order, in the leaf's order of axes."""
        value = values.reshape(self.piece.size)
        return (value if self.part.axes is None else value.transpose(np.argsort(self.part.axes))).reshape(self.size)

    def canonical(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view of the rectangle's values, which are in the leaf's order of axes, in canonical order."""
        own = value.reshape(self.size if self.part.layer is None else self.size[1:])
        return own if self.part.axes is None else own.transpose(self.part.axes)


def rectangle(part: Part, piece: Piece) -> Rectangle:
    order = range(len(piece.size)) if part.axes is None else [int(axis) for axis in np.argsort(part.axes)]
    start, size = tuple(piece.start[axis] for axis in order), tuple(piece.size[axis] for axis in order)
    return Rectangle(piece, part, start, size) if part.layer is None else Rectangle(piece, part, (part.layer, *start), (1, *size))


type Shares = Sequence[tuple[tuple[slice, ...], jax.Array]]
"""The parts of a rectangle on each device, with their places within the rectangle."""
_ALL = (slice(None),)


def cut(leaf: jax.Array, wanted: Rectangle) -> Shares:
    """Copy a rectangle of a leaf on its devices, and begin the transfer to the host, without waiting. Raises StateError if this process
    holds only a part of the rectangle."""
    if len(leaf.sharding.device_set) == 1:
        return [copied(leaf, wanted.start, wanted.size)]
    shares = []
    # One shard of each index: replicas are equal, and each element must come to the host once.
    for shard in {str(shard.index): shard for shard in with_shards(leaf).addressable_shards}.values():
        if (common := overlap(bounds(shard.index, leaf.shape), wanted)) is not None:
            inside, where = common
            _, copy = copied(shard.data, tuple(x.start for x in inside), tuple(x.stop - x.start for x in inside))
            shares.append((where, copy))
    if sum(copy.size for _, copy in shares) != wanted.piece.elements:
        raise StateError(f"the optimizer keeps what belongs to {wanted.piece} otherwise sharded than the parameter itself")
    return shares


type Bounds = tuple[tuple[int, int], ...]
"""Where a shard begins and ends in its leaf, along each axis."""


def bounds(index: Sequence[slice] | None, shape: tuple[int, ...]) -> Bounds:
    """`index`: of a shard, as JAX has it."""
    return tuple(along.indices(length)[:2] for along, length in zip(index or (), shape, strict=True))


def overlap(shard: Bounds, wanted: Rectangle) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return what a shard has of a rectangle, as an index into the shard and one into the rectangle. None if it has nothing of it."""
    inside, where = [], []
    for (first, end), start, size in zip(shard, wanted.start, wanted.size, strict=True):
        low, high = max(first, start), min(end, start + size)
        if low >= high:
            return None
        inside.append(slice(low - first, high - first))
        where.append(slice(low - start, high - start))
    return tuple(inside), tuple(where)


def copied(data: jax.Array, start: tuple[int, ...], size: tuple[int, ...]) -> tuple[tuple[slice, ...], jax.Array]:
    """Copy a rectangle of an array on one device, and begin the transfer to the host. Returns it as the only part of a `Shares`."""
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
    """A rectangle of an array on one device. `nothing`: see `same`."""
    return same(jax.lax.dynamic_slice(data, [start[axis] for axis in range(len(size))], size), nothing)


def parted(names: Sequence[str], shapes: Sequence[tuple[int, ...]], values: Float32Array) -> list[Float32Array]:
    """Cut `values`, float32 [sum of sizes], into views of these shapes, one after the other. Raises ValueError, naming the tensors, for
    another size."""
    sizes = [math.prod(shape) for shape in shapes]
    check_size(names, sum(sizes), values)
    ends = itertools.accumulate(sizes)
    return [values[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


def cast(value: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert a C-contiguous array to another floating type. Returns the array itself if it has this type.

    Piece by piece, because numpy holds Python's lock while it converts types that it does not know itself, such as bfloat16. The training
    thread must not wait for a whole fragment.
    """
    if value.dtype == dtype:
        return value
    source, result = value.reshape(-1), np.empty(value.size, dtype)
    for start in range(0, value.size, _CAST_ELEMENTS):
        result[start : start + _CAST_ELEMENTS] = source[start : start + _CAST_ELEMENTS]
    return result.reshape(value.shape)


_CAST_ELEMENTS = 1 << 16


RUNTIME_ZERO = np.uint8(0)
"""A 0 that the compiler does not know, see `same`."""


def same(value: jax.Array, nothing: jax.Array) -> jax.Array:
    """Return `value`, bit by bit, computed by an xor with `nothing`, a 0 that the compiler does not know.

    A copy without arithmetic counts as small for XLA's CPU client, which would run it at once on the calling thread, here for 10 ms. With
    arithmetic it uses another thread.
    """
    bits = jnp.dtype(f"uint{8 * value.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(value, bits) ^ nothing.astype(bits), value.dtype)
