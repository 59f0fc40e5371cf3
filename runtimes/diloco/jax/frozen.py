"""Digests of the frozen leaves of a pytree: see `diloco.algorithm.frozen`.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diloco.algorithm.frozen import MASK, blocks, digest
from diloco.algorithm.layout import FrozenTensor
from diloco.canonical import Part
from diloco.jax.shards import with_shards

type _Array = np.ndarray[Any, Any]


def frozen_tensors(parts: Sequence[Part], leaves: Mapping[str, Any]) -> list[FrozenTensor]:
    """Return the canonical tensors of the leaves that are arrays or numbers. A key of random numbers counts as its data. The shape of
    complex numbers ends with an axis of two. At most one shard or layer of an array is copied to the host at a time."""
    tensors = []
    for part in parts:
        leaf = leaves[part.parameter]
        if isinstance(leaf, (bool, int, float, complex)):
            leaf = np.asarray(leaf)
        if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
            tensors.append(_tensor(part, leaf))
    return tensors


def _tensor(part: Part, leaf: Any) -> FrozenTensor:
    total = 0
    shape = (*part.spec.shape, 2) if np.iscomplexobj(leaf) else part.spec.shape
    for start, value in _pieces(part, leaf):
        canonical = value if part.axes is None else value.transpose((*part.axes, *range(len(part.axes), value.ndim)))
        first = start if part.axes is None else (*(start[axis] for axis in part.axes), *start[len(part.axes) :])
        shape = (*part.spec.shape, *value.shape[len(part.spec.shape) :])
        for at, size in blocks((0,) * canonical.ndim, canonical.shape):
            where = tuple(slice(low, low + length) for low, length in zip(at, size, strict=True))
            block = np.asarray(canonical[where])
            total += digest(shape, tuple(a + b for a, b in zip(first, at, strict=True)), block)
    return FrozenTensor(part.spec.name, shape, total & MASK)


def _pieces(part: Part, leaf: Any) -> Iterator[tuple[tuple[int, ...], _Array]]:
    """Yield the start of each piece, in the parameter's order of axes, and its values on the host."""
    if not isinstance(leaf, jax.Array):
        value = _numbers(np.asarray(leaf))
        if part.layer is not None:
            value = value[part.layer]
        yield (0,) * value.ndim, value
        return
    for shard in with_shards(leaf).addressable_shards:
        if shard.replica_id != 0:  # each element counts once, over all processes
            continue
        start = tuple(index.start or 0 for index in shard.index)
        data = shard.data
        if part.layer is not None:
            local = part.layer - start[0]
            if not 0 <= local < data.shape[0]:
                continue
            data, start = data[local], start[1:]
        if jnp.issubdtype(data.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(data)
        value = _numbers(np.asarray(data))
        yield (*start, *itertools.repeat(0, value.ndim - len(start))), value


def _numbers(value: _Array) -> _Array:
    """Complex numbers as pairs of real ones; other numbers as they are."""
    return np.stack([value.real, value.imag], axis=-1) if value.dtype.kind == "c" else value
