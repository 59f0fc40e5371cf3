"""Checks that adopted values stay in a torch program, and overwrites the masters in its optimizers' states with them.

A program that computes the next parameters from its own copies would undo every adoption. A sample of the adopted values shows it.

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
    """Some elements of one parameter, before and after an adoption."""

    name: str
    elements: int
    """Number of elements of the parameter."""
    read: Callable[[], torch.Tensor]
    before: torch.Tensor
    adopted: torch.Tensor
    later: list[torch.Tensor]
    """The values after each of the program's next steps."""


class AdoptionCheck:
    """Watches the parameters of one model. The store's `apply` calls `look`, `begin` and `adopted` around each adoption, and its `fill`
    calls `filled`; the session calls `stepped` in each step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._masters = Masters(optimizers)
        self._open: list[_Sample] = []
        self._candidates: list[_Sample] = []
        """Samples of the fragment that is being adopted."""
        self._overwrites = OverwriteDetector()

    def look(self, name: str, parameter: torch.Tensor) -> None:
        """Find the masters of a parameter. The caller has not yet overwritten any part of it."""
        self._masters.keys(name, parameter)

    def begin(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> Callable[[], None]:
        """Prepare to overwrite `target`, a place in a parameter's memory. The caller calls the result afterwards."""
        sampled = self._overwrites.looks  # not every time: each sample costs the host a wait for the device
        where = some_of(target) if sampled else ()
        before = target[where].float() if sampled else None

        def finish() -> None:
            self.filled(name, parameter, place, target)
            if before is not None:
                sample = _Sample(name, target.numel(), lambda: target[where].float(), before, target[where].float(), [])
                self._candidates.append(sample)

        return finish

    def filled(self, name: str, parameter: torch.Tensor, place: Place, target: torch.Tensor) -> None:
        """Overwrite the masters of `target`, a place in a parameter's memory that has got what another rank adopted."""
        for master in self._masters.at(name, parameter, place):
            master.copy_(target)

    def adopted(self) -> None:
        """A fragment is overwritten: watch its largest parameter."""
        self._overwrites.adopted()
        if self._candidates:
            self._open.append(max(self._candidates, key=lambda sample: sample.elements))
            self._candidates.clear()

    @torch.no_grad()
    def stepped(self) -> None:
        """Check the parameters after a step of the program. Raises LoopError if several adoptions in a row had no effect on them."""
        for sample in self._open:
            sample.later.append(sample.read())
        done = [sample for sample in self._open if len(sample.later) == 2]
        self._open = [sample for sample in self._open if len(sample.later) < 2]
        for sample in done:
            before, adopted, *after = (value.cpu().numpy() for value in (sample.before, sample.adopted, *sample.later))
            self._overwrites.judge(sample.name, before, adopted, *after)
