"""Whether a model at hand is the one that a job trains, and filling the job's parameters from it.

Every tensor that the job trains must be there in its shape. What the model has beyond that is not used, as when transformers loads one.
Frozen tensors are loaded by the training program, perhaps rounded or quantized, and compared between units only.

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
"""Tensors that a message names."""


def misfit(source: Source, layout: Layout) -> str:
    """Return which tensors of `layout` the model does not have as they must be; "": none."""
    found = list(_differences(source, layout))
    return "; ".join(found[:_SHOWN]) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def unused(source: Source, layout: Layout) -> list[str]:
    """Return the names of the model's tensors that `layout` does not have, sorted."""
    trained, frozen = {tensor.name for tensor in layout.tensors}, {tensor.name for tensor in layout.frozen}
    return sorted(source.tensors.keys() - trained - frozen)


def read_values(source: Source, fragments: Sequence[Fragment]) -> list[Array]:
    """Return the value of each fragment, float32 [size], not checked for NaN. Blocking; in memory the model is there once. The model has no
    `misfit` with the fragments' layout. Raises StartError."""
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
        there = source.tensors.get(spec.name)
        if there is None:
            yield f"tensor {spec.name}: {_shape(spec.shape)} here, not there"
        elif there.shape != spec.shape:
            yield f"tensor {spec.name}: shape {_shape(spec.shape)} here, {_shape(there.shape)} there"
        elif there.dtype not in FLOAT_BYTES:
            yield f"tensor {spec.name}: {there.dtype} there, which is none of {', '.join(FLOAT_BYTES)}"


def _shape(shape: Sequence[int]) -> str:
    return "(" + ",".join(map(str, shape)) + ")"
