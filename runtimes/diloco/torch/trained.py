"""Whether the program still trains the parameters that it joined with.

What it trains beside them is exchanged with no unit, and what it has put others in the place of is exchanged for nothing: the job would
be complete, and units would end with different models.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diloco.learner.leave import LoopError
from diloco.torch.optimizers import some
from diloco.torch.parameters import Parameters, named_parameters

_VALUES = methodcaller("values")
_FSDP = "torch.distributed.fsdp"


class TrainedParameters:
    """Those of a module and its optimizers, as they joined. `check` compares identities, so it costs microseconds and waits for nothing."""

    def __init__(self, module: torch.nn.Module, parameters: Parameters, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._module = module
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.all().items()}
        self._optimizers = optimizers
        self._others = _OtherOptimizers(self._names, optimizers)
        self._remember()

    def check(self) -> None:
        """Raise LoopError, with the names, when the program trains others than it joined with."""
        if self._is_as_before():
            return
        _shard_again(self._module)
        if self._is_as_before():
            return
        if found := self._found():
            raise LoopError(
                f"the program trains other parameters than it joined with: {'; '.join(found)}. Units would end with different models. "
                "Make every layer and every optimizer before join, which gets them; for layers that are frozen at first and trained "
                "later, join with trained=lambda name: True"
            )
        self._remember()  # a layer without gradients, or another place for the same parameters

    def _remember(self) -> None:
        self._dicts: list[dict[str, Any]] = [
            one
            for child in self._module.modules()
            for one in (child._modules, child._parameters)  # noqa: SLF001 - no other view is as fast
        ]
        self._sizes = [len(one) for one in self._dicts]
        self._values = [value for one in self._dicts for value in one.values()]
        self._given = self._in_optimizers()
        given = {id(parameter) for parameter in self._given}
        self._resting = [one for one in self._parameters.frozen.values() if id(one) in given]
        """Frozen parameters that an optimizer passes over, as they require no gradient."""

    def _is_as_before(self) -> bool:
        given = self._in_optimizers()
        return (
            [*map(len, self._dicts)] == self._sizes
            and all(map(is_, chain.from_iterable(map(_VALUES, self._dicts)), self._values))
            and len(given) == len(self._given)
            and all(map(is_, given, self._given))
            and not any(parameter.requires_grad for parameter in self._resting)
            and not self._others.trained
        )

    def _found(self) -> list[str]:
        """Return what is another than in `join`, in sentences."""
        joined, now = self._parameters.all(), named_parameters(self._module)
        others = {name: one for name, one in now.items() if id(one) not in self._names}
        replaced = [name for name in others if name in joined]
        added = [name for name, one in others.items() if one.requires_grad and name not in joined]
        held = {id(one) for one in now.values()}
        gone = [name for name, one in self._parameters.trained.items() if id(one) not in held and name not in replaced]
        trained = {id(one): one for one in self._in_optimizers()}
        unfrozen = [name for name, one in self._parameters.frozen.items() if one.requires_grad and id(one) in trained]
        named = {id(one) for one in others.values()}
        strangers = [f"one of shape {list(one.shape)}" for key, one in trained.items() if key not in self._names and key not in named]
        found = {
            "there are others in the place of {}, which joined": replaced,
            "{} came after join": added,
            "{} joined, and the model has them no more": gone,
            "an optimizer trains {}, frozen in join": unfrozen,
            "an optimizer trains what the model does not have ({})": strangers,
            "an optimizer that did not join trains {}": list(self._others.trained),
        }
        return [sentence.format(some(names)) for sentence, names in found.items() if names]

    def _in_optimizers(self) -> list[torch.Tensor]:
        return [one for optimizer in self._optimizers for group in optimizer.param_groups for one in group["params"]]


class _OtherOptimizers:
    """Watches the steps of all optimizers of the process. One that did not join has its own moments, which no unit that begins gets."""

    def __init__(self, names: Mapping[int, str], joined: Sequence[torch.optim.Optimizer]) -> None:
        """`names`: of the model's parameters, by identity. Optimizers inside of those that joined, such as SAM's base, are theirs."""
        inside = (value for optimizer in joined for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer))
        self.trained: dict[str, None] = {}
        """Names of parameters that an optimizer which did not join has updated."""
        known = weakref.WeakSet([*joined, *inside])
        trained = self.trained

        def stepped(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if torch.compiler.is_compiling() or optimizer in known:
                return
            trained.update({names[id(one)]: None for group in optimizer.param_groups for one in group["params"] if id(one) in names})
            known.add(optimizer)  # each is looked at once: hooks of all steps must cost nothing

        handle = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, handle.remove)


def _shard_again(module: torch.nn.Module) -> None:
    """Let FSDP put its sharded parameters back, which joined: after an evaluation it leaves the gathered ones in the model."""
    if (loaded := sys.modules.get(_FSDP)) is None:  # torch does not load it by itself, and it takes a second
        return
    for child in module.modules():
        if isinstance(child, loaded.FSDPModule):
            child.reshard()
