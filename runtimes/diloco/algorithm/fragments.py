"""Cutting a model into P fragments of about equal size, and when each of them is exchanged.

This is the paper's balanced tensor fragmentation: from the largest tensor to the smallest, each goes into the fragment that is smallest so
far (longest processing time first, so the largest fragment is at most 4/3 of the best possible one).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import Layout, LayoutError, TensorSpec
from diloco.wording import plural

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some whole tensors of the model, exchanged together as one flat float32 vector with the tensors in this order."""

    index: int
    tensors: tuple[TensorSpec, ...]
    size: int
    """Elements of the flat vector."""

    def slices(self) -> Iterator[tuple[TensorSpec, slice]]:
        """Yield where each tensor lies in the flat vector."""
        start = 0
        for tensor in self.tensors:
            yield tensor, slice(start, start + tensor.size)
            start += tensor.size


def make_fragments(layout: Layout, count: int) -> tuple[Fragment, ...]:
    """Cut `layout` into `count` fragments; every tensor is in exactly one. Deterministic: every process gets the same cut.

    Raises LayoutError if there are fewer tensors than fragments.
    """
    if count < 1:
        raise LayoutError(f"fragments is {count}; it must be at least 1")
    if len(layout.tensors) < count:
        raise LayoutError(
            f"the model has {plural(len(layout.tensors), 'tensor')}, too few for {plural(count, 'fragment')} of whole tensors: "
            f"set training.fragments to at most {len(layout.tensors)}"
        )
    smallest = [(0, index) for index in range(count)]
    tensors_of: list[list[TensorSpec]] = [[] for _ in range(count)]
    for tensor in sorted(layout.tensors, key=lambda x: (-x.size, x.name)):
        size, index = smallest[0]
        tensors_of[index].append(tensor)
        heapq.heapreplace(smallest, (size + tensor.size, index))
    return tuple(
        Fragment(index, tuple(sorted(tensors, key=lambda x: x.name)), sum(x.size for x in tensors))
        for index, tensors in enumerate(tensors_of)
    )


def offsets(count: int, sync_interval: int) -> tuple[int, ...]:
    """Return offset[p] for each of `count` fragments, distinct in 0..H-1 and evenly spread. p is exchanged when t mod H == offset[p]."""
    if not 1 <= count <= sync_interval:
        raise ValueError(f"training.fragments is {count}; it must be between 1 and training.syncInterval, which is {sync_interval}")
    return tuple(p * sync_interval // count for p in range(count))


def pack(fragment: Fragment, arrays: Mapping[str, NDArray[Any]]) -> Array:
    """Return one flat float32 copy of the fragment's tensors. Raises LayoutError if one is missing or has another shape."""
    flat = np.empty(fragment.size, np.float32)
    for tensor, where in fragment.slices():
        array = arrays.get(tensor.name)
        if array is None:
            raise LayoutError(f"tensor {tensor.name} is missing")
        if tuple(array.shape) != tensor.shape:
            raise LayoutError(f"tensor {tensor.name} has shape {tuple(array.shape)}, its layout says {tensor.shape}")
        flat[where].reshape(tensor.shape)[...] = array
    return flat


def unpack(fragment: Fragment, flat: Array) -> dict[str, Array]:
    """Return a view into `flat` for each tensor, by name and in its shape. Raises LayoutError for another size."""
    if flat.shape != (fragment.size,):
        raise LayoutError(f"fragment {fragment.index} has {fragment.size} elements, not an array of shape {flat.shape}")
    return {tensor.name: flat[where].reshape(tensor.shape) for tensor, where in fragment.slices()}
