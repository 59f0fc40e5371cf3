"""Optimizers and programs that keep copies of the parameters, and what becomes of adopted values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from diloco.learner.loop_check import LoopError
from diloco.learner.overwrite_detector import FIRST, LOST
from diloco.torch.adoptions import Adoptions
from diloco.torch.store import ModuleStore
from torch import nn


class MasterSGD(torch.optim.Optimizer):
    """Keeps a float32 copy of each parameter in its state, as fused optimizers for bfloat16 do."""

    def __init__(self, parameters: object, rate: float) -> None:
        super().__init__(parameters, {"lr": rate})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                master = state.setdefault("master_param", parameter.detach().float())
                state.setdefault("exp_avg", torch.zeros_like(master))
                master.sub_(group["lr"] * parameter.grad.float())
                parameter.copy_(master)


class Watched:
    """A model of one tensor, and a job that overwrites it."""

    def __init__(self, dtype: torch.dtype, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(16, 16, bias=False).to(dtype)
        self.store = ModuleStore(self.model)
        self.optimizer = make(self.model)
        self.adoptions = self.store.adoptions = Adoptions([self.optimizer])

    @property
    def values(self) -> torch.Tensor:
        return self.model.weight.detach().float().clone()

    def step(self, masters: torch.Tensor | None = None) -> None:
        """`masters`: those of the program, from which it overwrites the parameters."""
        self.model.weight.grad = torch.full_like(self.model.weight, 0.125)
        self.optimizer.step()
        if masters is not None:
            masters -= 0.01 * 0.125
            self.model.weight.data.copy_(masters)
        self.adoptions.check()

    def adopt(self, change: float) -> torch.Tensor:
        """Everything moves by `change`."""
        values = (self.values + change).numpy().reshape(-1)
        self.store.apply(self.store.prepare(["weight"], values.astype(np.float32)))
        return self.values


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def with_masters(model: nn.Module) -> torch.optim.Optimizer:
    return MasterSGD(model.parameters(), 0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_in_the_optimizers_state_go_on_from_what_was_adopted(dtype: torch.dtype) -> None:
    job = Watched(dtype, with_masters)
    job.step()  # the state exists from now on
    adopted = job.adopt(2.0)
    assert torch.equal(job.optimizer.state[job.model.weight]["master_param"], adopted)
    assert not job.optimizer.state[job.model.weight]["exp_avg"].any(), "what is no copy of the parameter stays as it is"
    job.step()
    # A step moves by 0.01 * 0.125, less than a rounding step of values about 2.
    assert torch.allclose(job.values, adopted, atol=0.02)


def test_a_program_that_keeps_masters_of_its_own_is_told() -> None:
    job = Watched(torch.bfloat16, sgd)
    masters = job.values
    for _ in range(LOST - 1):
        job.adopt(2.0)
        job.step(masters)
        job.step(masters)
    job.adopt(2.0)
    job.step(masters)
    with pytest.raises(LoopError, match=r"parameter 'weight' goes on from the values that it had before .* join\(on_adopt=…\)"):
        job.step(masters)


def test_a_program_that_takes_over_what_is_adopted_trains_on() -> None:
    job = Watched(torch.bfloat16, sgd)
    for _ in range(2 * FIRST):
        job.adopt(2.0)
        for _ in range(3):
            job.step()


def test_a_change_that_is_as_small_as_a_step_tells_nothing() -> None:
    """A unit that is alone adopts what it has sent, and moves back by the steps in between, which it then does again."""
    job = Watched(torch.float32, sgd)
    for _ in range(4 * LOST):
        job.step()
        job.adopt(0.01 * 0.125)  # one step back
        job.step()
        job.step()


def test_float32_parameters_have_no_masters() -> None:
    job = Watched(torch.float32, lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    job.step()
    job.adopt(2.0)
    assert job.adoptions._keys == {}
