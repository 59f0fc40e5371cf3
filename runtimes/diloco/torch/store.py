"""A torch module's parameters in canonical form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from diloco.algorithm.layout import TensorSpec
from diloco.canonical import Canonical, Part, lay_out
from diloco.learner.store import Float32Array

_COMPILED = "_orig_mod."
"""What torch.compile puts into the names of a module's parameters: no part of the model's layout."""


class ModuleStore:
    """A `ParameterStore` over a module's parameters, on any device and of any floating type.

    Tied parameters count once, under the name that the module registered first. Buffers (running statistics) are the unit's own and
    are not exchanged. Canonical values are float32; a parameter of a shorter type is rounded to it when a fragment is adopted, so a
    model trained in bfloat16 should keep float32 parameters and compute in autocast where it can.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
    ) -> None:
        """`canonical`: for parameters whose canonical form differs, by name in the module; the others keep name and shape.
        `embeddings`: by name in the module; default: the weights of `Embedding` and `EmbeddingBag`, also where they are tied.

        Raises TypeError for a parameter that cannot be exchanged (not floating, sharded over processes, without storage), ValueError for
        a mapping that does not fit.
        """
        self._parameters = {name.replace(_COMPILED, ""): parameter for name, parameter in module.named_parameters()}
        for name, parameter in self._parameters.items():
            _check_exchangeable(name, parameter)
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        self._parts = lay_out(shapes, canonical or {}, embeddings or self._embedding_rule(module))

    def specs(self) -> Sequence[TensorSpec]:
        """Every canonical tensor of the model, sorted by canonical name."""
        return [part.spec for part in self._parts.values()]

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copies in host memory of the named tensors, float32 in canonical shape. Raises KeyError for an unknown name."""
        return {name: self._read(self._parts[name]) for name in names}

    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors with values in canonical shape. Raises KeyError for an unknown name, ValueError for another shape."""
        with torch.no_grad():
            for name, value in values.items():
                part = self._parts[name]
                # torch.from_numpy refuses to promise not to write, so it gets a copy of its own.
                self._slice(part).copy_(torch.from_numpy(np.array(part.to_native(value), order="C")))

    def _read(self, part: Part) -> Float32Array:
        # First to the host, then to float32: half the transfer for a bfloat16 parameter.
        return part.to_canonical(self._slice(part).to("cpu").to(torch.float32).numpy())

    def _slice(self, part: Part) -> torch.Tensor:
        parameter = self._parameters[part.parameter].detach()
        return parameter if part.layer is None else parameter[part.layer]

    def _embedding_rule(self, module: torch.nn.Module) -> Callable[[str], bool]:
        tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        marked = {id(child.weight) for child in module.modules() if isinstance(child, tables)}
        return lambda name: id(self._parameters[name]) in marked


def _check_exchangeable(name: str, parameter: torch.nn.Parameter) -> None:
    if not parameter.is_floating_point():
        raise TypeError(f"parameter {name!r} is {parameter.dtype}: only floating-point parameters can be merged")
    if parameter.is_meta:
        raise TypeError(f"parameter {name!r} is on the meta device: materialise the model before joining")
    if hasattr(parameter, "device_mesh"):
        raise TypeError(f"parameter {name!r} is sharded over processes (DTensor): join with a module whose parameters are whole")
