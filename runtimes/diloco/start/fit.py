"""Checks that a stored model fits the model that a job trains, and fills the job's parameters from it.

The stored model must have every tensor that the job trains, in its shape. Further tensors are not used, as when transformers loads a model.
The training program itself loads frozen tensors, perhaps rounded or quantized, so these are only compared between units.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Array, Fragment, unpack
from diloco.algorithm.layout import Layout
from diloco.export.places import ExportError
from diloco.safetensors_file import FLOAT_BYTES
from diloco.start.source import Source, StartError

_SHOWN = 10
"""The most tensors that a message names."""


def misfit(source: Source, layout: Layout) -> str:
    """Return which tensors of `layout` the stored model lacks, or has in another shape or type; "" if none."""
    differences = list(_differences(source, layout))
    return "; ".join(differences[:_SHOWN]) + (f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else "")


def unused(source: Source, layout: Layout) -> list[str]:
    """The names of the stored model's tensors that `layout` does not have, sorted."""
    trained, frozen = {tensor.name for tensor in layout.tensors}, {tensor.name for tensor in layout.frozen}
    return sorted(source.tensors.keys() - trained - frozen)


def read_values(source: Source, fragments: Sequence[Fragment]) -> list[Array]:
    """Return the value of each fragment, float32 [size], not checked for NaN. Blocking. Memory holds the model once. Call this only if
    there is no `misfit` with the fragments' layout. Raises StartError."""
    values = [np.empty(fragment.size, np.float32) for fragment in fragments]
    places: dict[str, NDArray[np.float32]] = {}
    for fragment, value in zip(fragments, values, strict=True):
        places |= {name: tensor.reshape(-1) for name, tensor in unpack(fragment, value).items()}
    try:
        for name, first, block in source.blocks(places.keys()):
            places[name][first : first + block.size] = block
    except ExportError as error:
        raise StartError(f"spec.startFrom: {error}") from error
    return values


def _differences(source: Source, layout: Layout) -> Iterator[str]:
    for spec in layout.tensors:
        stored = source.tensors.get(spec.name)
        if stored is None:
            yield f"tensor {spec.name}: {_shape(spec.shape)} here, not there"
        elif stored.shape != spec.shape:
            yield f"tensor {spec.name}: shape {_shape(spec.shape)} here, {_shape(stored.shape)} there"
        elif stored.dtype not in FLOAT_BYTES:
            yield f"tensor {spec.name}: {stored.dtype} there, which is none of {', '.join(FLOAT_BYTES)}"


def _shape(shape: Sequence[int]) -> str:
    return "(" + ",".join(map(str, shape)) + ")"
