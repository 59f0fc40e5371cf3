"""What an adoption does to optimizers that keep float32 copies (masters) of shorter parameters, and whether adopted values last.

Such an optimizer computes the next parameters from its copies: an adoption that leaves these alone is undone by the next step, and the unit
trains on as if it were alone. Copies in an optimizer's state are found and overwritten, too. Where a program keeps copies of its own, a
sample of what was adopted tells.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diloco.learner.overwrite_detector import OverwriteDetector
from diloco.torch.places import Place, local

SAMPLE = 256
"""Elements of an adopted fragment that are looked at."""


@dataclass(slots=True)
class _Sample:
    """Elements of one parameter, around an adoption."""

    name: str
    elements: int
    """The elements of the parameter."""
    read: Callable[[], torch.Tensor]
    before: torch.Tensor
    adopted: torch.Tensor
    later: list[torch.Tensor]
    """After the next steps of the program."""


class Adoptions:
    """Watches the parameters of one model. `apply` of its store calls it around each adoption, the session before each step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._open: list[_Sample] = []
        self._candidates: list[_Sample] = []
        """The candidates of the fragment that is adopted now."""
        self._keys: dict[str, list[Any]] = {}
        """By parameter, where in its optimizer's state masters are; there is no entry while the state is empty."""
        self._overwrites = OverwriteDetector()

    def begin(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> Callable[[], None]:
        """Prepare to overwrite `target`, a place in a parameter's memory. Call the result afterwards."""
        masters = self._masters(name, parameter, place, target)
        looked_at = self._overwrites.looks  # each costs the host a wait for the device
        where = _some_of(target) if looked_at else ()
        before = target[where].float() if looked_at else None

        def finish() -> None:
            for master in masters:
                master.copy_(target)
            if before is not None:
                sample = _Sample(name, target.numel(), lambda: target[where].float(), before, target[where].float(), [])
                self._candidates.append(sample)

        return finish

    def adopted(self) -> None:
        """Look at the largest parameter of a fragment again, of which all were overwritten."""
        self._overwrites.adopted()
        if self._candidates:
            self._open.append(max(self._candidates, key=lambda sample: sample.elements))
            self._candidates.clear()

    @torch.no_grad()
    def stepped(self) -> None:
        """Check the parameters after a step of the program. Raises LoopError when its parameters are as if nothing had been adopted,
        several times running."""
        for sample in self._open:
            sample.later.append(sample.read())
        done = [sample for sample in self._open if len(sample.later) == 2]
        self._open = [sample for sample in self._open if len(sample.later) < 2]
        for sample in done:
            before, adopted, *after = (value.cpu().numpy() for value in (sample.before, sample.adopted, *sample.later))
            self._overwrites.judge(sample.name, before, adopted, *after)

    def _masters(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> list[torch.Tensor]:
        """Return the same place in tensors of its optimizer's state that the parameter is a rounded copy of."""
        if target.dtype not in (torch.bfloat16, torch.float16):
            return []
        state: dict[str, Any] = next((optimizer.state[parameter] for optimizer in self._optimizers if parameter in optimizer.state), {})
        if name not in self._keys and state:
            # Asked once: the comparison waits for the device.
            where = _some_of(target)
            self._keys[name] = [key for key, value in state.items() if _is_master(value, parameter, place, target[where], where)]
        return [local(state[key])[(*place.where, ...)] for key in self._keys.get(name, ()) if key in state]


def _is_master(value: object, parameter: torch.Tensor, place: Place, now: torch.Tensor, where: tuple[torch.Tensor, ...]) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != parameter.shape:
        return False
    return bool(now.any()) and torch.equal(local(value)[(*place.where, ...)][where].to(now.dtype), now)


def _some_of(target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the places of SAMPLE elements, evenly over the tensor, as indices of each axis."""
    count = min(SAMPLE, target.numel())
    flat = torch.arange(count, device=target.device) * target.numel() // max(1, count)
    return torch.unravel_index(flat, target.shape)
