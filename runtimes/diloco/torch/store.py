"""A torch module's parameters in canonical form.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch

from diloco.algorithm.layout import FrozenTensor, TensorSpec
from diloco.canonical import Canonical, Part, lay_out
from diloco.learner.store import Float32Array, Ready, check_size
from diloco.torch.frozen import digest
from diloco.torch.parameters import parameters_of
from diloco.torch.staging import StagedTensors, Stager


class ModuleStore:
    """A `ParameterStore` over a module's trained parameters, on any device and of any floating type.

    Tied parameters count once, under the name that the module registered first. What torch.compile, DistributedDataParallel and
    activation checkpointing put into names is left out. Buffers (running statistics) are the unit's own and are not exchanged.
    Canonical values are float32; a parameter of a shorter type is rounded to it when a fragment is adopted, so a model trained in
    bfloat16 should keep float32 parameters and compute in autocast where it can.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
        trained: Callable[[str], bool] | None = None,
    ) -> None:
        """`canonical`: for parameters whose canonical form differs, by name in the module; the others keep name and shape.
        `embeddings`: by name in the module; default: the weights of `Embedding` and `EmbeddingBag`, also where they are tied.
        `trained`: by name in the module, which parameters are exchanged; default: those that require a gradient. The others are frozen.

        Raises LayoutError for a parameter that cannot be exchanged (not of a real floating type, sharded over processes, without
        storage) and for a mapping that does not fit.
        """
        self.parameters = parameters_of(module, trained)
        self._parameters = self.parameters.all()
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        parts = lay_out(shapes, canonical or {}, embeddings or self._embedding_rule(module))
        self._parts = {name: part for name, part in parts.items() if part.parameter in self.parameters.trained}
        self._frozen = [part for part in parts.values() if part.parameter in self.parameters.frozen]
        self._stager = Stager(pinned=any(parameter.device.type == "cuda" for parameter in self.parameters.trained.values()))

    def specs(self) -> Sequence[TensorSpec]:
        """Every canonical tensor that is exchanged, sorted by canonical name."""
        return [part.spec for part in self._parts.values()]

    def frozen(self) -> Sequence[FrozenTensor]:
        """Every canonical tensor of the frozen parameters, sorted by canonical name. A complex one ends with an axis of two."""
        return [self._digested(part) for part in self._frozen]

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        """Allocate the host memory, and on CUDA the device's, for two groups at once."""
        largest = max(groups, key=lambda names: sum(self._slice(self._parts[name]).nbytes for name in names))
        for staged in [self.stage(largest) for _ in range(2)]:
            staged.release()

    def stage(self, names: Sequence[str]) -> StagedTensors:
        """Keep the values that the named tensors have now. On CUDA the host does not wait: the copies follow in the current stream."""
        parts = [self._parts[name] for name in names]
        return self._stager.stage(parts, [self._slice(part) for part in parts])

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Turn `values`, float32 [sum of sizes], into tensors of the parameters' types, in pinned memory for those on CUDA devices."""
        return Ready(tuple(names), tuple(self._native(part, value) for part, value in self._cut(names, values)))

    @torch.no_grad()
    def apply(self, ready: Ready) -> None:
        """Overwrite the parameters in place. On CUDA the host does not wait: the copies follow in the current stream."""
        for name, value in zip(ready.names, ready.native, strict=True):
            target = self._slice(self._parts[name])
            target.copy_(value, non_blocking=target.device.type == "cuda")

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        """`values` as the parameters keep them; `values` itself if all parameters are float32."""
        parts = self._cut(names, values)
        if all(self._slice(part).dtype in (torch.float32, torch.float64) for part, _ in parts):
            return values
        flat = [torch.from_numpy(_writable(value)).to(self._slice(part).dtype).float().reshape(-1) for part, value in parts]
        kept: Float32Array = torch.cat(flat).numpy()
        return kept

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copies in host memory of the named tensors, float32 in canonical shape, for use outside of a job. Waits for the device. Raises
        KeyError for an unknown name."""
        values = self.stage(names).wait()
        return {part.spec.name: value for part, value in self._cut(names, values)}

    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors with values in canonical shape, for use outside of a job. Raises KeyError for an unknown name,
        ValueError for another shape."""
        self.apply(Ready(tuple(values), tuple(self._native(self._parts[name], value) for name, value in values.items())))

    def parameter_names(self, names: Sequence[str]) -> list[str]:
        """The module's names of the parameters that hold these tensors, each once."""
        return list(dict.fromkeys(self._parts[name].parameter for name in names))

    def _digested(self, part: Part) -> FrozenTensor:
        value = self._slice(part)
        value = value if part.axes is None else value.permute(part.axes)
        value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        shape = tuple(value.shape)
        return FrozenTensor(part.spec.name, shape, digest(shape, (0,) * len(shape), value))

    def _native(self, part: Part, value: Float32Array) -> torch.Tensor:
        # float32 [canonical shape] -> the parameter's type and order of axes. It may share memory with `value`.
        target = self._slice(part)
        source = torch.from_numpy(_writable(part.to_native(value)))
        on_cuda = target.device.type == "cuda"
        if not on_cuda and (source.dtype, source.stride()) == (target.dtype, target.stride()):
            return source
        return torch.empty_like(target, device="cpu", pin_memory=on_cuda).copy_(source)

    def _cut(self, names: Sequence[str], values: Float32Array) -> list[tuple[Part, Float32Array]]:
        parts = [self._parts[name] for name in names]
        check_size([part.spec for part in parts], values)
        ends = list(itertools.accumulate(part.spec.size for part in parts))
        return [(part, values[end - part.spec.size : end].reshape(part.spec.shape)) for part, end in zip(parts, ends, strict=True)]

    def _slice(self, part: Part) -> torch.Tensor:
        parameter = self._parameters[part.parameter].detach()
        return parameter if part.layer is None else parameter[part.layer]

    def _embedding_rule(self, module: torch.nn.Module) -> Callable[[str], bool]:
        tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        marked = {id(child.weight) for child in module.modules() if isinstance(child, tables)}
        return lambda name: id(self._parameters[name]) in marked


def _writable(value: Float32Array) -> Float32Array:
    # torch.from_numpy refuses to promise not to write.
    return value if value.flags.writeable else value.copy(order="K")
