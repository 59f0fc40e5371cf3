"""Digests of frozen tensors, which show that all units train on the same base.

A digest is a sum over the elements, each mixed with its place in the canonical tensor. So it can be computed block by block and piece by
piece, on any device and by any number of processes, and does not depend on how the tensor is sharded. It distinguishes different bases; it
is no protection against an attacker who wants two bases to look alike.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Elements that are digested at a time. The temporary arrays take 24 MiB."""
MASK = (1 << 64) - 1
PLACE, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Factors of splitmix64 (Steele, Lea and Flood, 2014): PLACE multiplies an element's place, the other two belong to the mixing rounds."""

type Block = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and size in elements."""


def blocks(start: tuple[int, ...], size: tuple[int, ...], most: int = BLOCK) -> Iterator[Block]:
    """Cut a rectangle along its first axes into blocks of at most `most` elements."""
    if math.prod(size) <= most:
        if math.prod(size):
            yield start, size
        return
    axis = next(d for d, length in enumerate(size) if length > 1)
    row = math.prod(size[axis + 1 :])
    step = max(1, most // row)
    for first in range(0, size[axis], step):
        count = min(step, size[axis] - first)
        yield from blocks(
            (*start[:axis], start[axis] + first, *start[axis + 1 :]),
            (*size[:axis], count, *size[axis + 1 :]),
            most,
        )


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor in canonical order, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def digest(shape: tuple[int, ...], start: tuple[int, ...], values: NDArray[Any]) -> int:
    """Return what the block `values` at `start` adds to its tensor's digest, 64 bits. Add the blocks' results modulo 2^64.

    Only the values count, not their type: floating-point numbers are taken as float32, others as int64.
    """
    with np.errstate(over="ignore"):
        places = np.zeros(values.shape, np.uint64)
        for axis, stride in enumerate(strides(shape)):
            along = (np.arange(values.shape[axis], dtype=np.uint64) + np.uint64(start[axis])) * np.uint64(stride)
            places += along.reshape((-1,) + (1,) * (values.ndim - axis - 1))
        mixed = _bits(values) + (places + np.uint64(1)) * np.uint64(PLACE)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(SECOND)
        return int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))


def _bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    if values.dtype.kind in "biu":
        return values.astype(np.int64).view(np.uint64)
    return values.astype(np.float32, order="C").view(np.uint32).astype(np.uint64)
