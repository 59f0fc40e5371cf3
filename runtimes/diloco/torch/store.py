"""A torch module's parameters in canonical form.

See docs/decisions/0151-step-boundary.md.
See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed

from diloco.algorithm.frozen import MASK
from diloco.algorithm.layout import FrozenTensor, LayoutError, TensorSpec
from diloco.algorithm.pieces import Piece
from diloco.canonical import Canonical, Part, lay_out
from diloco.learner.store import Float32Array, Ready, check_size
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.frozen import digest
from diloco.torch.parameters import parameters_of, shard_again
from diloco.torch.places import Place, held, local
from diloco.torch.processes import Replicas, add_up, agree, gather_bytes
from diloco.torch.staging import StagedTensors, Stager


class _Fill(NamedTuple):
    """One collective among replicas."""

    dtype: torch.dtype
    sizes: list[int]
    """Elements that each rank of the group sends."""
    places: list[list[Place]]
    """Places that each rank of the group sends."""


class ModuleStore:
    """A `ParameterStore` over a module's trained parameters, on any device and of any floating type.

    A tied parameter counts once, under the name that the module registered first. Names lack the parts that torch.compile,
    DistributedDataParallel and activation checkpointing insert. Buffers (running statistics) are the unit's own and are not exchanged.
    Canonical values are float32. An adopted value is rounded to the parameter's type, so a model trained in bfloat16 should keep float32
    parameters and compute in autocast if it can.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        canonical: Mapping[str, Canonical | str] | None = None,
        embeddings: Callable[[str], bool] | None = None,
        stacks: Callable[[str], int] | None = None,
        trained: Callable[[str], bool] | None = None,
    ) -> None:
        """Raises LayoutError for a parameter that cannot be exchanged (not of a real floating type, without storage, sharded in a way
        that leaves no rectangles) and for a mapping that does not fit.

        Args, all by the parameter's name in the module:
            canonical: the canonical form of parameters where it differs. The others keep name and shape.
            embeddings: which parameters are embeddings; default: the weights of `Embedding` and `EmbeddingBag`, also if they are tied.
            stacks: how many leading axes of the canonical tensor count separate matrices (experts), each merged by itself; default: none.
            trained: which parameters are exchanged; default: those that require a gradient. The others are frozen.
        """
        self.parameters = parameters_of(module, trained)
        self._parameters = self.parameters.all()
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        parts = lay_out(shapes, canonical or {}, embeddings or self._embedding_rule(module), stacks)
        self._parts = {name: part for name, part in parts.items() if part.parameter in self.parameters.trained}
        self._frozen = [part for part in parts.values() if part.parameter in self.parameters.frozen]
        self._held = self._places_of(self._parts.values())
        """What this process stores of each tensor, one rectangle, by canonical name."""
        self._frozen_held = self._places_of(self._frozen)
        self._owned, self._owned_frozen = self._held, self._frozen_held
        self._replicas: list[Replicas] | None = None
        """Groups of ranks that hold the same pieces as this one. None if the model is not divided."""
        self._fills: dict[tuple[int, tuple[str, ...]], list[_Fill]] = {}
        """Collectives of `fill`, by the index of the group and the names of tensors. They are planned once."""
        self.device = local(next(iter(self.parameters.trained.values()))).device
        self._module = module
        self._buffers: LeadersBuffers | None = None
        self.adoption_check: AdoptionCheck | None = None
        """Is called around each adoption; None if nothing watches."""
        self._stager = Stager(pinned=any(parameter.device.type == "cuda" for parameter in self.parameters.trained.values()))

    def divide(self, *, leaders_buffers: bool = False) -> None:
        """Agree with the other ranks of torch.distributed on who owns what. Every rank must call this. Before it, this process owns all
        that it holds. `leaders_buffers`: `fill` also gives all ranks the buffers of rank 0.

        Raises LayoutError if the ranks have different models, or do not hold the whole model together.
        """
        self._buffers = LeadersBuffers(self._module, self.device) if leaders_buffers else None
        self._fills.clear()
        self._replicas, self._owned, self._owned_frozen = agree(self._parts, self._held, self._frozen_held, self.device)

    @property
    def sharded(self) -> str | None:
        """The name of a parameter that this process holds only in part; None if it holds every exchanged parameter as a whole."""
        apart = (part.parameter for name, part in self._parts.items() if name not in self._held or not self._is_whole(self._held[name]))
        return next(apart, None)

    def specs(self) -> Sequence[TensorSpec]:
        """Every exchanged tensor, sorted by canonical name."""
        return [part.spec for part in self._parts.values()]

    def dtypes(self) -> Mapping[str, str]:
        """The types of the parameters, by canonical name."""
        return {name: str(self._parameters[part.parameter].dtype).removeprefix("torch.") for name, part in self._parts.items()}

    def owned(self) -> Sequence[Piece]:
        """What this process stages and applies: all that it holds, or its share after `divide`. At most one piece of each tensor."""
        return [place.piece for place in self._owned.values()]

    def parameter(self, tensor: str) -> torch.nn.Parameter:
        """The parameter that has a tensor, even if this process stores nothing of it. Raises KeyError for a tensor that is not
        exchanged."""
        return self._parameters[self._parts[tensor].parameter]

    def held(self) -> Sequence[Piece]:
        """What this process stores: at most one piece of each tensor."""
        return [place.piece for place in self._held.values()]

    def placed(self, piece: Piece) -> tuple[Place, torch.nn.Parameter]:
        """Where this process holds a piece of a tensor, and in which parameter. Raises KeyError for a tensor that it does not hold."""
        place = self._held[piece.tensor].inner(piece)
        return place, self._parameters[place.part.parameter]

    def frozen(self) -> Sequence[FrozenTensor]:
        """Every canonical tensor of the frozen parameters, sorted by canonical name. The shape of a complex one ends with an axis of two.
        Once the model is divided, every rank must call this."""
        sums = {name: self._digest(place) for name, place in self._owned_frozen.items()}
        shapes = {part.spec.name: part.spec.shape for part in self._frozen}
        complex_ones = {part.spec.name for part in self._frozen if self._parameters[part.parameter].is_complex()}
        if self._replicas is not None:
            sums = add_up(sums, self.device)
        return [
            FrozenTensor(name, (*shape, 2) if name in complex_ones else shape, sums.get(name, 0) & MASK) for name, shape in shapes.items()
        ]

    @property
    def lent(self) -> bool:
        """Never: steps change the parameters in place."""
        return False

    def reclaim(self) -> None:
        """Do nothing: steps change the parameters in place."""

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        """Allocate the host memory, and on CUDA the device's, for two groups at once."""
        largest = max(groups, key=lambda names: sum(self._tensor(place).nbytes for place in self._places(names)))
        for staged in [self.stage(largest) for _ in range(2)]:
            staged.release()

    def stage(self, names: Sequence[str]) -> StagedTensors:
        """Keep the present values of this rank's pieces of the named tensors. On CUDA the host does not wait: the current stream copies
        them."""
        places = self._places(names)
        return self._stager.stage(places, [self._tensor(place) for place in places])

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        """Turn `values`, float32 [sum of sizes], into tensors of the parameters' types, in pinned memory for those on CUDA devices."""
        return Ready(tuple(names), tuple(self._native(place, value) for place, value in self._cut(names, values)))

    @torch.no_grad()
    def apply(self, ready: Ready) -> None:
        """Overwrite the parameters in place. On CUDA the host does not wait: the current stream copies the values."""
        shard_again(self._module)  # else the model would compute on with what FSDP gathered before
        if self.adoption_check is not None:
            # Of the parameters that `fill` overwrites, too: this rank may own nothing of one, or another layer of it.
            for name in self.parameter_names([tensor for tensor in ready.names if tensor in self._held]):
                self.adoption_check.look(name, self._parameters[name])
        for place, value in zip(self._places(ready.names), ready.native, strict=True):
            target, name = self._tensor(place), place.part.parameter
            done = self.adoption_check.begin(name, self._parameters[name], place, target) if self.adoption_check is not None else None
            target.copy_(value, non_blocking=target.device.type == "cuda")
            if done is not None:
                done()
        if self.adoption_check is not None:
            self.adoption_check.adopted()

    @torch.no_grad()
    def fill(self, names: Sequence[str]) -> None:
        """Get the pieces of the named tensors that this rank holds and other ranks own. There is one collective for each group of ranks
        that hold the same pieces, and each type of parameters. Every rank must call this for the same names."""
        for index, replicas in enumerate(self._replicas or ()):
            key = index, tuple(names)
            if key not in self._fills:
                self._fills[key] = self._plan_fill(replicas, set(names))
            for fill in self._fills[key]:
                self._fill(replicas, fill)
        if self._buffers is not None:
            self._buffers.take()

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        """Return `values` rounded to the parameters' types; `values` itself if all parameters are float32."""
        places = self._cut(names, values)
        if all(self._tensor(place).dtype in (torch.float32, torch.float64) for place, _ in places):
            return values
        flat = [torch.from_numpy(_writable(value)).to(self._tensor(place).dtype).float().reshape(-1) for place, value in places]
        kept: Float32Array = torch.cat(flat).numpy()
        return kept

    def read(self, names: Sequence[str]) -> dict[str, Float32Array]:
        """Copy the named tensors to host memory, float32 in canonical shape, for use outside of a job. Waits for the device.

        Raises KeyError for an unknown name, ValueError for a tensor that is sharded over processes.
        """
        places = [self._whole(name) for name in names]
        values = self._stager.stage(places, [self._tensor(place) for place in places]).wait()
        return {place.piece.tensor: value for place, value in _slices(places, values)}

    def write(self, values: Mapping[str, Float32Array]) -> None:
        """Overwrite the named tensors with values in canonical shape, for use outside of a job. If a tensor is sharded over processes, this
        one overwrites its part. Raises KeyError for an unknown name, ValueError for another shape."""
        shard_again(self._module)
        for name, value in values.items():
            spec = self._parts[name].spec
            if value.shape != spec.shape:
                raise ValueError(f"tensor {name!r} has shape {spec.shape}, got {value.shape}")
            if (place := self._held.get(name)) is not None:
                with torch.no_grad():
                    self._tensor(place).copy_(self._native(place, place.piece.of(value)))

    def parameter_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the parameters that hold these tensors, each once."""
        return list(dict.fromkeys(self._parts[name].parameter for name in names))

    def _plan_fill(self, replicas: Replicas, names: set[str]) -> list[_Fill]:
        """Return the collectives that fill these tensors."""
        # In the order of the parts, which is the same on all ranks: collectives in different orders would wait for each other for ever.
        types = dict.fromkeys((self._parameters[part.parameter].dtype for name, part in self._parts.items() if name in names))
        fills = []
        for dtype in types:
            pieces = [
                [x for x in owned if x.tensor in names and self._parameters[self._parts[x.tensor].parameter].dtype == dtype]
                for owned in replicas.group.owned
            ]
            sizes = [sum(piece.elements for piece in of_rank) for of_rank in pieces]
            # Every rank knows the sizes of all, so either all leave an empty collective out, or none does.
            if sum(sizes):
                fills.append(_Fill(dtype, sizes, [[self._held[piece.tensor].inner(piece) for piece in of_rank] for of_rank in pieces]))
        return fills

    def _fill(self, replicas: Replicas, fill: _Fill) -> None:
        own = [self._canonical(place).reshape(-1) for place in fill.places[replicas.index]]
        given = torch.cat(own) if own else torch.empty(0, dtype=fill.dtype, device=self.device)
        for index, part in enumerate(replicas.exchange(given, fill.sizes)):
            if index == replicas.index:
                continue
            start = 0
            for place in fill.places[index]:
                elements = place.piece.elements
                self._canonical(place).copy_(part[start : start + elements].view(place.piece.size))
                start += elements
                if self.adoption_check is not None:
                    name = place.part.parameter
                    self.adoption_check.filled(name, self._parameters[name], place, self._tensor(place))

    def _digest(self, place: Place) -> int:
        value, shape, start = self._canonical(place), place.part.spec.shape, place.piece.start
        if value.is_complex():
            value, shape, start = torch.view_as_real(value.resolve_conj()), (*shape, 2), (*start, 0)
        return digest(shape, start, value)

    def _native(self, place: Place, value: Float32Array) -> torch.Tensor:
        # float32 in canonical shape becomes a tensor of the parameter's type and order of axes. It may share memory with `value`.
        target = self._tensor(place)
        native = value if place.axes is None else value.transpose(np.argsort(place.axes))
        source = torch.from_numpy(_writable(native))
        on_cuda = target.device.type == "cuda"
        if not on_cuda and (source.dtype, source.stride()) == (target.dtype, target.stride()):
            return source
        return torch.empty_like(target, device="cpu", pin_memory=on_cuda).copy_(source)

    def _places(self, names: Sequence[str]) -> list[Place]:
        """This rank's own pieces of the named tensors."""
        if unknown := [name for name in names if name not in self._parts]:
            raise KeyError(unknown[0])
        return [self._owned[name] for name in names if name in self._owned]

    def _cut(self, names: Sequence[str], values: Float32Array) -> list[tuple[Place, Float32Array]]:
        places = self._places(names)
        check_size(names, sum(place.piece.elements for place in places), values)
        return _slices(places, values)

    def _whole(self, name: str) -> Place:
        part, place = self._parts[name], self._held.get(name)
        if place is None or not self._is_whole(place):
            raise ValueError(f"tensor {part.spec.name!r} is sharded over processes: this one does not hold all of it")
        return place

    def _is_whole(self, place: Place) -> bool:
        return place.piece.size == place.part.spec.shape

    def _tensor(self, place: Place) -> torch.Tensor:
        return local(self._parameters[place.part.parameter])[(*place.where, ...)]

    def _canonical(self, place: Place) -> torch.Tensor:
        return self._tensor(place) if place.axes is None else self._tensor(place).permute(place.axes)

    def _places_of(self, parts: Iterable[Part]) -> dict[str, Place]:
        places = {part.spec.name: held(part.parameter, self._parameters[part.parameter], part) for part in parts}
        return {name: place for name, place in places.items() if place is not None}

    def _embedding_rule(self, module: torch.nn.Module) -> Callable[[str], bool]:
        tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        marked = {id(child.weight) for child in module.modules() if isinstance(child, tables)}
        return lambda name: id(self._parameters[name]) in marked


def _slices(places: Sequence[Place], values: Float32Array) -> list[tuple[Place, Float32Array]]:
    ends = list(itertools.accumulate(place.piece.elements for place in places))
    return [(place, values[end - place.piece.elements : end].reshape(place.piece.size)) for place, end in zip(places, ends, strict=True)]


def _writable(value: Float32Array) -> Float32Array:
    # torch.from_numpy warns about a read-only array, because a tensor could be written to.
    return value if value.flags.writeable else value.copy(order="K")


# ----------------------------------------------------------------------------------------------------------------------
# The buffers of a unit's ranks, such as the running statistics of BatchNorm: each rank's own, or those of rank 0 on request.
class LeadersBuffers:
    """The buffers in one module's `state_dict`. All ranks get those of rank 0."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        """`device`: one that the default process group can send from. Raises LayoutError if the ranks have different buffers, or one is
        sharded."""
        kept = module.state_dict(keep_vars=True).keys()
        self._module = module
        self._device = device
        self._names = [name for name, _ in module.named_buffers() if name in kept]
        buffers = dict(module.named_buffers())
        for name in self._names:
            if any(not placement.is_replicate() for placement in getattr(buffers[name], "placements", ())):
                raise LayoutError(f"buffer {name!r} is sharded over the ranks: there is no leader's copy of it to take (buffers='leader')")
        own = json.dumps([[name, list(buffers[name].shape), str(buffers[name].dtype)] for name in self._names]).encode()
        for rank, other in enumerate(gather_bytes(own, device)):
            if other != own:
                raise LayoutError(f"rank {rank} has other buffers than this one: with buffers='leader' all ranks join with the same model")

    @torch.no_grad()
    def take(self) -> None:
        """Overwrite the buffers in place with those of rank 0, in one collective for each type. Every rank must call this."""
        by_name = dict(self._module.named_buffers())  # looked up again, as the program may have replaced a buffer
        buffers = [local(by_name[name]) for name in self._names]
        for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
            same = [buffer for buffer in buffers if buffer.dtype == dtype]
            flat = torch.cat([buffer.reshape(-1).to(self._device) for buffer in same])
            distributed.broadcast(flat, src=0)
            if distributed.get_rank() != 0:
                for buffer, values in zip(same, torch.split(flat, [buffer.numel() for buffer in same]), strict=True):
                    buffer.copy_(values.view(buffer.shape))
