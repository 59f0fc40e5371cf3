"""Checks that an optimizer trains the model that it joins with, and counts its updates.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from diloco.torch.parameters import Parameters
from diloco.wording import plural, some


def check_optimizers(parameters: Parameters, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise ValueError unless the optimizers train each exchanged parameter that requires a gradient exactly once, and nothing else;
    TypeError if one is no optimizer. A parameter that requires no gradient may be in an optimizer, which ignores it.

    An optimizer of other tensors (of a copy of the model, or of the model before its parameters were made anew) would train something
    that is never exchanged, and the job would go on as if this unit had learnt nothing.
    """
    times_held: dict[int, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or a sequence of them, not {type(optimizer).__name__}")
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            times_held[id(parameter)] = times_held.get(id(parameter), 0) + 1
            shapes[id(parameter)] = tuple(parameter.shape)
    named = parameters.all()
    own = {id(parameter) for parameter in named.values()}
    if strangers := [f"one of shape {list(shape)}" for key, shape in shapes.items() if key not in own]:
        raise ValueError(
            f"the optimizer trains {plural(len(strangers), 'parameter')} that the model does not have ({some(strangers)}): what it "
            "trains would never be exchanged. Create the optimizer from the parameters of the very model that joins, after the "
            "model was moved to its device"
        )
    if doubled := [name for name, parameter in named.items() if times_held.get(id(parameter), 0) > 1]:
        raise ValueError(f"more than one optimizer trains {some(doubled)}: each parameter belongs into one")
    if apart := [name for name, parameter in parameters.frozen.items() if parameter.requires_grad and id(parameter) in times_held]:
        raise ValueError(
            f"the optimizer trains {some(apart)}, which `trained` leaves out of the exchange: units would drift apart in it. Let "
            "`trained` select it, or take it out of the optimizer"
        )
    if idle := [name for name, parameter in parameters.trained.items() if parameter.requires_grad and id(parameter) not in times_held]:
        raise ValueError(
            f"no optimizer trains {some(idle)}: pass every optimizer as optimizer=[...], or set requires_grad to False for "
            "what shall stay as it is"
        )


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the real optimizer inside accelerate's, or `optimizer` itself."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


class UpdateCounts:
    """How many updates each optimizer has made since this object was made."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._counts = [0] * len(optimizers)
        for index, optimizer in enumerate(optimizers):
            innermost(optimizer).register_step_post_hook(self._hook(index))

    def __call__(self) -> Sequence[int]:
        return self._counts

    def _hook(self, index: int) -> Callable[[torch.optim.Optimizer, tuple[Any, ...], dict[str, Any]], None]:
        def count(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling():  # in a compiled step the count would be a constant: each one would compile it anew
                self._counts[index] += 1

        return count
