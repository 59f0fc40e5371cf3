"""Float32 copies (masters) of shorter parameters in the state of optimizers, which an adoption overwrites, too.

An optimizer that keeps such copies computes the next parameters from them: an adoption that leaves them alone is undone by the next step,
and the unit trains on as if it were alone.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diloco.torch.places import Place, local

SAMPLE = 256
"""Elements of an adopted tensor that are looked at."""


class Masters:
    """The masters of one model. They are found by what they are, not by name: float32 tensors of a parameter's state that have its shape,
    and equal it when rounded."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._keys: dict[str, list[str]] = {}
        """By parameter, where in its optimizer's state masters are; there is no entry while the state is empty, or the parameter zero."""

    def at(self, name: str, parameter: torch.Tensor, place: Place) -> list[torch.Tensor]:
        """Return the same place in tensors of its optimizer's state that the parameter is a rounded copy of. Call it before the place is
        overwritten."""
        state = state_of(self._optimizers, parameter)
        return [local(state[key])[(*place.where, ...)] for key in self.keys(name, parameter) if key in state]

    def keys(self, name: str, parameter: torch.Tensor) -> list[str]:
        """Return where in its optimizer's state masters of the parameter are."""
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return []
        if name not in self._keys and (state := state_of(self._optimizers, parameter)):
            # Asked once: the comparison waits for the device.
            held = local(parameter)
            where = some_of(held)
            if not bool((now := held[where]).any()):
                return []  # of zeros every new moment would be a master; the next call may know
            self._keys[name] = [key for key, value in state.items() if isinstance(key, str) and _is_master(value, parameter, now, where)]
        return self._keys.get(name, [])


def state_of(optimizers: Sequence[torch.optim.Optimizer], parameter: torch.Tensor) -> dict[Any, Any]:
    """Return what the optimizer of a parameter keeps of it; empty before its first step."""
    return next((one.state[parameter] for one in optimizers if parameter in one.state), {})


@torch.no_grad()
def follow(master: torch.Tensor, parameter: torch.Tensor) -> None:
    """Overwrite the elements of a master of which the parameter is no rounded copy any more: they were adopted since."""
    held, now = local(master), local(parameter)
    held.copy_(torch.where(held.to(now.dtype) == now, held, now.to(held.dtype)))


def _is_master(value: object, parameter: torch.Tensor, now: torch.Tensor, where: tuple[torch.Tensor, ...]) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != parameter.shape:
        return False
    return torch.equal(local(value)[where].to(now.dtype), now)


def some_of(target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the places of SAMPLE elements, evenly over the tensor, as indices of each axis."""
    count = min(SAMPLE, target.numel())
    flat = torch.arange(count, device=target.device) * target.numel() // max(1, count)
    return torch.unravel_index(flat, target.shape)
