"""Whether the values that a torch program adopts last. Masters in its optimizers' states are overwritten with them.

Where a program computes the next parameters from copies of its own, a sample of what was adopted tells.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from diloco.learner.overwrite_detector import OverwriteDetector
from diloco.torch.masters import Masters, some_of
from diloco.torch.places import Place


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
        self._masters = Masters(optimizers)
        self._open: list[_Sample] = []
        self._candidates: list[_Sample] = []
        """The candidates of the fragment that is adopted now."""
        self._overwrites = OverwriteDetector()

    def begin(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> Callable[[], None]:
        """Prepare to overwrite `target`, a place in a parameter's memory. Call the result afterwards."""
        masters = self._masters.at(name, parameter, place)
        looked_at = self._overwrites.looks  # each costs the host a wait for the device
        where = some_of(target) if looked_at else ()
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
