"""Parameters of a torch module."""

from __future__ import annotations

import numpy as np
import torch
from builders.frameworks.adapter import TURNED_AND_STACKED, Framework, Model, Program
from diloco.torch import ModuleStore
from diloco.torch.adoptions import Adoptions
from torch import nn

RATE, GRADIENT = 0.01, 0.125


def model(matrix: str, vector: str) -> Model:
    of_matrix, of_vector = getattr(torch, matrix), getattr(torch, vector)
    zeros = {
        "matrix": torch.zeros(5, 3, dtype=of_matrix),
        "layers": torch.zeros(2, 4, 2, dtype=of_matrix),
        "vector": torch.zeros(7, dtype=of_vector),
        "scalar": torch.zeros((), dtype=of_vector),
    }
    module = nn.ParameterDict({name: nn.Parameter(value) for name, value in zeros.items()})

    @torch.no_grad()
    def train() -> None:
        for parameter in module.parameters():
            parameter.add_(1)

    return Model(ModuleStore(module, canonical=TURNED_AND_STACKED), train)


class TorchProgram(Program):
    """A program that may keep masters of its own, from which it overwrites the parameters after each step."""

    def __init__(self, dtype: str) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(16, 16, bias=False).to(getattr(torch, dtype))
        self.store = ModuleStore(self.module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)
        self.adoptions = self.store.adoptions = Adoptions([self.optimizer])

    def step(self) -> None:
        self._step(None)

    def adopt(self, change: float) -> None:
        values = (self._values() + change).numpy().reshape(-1)
        self.store.apply(self.store.prepare(["weight"], values.astype(np.float32)))

    def undo(self, change: float) -> None:
        masters = self._values()
        self.adopt(change)
        self._step(masters)
        self._step(masters)

    def adopt_own(self) -> None:
        self.adopt(RATE * GRADIENT)
        self.step()

    def _values(self) -> torch.Tensor:
        return self.module.weight.detach().float().clone()

    def _step(self, masters: torch.Tensor | None) -> None:
        self.module.weight.grad = torch.full_like(self.module.weight, GRADIENT)
        self.optimizer.step()
        if masters is not None:
            masters -= RATE * GRADIENT
            self.module.weight.data.copy_(masters)
        self.adoptions.stepped()


TORCH = Framework((("float32", "float32"), ("bfloat16", "float32"), ("float16", "float64")), model, program=TorchProgram)
