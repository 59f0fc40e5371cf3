"""Checks that a program makes its first update from what `join` gave it, not from a file that it loaded afterwards.

A trainer that resumes from its own checkpoint would replace the job's parameters and moments by old ones.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from diloco.learner.leave import LoopError
from diloco.torch.masters import some_of
from diloco.torch.optimizers import innermost
from diloco.torch.parameters import Parameters
from diloco.torch.places import local

_WHAT_TO_DO = (
    "The job's parameters came with join, and in a unit that comes back the optimizer's state of a peer: leave this unit's own checkpoint "
    "out (Trainer.train(resume_from_checkpoint=…) of transformers, fit(ckpt_path=…) of Lightning, load_state_dict). Load the model that "
    "the job begins with before join"
)


class FirstUpdate:
    """Some elements of the trained parameters as `join` left them, until the first update."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[torch.optim.Optimizer], *, rank: int) -> None:
        """`rank`: this process's rank in its unit. A trainer that wraps the model after `join` gives all ranks the values of rank 0, so
        parameters must stay as they are on rank 0 only."""
        self._parameters = parameters.trained
        self._compares = rank == 0
        self._over = False
        self._kept: dict[str, torch.Tensor] = {}
        self.adopted(self._parameters)
        for optimizer in map(innermost, optimizers):
            optimizer.register_step_pre_hook(self._steps)
            optimizer.register_load_state_dict_pre_hook(self._loads)

    def adopted(self, names: Iterable[str]) -> None:
        """The store has overwritten these parameters with the job's."""
        if self._compares and not self._over:
            self._kept |= {name: _sample(self._parameters[name]) for name in names}

    def _steps(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise LoopError at the first update if most parameters are no longer those of `join`. A few may have changed: a layer with
        `max_norm` scales rows of its weight when it computes."""
        if torch.compiler.is_compiling() or self._over:
            return
        self._over = True
        changed = [name for name, before in self._kept.items() if _differs(before, _sample(self._parameters[name]))]
        self._kept.clear()
        if 2 * len(changed) > len(self._parameters):
            raise LoopError(
                f"{len(changed)} of {len(self._parameters)} parameters changed between join and the first update: the program has loaded "
                f"another state into the model. {_WHAT_TO_DO}"
            )

    def _loads(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Raise LoopError if the program loads another state than the optimizer's own. accelerate loads the own one to move it."""
        if not self._over and not _is_same(optimizer.state_dict()["state"], state["state"]):
            raise LoopError(f"the program loads a state into its optimizer between join and the first update. {_WHAT_TO_DO}")


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    stored = local(tensor)
    return stored[some_of(stored)].cpu() if stored.numel() else torch.empty(0, dtype=stored.dtype)


def _differs(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether most elements differ. A parameter that was cast to another type since is not compared."""
    return before.dtype == now.dtype and 2 * int((before != now).sum()) > before.numel()


def _is_same(own: Mapping[Any, Mapping[str, Any]], other: Mapping[Any, Mapping[str, Any]]) -> bool:
    return own.keys() == other.keys() and all(
        state.keys() == other[key].keys() and all(_equal(value, other[key][name]) for name, value in state.items())
        for key, state in own.items()
    )


def _equal(own: object, other: object) -> bool:
    if not isinstance(own, torch.Tensor) or not isinstance(other, torch.Tensor):
        return own is other or own == other
    return own is other or (own.shape == other.shape and torch.equal(_sample(own), _sample(other)))
