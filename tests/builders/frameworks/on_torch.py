"""Parameters of a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from builders.frameworks.adapter import TURNED_AND_STACKED, Clock, Framework, Joined, Model, Program, Rate
from builders.scripted_connection import ScriptedSession
from builders.training_loop import TOKENS
from diloco.canonical import Canonical
from diloco.torch import ModuleStore, schedule
from diloco.torch.adoption_check import AdoptionCheck
from diloco.torch.optimizers import UpdateCounts
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
        self.adoption_check = self.store.adoption_check = AdoptionCheck([self.optimizer])

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
        self.adoption_check.stepped()


class TorchJoined(Joined):
    """A module and an optimizer that adds 1."""

    def __init__(self) -> None:
        self.module = nn.ParameterDict({"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.zeros(2))})
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.job = ScriptedSession(store=ModuleStore(self.module), updates=UpdateCounts([self.optimizer])).join(5.0)
        self.session = self.job.session

    def step_without_a_batch(self) -> None:
        for parameter in self.module.values():
            parameter.grad = torch.full_like(parameter, -1.0)
        self.optimizer.step()
        self.session.step(tokens=TOKENS)

    def values(self) -> tuple[set[float], set[float]]:
        return set(self.module["a"].tolist()), set(self.module["b"].tolist())


def rate(clock: Clock, peak: float, decay: Any, *, warmup: int = 0, final: float = 0.0, tail: float = 0.2) -> Rate:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = schedule(optimizer, clock, decay, warmup=warmup, final=final, tail=tail)

    def now() -> float:
        optimizer.step()
        scheduler.step()
        return float(optimizer.param_groups[0]["lr"])

    return now


def base(values: Mapping[str, np.ndarray], canonical: Mapping[str, Canonical | str], dtypes: Mapping[str, str]) -> ModuleStore:
    of = {name: torch.tensor(value).to(getattr(torch, dtypes.get(name, str(value.dtype)))) for name, value in values.items()}
    module = nn.ParameterDict({name: nn.Parameter(value, requires_grad=False) for name, value in of.items()})
    module["trained"] = nn.Parameter(torch.zeros(2))
    return ModuleStore(module, canonical=canonical)


TORCH = Framework(
    (("float32", "float32"), ("bfloat16", "float32"), ("float16", "float64")),
    model,
    program=TorchProgram,
    joined=TorchJoined,
    rate=rate,
    base=base,
)
