"""Optimizers that keep copies of the parameters follow an adoption."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from builders.master_sgd import MasterSGD
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.store import ModuleStore
from torch import nn


class Watched:
    """A model of one tensor, and a job that overwrites it."""

    def __init__(self, dtype: torch.dtype, make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(16, 16, bias=False).to(dtype)
        self.store = ModuleStore(self.model)
        self.optimizer = make(self.model)
        self.adoption_check = self.store.adoption_check = AdoptionCheck([self.optimizer])

    @property
    def values(self) -> torch.Tensor:
        return self.model.weight.detach().float().clone()

    def step(self) -> None:
        self.model.weight.grad = torch.full_like(self.model.weight, 0.125)
        self.optimizer.step()
        self.adoption_check.stepped()

    def adopt(self, change: float) -> torch.Tensor:
        """Everything moves by `change`."""
        values = (self.values + change).numpy().reshape(-1)
        self.store.apply(self.store.prepare(["weight"], values.astype(np.float32)))
        return self.values


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


def test_float32_parameters_have_no_masters() -> None:
    job = Watched(torch.float32, lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    job.step()
    job.adopt(2.0)
    assert job.adoption_check._masters._keys == {}


def test_masters_of_a_parameter_that_was_zero_are_found_once_it_is_not() -> None:
    job = Watched(torch.bfloat16, with_masters)
    job.model.weight.data.zero_()
    assert job.adoption_check._masters.keys("weight", job.model.weight) == []
    job.step()
    assert job.adoption_check._masters.keys("weight", job.model.weight) == ["master_param"]
