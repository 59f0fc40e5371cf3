"""Rectangles of arrays on their way to the host: copies on the devices, so that the program may donate the arrays.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from diloco.algorithm.pieces import Piece
from diloco.canonical import Part
from diloco.jax.shards import with_shards
from diloco.jax.store import RUNTIME_ZERO, cast, same
from diloco.learner.store import Float32Array
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


def cut(leaf: jax.Array, wanted: Rectangle) -> Shares:
    """Copy a rectangle of a leaf, all of which this process holds, and begin to bring it to the host. The host does not wait. Raises
    StateError where the process holds a part only."""
    found = []
    # Replicas are equal: each element comes to the host once.
    for shard in {str(shard.index): shard for shard in with_shards(leaf).addressable_shards}.values():
        bounds = [index.indices(length)[:2] for index, length in zip(shard.index, leaf.shape, strict=True)]
        lows = [max(low, start) for (low, _), start in zip(bounds, wanted.start, strict=True)]
        highs = [min(high, start + size) for (_, high), start, size in zip(bounds, wanted.start, wanted.size, strict=True)]
        if all(low < high for low, high in zip(lows, highs, strict=True)):
            inside = tuple(low - first for low, (first, _) in zip(lows, bounds, strict=True))
            size = tuple(high - low for low, high in zip(lows, highs, strict=True))
            copy = slice_of(shard.data, inside, RUNTIME_ZERO, size=size)
            copy.copy_to_host_async()
            where = tuple(slice(low - start, high - start) for low, high, start in zip(lows, highs, wanted.start, strict=True))
            found.append((where, copy))
    if sum(copy.size for _, copy in found) != wanted.piece.elements:
        raise StateError(f"the optimizer keeps what belongs to {wanted.piece} otherwise sharded than the parameter itself")
    return found


class StagedRectangles:
    """A `Staged` of rectangles that are on their way to the host. JAX owns the memory of the copies."""

    def __init__(self, staged: Sequence[tuple[Rectangle, Shares]]) -> None:
        self._staged = list(staged)

    def wait(self) -> Float32Array:
        flat = np.empty(sum(wanted.piece.elements for wanted, _ in self._staged), np.float32)
        start = 0
        for wanted, shares in self._staged:
            values = np.empty(wanted.size, np.float32)
            for where, copy in shares:
                values[where] = cast(np.asarray(copy), flat.dtype)
            flat[start : start + wanted.piece.elements].reshape(wanted.piece.size)[...] = wanted.canonical(values)
            start += wanted.piece.elements
        return flat

    def release(self) -> None:
        self._staged.clear()


@partial(jax.jit, static_argnames="size")
def slice_of(data: jax.Array, start: tuple[int, ...], nothing: jax.Array, *, size: tuple[int, ...]) -> jax.Array:
    """Return a rectangle of an array on one device. `nothing`: see `same`."""
    return same(jax.lax.dynamic_slice(data, start, size), nothing)
