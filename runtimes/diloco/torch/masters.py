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
        self._keys: dict[str, list[Any]] = {}
        """By parameter, where in its optimizer's state masters are; there is no entry while the state is empty."""

    def at(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> list[torch.Tensor]:
        """Return the same place in tensors of its optimizer's state that the parameter is a rounded copy of. `target`: that place in the
        parameter's memory, before it is overwritten."""
        if target.dtype not in (torch.bfloat16, torch.float16):
            return []
        state: dict[str, Any] = next((optimizer.state[parameter] for optimizer in self._optimizers if parameter in optimizer.state), {})
        if name not in self._keys and state:
            # Asked once: the comparison waits for the device.
            where = some_of(target)
            self._keys[name] = [key for key, value in state.items() if _is_master(value, parameter, place, target[where], where)]
        return [local(state[key])[(*place.where, ...)] for key in self._keys.get(name, ()) if key in state]


def _is_master(value: object, parameter: torch.Tensor, place: Place, now: torch.Tensor, where: tuple[torch.Tensor, ...]) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != parameter.shape:
        return False
    return bool(now.any()) and torch.equal(local(value)[(*place.where, ...)][where].to(now.dtype), now)


def some_of(target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the places of SAMPLE elements, evenly over the tensor, as indices of each axis."""
    count = min(SAMPLE, target.numel())
    flat = torch.arange(count, device=target.device) * target.numel() // max(1, count)
    return torch.unravel_index(flat, target.shape)
