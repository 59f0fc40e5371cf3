"""Float32 copies (masters) of shorter parameters in the state of optimizers. An adoption overwrites them, too.

An optimizer that keeps masters computes the next parameters from them. If an adoption did not overwrite them, the next step would undo it,
and the unit would train on as if it were alone.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from diloco.torch.places import Place, local

SAMPLE = 256
"""Elements of a tensor that are compared."""


class Masters:
    """The masters of one model. Their names differ between optimizers, so they are found by their values: float32 tensors in a parameter's
    state that have its shape, and equal it when rounded."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._keys: dict[str, list[str]] = {}
        """Keys of masters in each parameter's state. A parameter has no entry while its state is empty or its values are zero."""

    def at(self, name: str, parameter: torch.Tensor, place: Place) -> list[torch.Tensor]:
        """Return `place` in each master that `keys` has found for the parameter."""
        state = state_of(self._optimizers, parameter)
        return [local(state[key])[(*place.where, ...)] for key in self._keys.get(name, ()) if key in state]

    def keys(self, name: str, parameter: torch.Tensor) -> list[str]:
        """Return the keys of the parameter's masters in its optimizer's state. Call this before any part of the parameter is overwritten:
        afterwards it differs from its masters."""
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return []
        if name not in self._keys and (state := state_of(self._optimizers, parameter)):
            # Compared only once, because the comparison waits for the device.
            stored = local(parameter)
            where = some_of(stored)
            now = stored[where]
            if not bool(now.any()):
                return []  # every new moment equals a parameter of zeros; the next call may know more
            self._keys[name] = [key for key, value in state.items() if isinstance(key, str) and _is_master(value, parameter, now, where)]
        return self._keys.get(name, [])


def state_of(optimizers: Sequence[torch.optim.Optimizer], parameter: torch.Tensor) -> dict[Any, Any]:
    """Return a parameter's state in its optimizer; empty before the first step."""
    return next((optimizer.state[parameter] for optimizer in optimizers if parameter in optimizer.state), {})


@torch.no_grad()
def follow(master: torch.Tensor, parameter: torch.Tensor) -> None:
    """Overwrite those elements of a master whose rounded value is not the parameter's: the parameter adopted others since."""
    stored, now = local(master), local(parameter)
    stored.copy_(torch.where(stored.to(now.dtype) == now, stored, now.to(stored.dtype)))


def _is_master(value: object, parameter: torch.Tensor, now: torch.Tensor, where: tuple[torch.Tensor, ...]) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != parameter.shape:
        return False
    return torch.equal(local(value)[where].to(now.dtype), now)


def some_of(target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the places of at most SAMPLE elements, evenly over the tensor, as one array of indices for each axis."""
    count = min(SAMPLE, target.numel())
    flat = torch.arange(count, device=target.device) * target.numel() // max(1, count)
    return torch.unravel_index(flat, target.shape)
