"""Checks that the program still trains the parameters that it joined with.

Parameters that it trains beside them would never be exchanged, and those that it has replaced by others would be exchanged in vain. The job
would complete, and units would end with different models.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from diloco.learner.leave import LoopError
from diloco.torch.parameters import Parameters, named_parameters, shard_again
from diloco.wording import some

_VALUES = methodcaller("values")


class TrainedParameters:
    """The parameters of a module and its optimizers as they joined. `check` compares identities, so it takes microseconds and never waits
    for the device."""

    def __init__(self, module: torch.nn.Module, parameters: Parameters, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._module = module
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.all().items()}
        self._optimizers = optimizers
        self._others = _OtherOptimizers(self._names, optimizers)
        self._remember()

    def check(self) -> None:
        """Raise LoopError, with the names, if the program trains other parameters than it joined with."""
        if self._is_as_before():
            return
        shard_again(self._module)
        if self._is_as_before():
            return
        if changes := self._found():
            raise LoopError(
                f"the program trains other parameters than it joined with: {'; '.join(changes)}. Units would end with different models. "
                "Make every layer and every optimizer before join, which gets them; for layers that are frozen at first and trained "
                "later, join with trained=lambda name: True"
            )
        self._remember()  # no harm: a layer without gradients came, or the same parameters moved within the model

    def _remember(self) -> None:
        self._dicts: list[dict[str, Any]] = [
            x
            for child in self._module.modules()
            for x in (child._modules, child._parameters)  # noqa: SLF001 - no other view is as fast
        ]
        self._sizes = [len(x) for x in self._dicts]
        self._values = [value for x in self._dicts for value in x.values()]
        self._given = self._in_optimizers()
        given = {id(parameter) for parameter in self._given}
        self._resting = [x for x in self._parameters.frozen.values() if id(x) in given]
        """Frozen parameters in an optimizer, which ignores them as long as they require no gradient."""

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
        joined, now = self._parameters.all(), named_parameters(self._module)
        others = {name: x for name, x in now.items() if id(x) not in self._names}
        replaced = [name for name in others if name in joined]
        added = [name for name, x in others.items() if x.requires_grad and name not in joined]
        in_module = {id(x) for x in now.values()}
        gone = [name for name, x in self._parameters.trained.items() if id(x) not in in_module and name not in replaced]
        trained = {id(x): x for x in self._in_optimizers()}
        unfrozen = [name for name, x in self._parameters.frozen.items() if x.requires_grad and id(x) in trained]
        named = {id(x) for x in others.values()}
        strangers = [f"one of shape {list(x.shape)}" for key, x in trained.items() if key not in self._names and key not in named]
        names_by_sentence = {
            "there are others in the place of {}, which joined": replaced,
            "{} came after join": added,
            "{} joined, and the model has them no more": gone,
            "an optimizer trains {}, frozen in join": unfrozen,
            "an optimizer trains what the model does not have ({})": strangers,
            "an optimizer that did not join trains {}": list(self._others.trained),
        }
        return [sentence.format(some(names)) for sentence, names in names_by_sentence.items() if names]

    def _in_optimizers(self) -> list[torch.Tensor]:
        return [parameter for optimizer in self._optimizers for group in optimizer.param_groups for parameter in group["params"]]


class _OtherOptimizers:
    """Watches the steps of all optimizers of the process, for optimizers that did not join: no beginning unit would get their moments."""

    def __init__(self, names: Mapping[int, str], joined: Sequence[torch.optim.Optimizer]) -> None:
        """`names`: of the model's parameters, by identity. An optimizer inside a joined one, such as SAM's base, counts as joined."""
        inside = (value for optimizer in joined for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer))
        self.trained: dict[str, None] = {}
        """Names of parameters that other optimizers have updated, in the order in which that was seen."""
        known = weakref.WeakSet([*joined, *inside])
        trained = self.trained

        def stepped(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if torch.compiler.is_compiling() or optimizer in known:
                return
            trained.update(
                {names[id(parameter)]: None for group in optimizer.param_groups for parameter in group["params"] if id(parameter) in names}
            )
            known.add(optimizer)  # checked once: this hook runs at every step of every optimizer, and must cost nothing

        handle = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, handle.remove)
