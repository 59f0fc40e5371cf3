"""Which parameters of a torch module are exchanged, and their names.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from diloco.algorithm.layout import LayoutError
from diloco.torch.memory import check_memory

_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
"""Parts that torch.compile and activation checkpointing insert into the names of parameters."""
_FSDP = "torch.distributed.fsdp"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


@dataclass(frozen=True)
class Parameters:
    """A module's parameters by name, without the names of wrappers. A tied parameter occurs once, under the name that the module registered
    first."""

    trained: Mapping[str, torch.nn.Parameter]
    """Parameters that units exchange."""
    frozen: Mapping[str, torch.nn.Parameter]
    """Parameters that are equal in all units, and stay as they are."""

    def all(self) -> dict[str, torch.nn.Parameter]:
        return {**self.trained, **self.frozen}


def parameters_of(module: torch.nn.Module, trained: Callable[[str], bool] | None = None) -> Parameters:
    """`trained` selects by name the parameters that are exchanged; default: those that require a gradient.

    Raises LayoutError, naming the parameter, for a module that cannot be exchanged.
    """
    _refuse_fsdp1(module)
    shard_again(module)
    named = named_parameters(module)
    for name, parameter in named.items():
        _check_exists(name, parameter)
    exchanged = {name: x for name, x in named.items() if (x.requires_grad if trained is None else trained(name))}
    if not exchanged:
        why = "none requires a gradient" if trained is None else "`trained` selects none"
        raise LayoutError(f"the model has no parameter to exchange: of its {len(named)} parameters {why}")
    for name, parameter in exchanged.items():
        _check_exchangeable(name, parameter)
    parameters = Parameters(exchanged, {name: parameter for name, parameter in named.items() if name not in exchanged})
    check_memory(parameters.trained, parameters.frozen)
    return parameters


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """All parameters by name, without the names of wrappers."""
    inner = {
        f"{path}.module" if path else "module"
        for path, child in module.named_modules(remove_duplicate=False)
        if isinstance(child, (DistributedDataParallel, DataParallel))
    }
    return {_plain(name, inner): parameter for name, parameter in module.named_parameters()}


def shard_again(module: torch.nn.Module) -> None:
    """Let FSDP put its sharded parameters back into the model, in place of those that it has gathered and kept, as it does after a forward
    pass without a backward pass. The next forward pass gathers them anew."""
    if (loaded := sys.modules.get(_FSDP)) is None:  # not imported here: that takes a second, and a model can have it only if it is loaded
        return
    for child in module.modules():
        if isinstance(child, loaded.FSDPModule):
            child.reshard()


def _plain(name: str, inner: set[str]) -> str:
    """Return the name without the parts that wrappers insert. `inner`: paths of the modules that data-parallel wrappers hold."""
    parts = name.split(".")
    return ".".join(part for end, part in enumerate(parts, 1) if part not in _WRAPPERS and ".".join(parts[:end]) not in inner)


def _refuse_fsdp1(module: torch.nn.Module) -> None:
    if (loaded := sys.modules.get(_FSDP1)) is None:  # not imported here: that takes a second, and a model can have it only if it is loaded
        return
    if any(isinstance(child, loaded.FullyShardedDataParallel) for child in module.modules()):
        raise LayoutError(
            "the model is wrapped in FullyShardedDataParallel, whose flat parameters have lost names and shapes: shard it with "
            "torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )


def _check_exists(name: str, parameter: torch.nn.Parameter) -> None:
    if is_lazy(parameter):
        raise LayoutError(f"parameter {name!r} has no shape yet: run one batch through the lazy modules before joining")
    if parameter.is_meta:
        raise LayoutError(f"parameter {name!r} is on the meta device: materialise the model before joining")


def _check_exchangeable(name: str, parameter: torch.nn.Parameter) -> None:
    if not parameter.is_floating_point():
        raise LayoutError(
            f"parameter {name!r} is {parameter.dtype}: only real floating-point parameters can be merged. Freeze it "
            "(requires_grad_(False)), leave it out with trained=…, or keep its real and imaginary part as two parameters"
        )
    if parameter.layout is not torch.strided:
        raise LayoutError(f"parameter {name!r} is {parameter.layout}: only dense parameters can be merged")
    if not parameter.numel():
        raise LayoutError(
            f"parameter {name!r} of shape {list(parameter.shape)} has no elements, so that there is nothing to merge: remove it, or freeze "
            "it (requires_grad_(False))"
        )
