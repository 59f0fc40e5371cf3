"""Programs that load a state of their own over what `join` gave them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import diloco.torch
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training
from diloco.learner.leave import LoopError
from diloco.torch import ModuleStore
from diloco.torch.first_update import FirstUpdate
from torch import nn

type Loads = Callable[[nn.Module, torch.optim.Optimizer], object]


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def updated(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def a_checkpoint() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of another course of training, and its optimizer."""
    net = model(seed=1)
    optimizer = optimizer_of(net)
    updated(net, optimizer)
    return net, optimizer


def loads_the_model(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net.load_state_dict(a_checkpoint()[0].state_dict())


def loads_the_optimizer(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(a_checkpoint()[1].state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loads", "why"),
    [
        (loads_the_model, r"4 of 4 parameters changed between join and the first update: .*leave this unit's own checkpoint out"),
        (loads_the_optimizer, r"loads a state into its optimizer between join and the first update"),
    ],
)
def test_a_program_that_loads_its_checkpoint_after_joining_ends(tmp_path: Path, loads: Loads, why: str) -> None:
    place = Place(tmp_path, job_file(training(1000)))
    net = model()
    optimizer = optimizer_of(net)
    with (
        LocalSyncer(place) as syncer,
        diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session,
    ):

        def train() -> None:
            loads(net, optimizer)
            for batch in session.batches(lambda numbers: numbers, 2):
                updated(net, optimizer)
                session.step(tokens=batch.size)

        with pytest.raises(LoopError, match=why):
            train()


def test_what_is_adopted_is_no_state_of_the_program() -> None:
    net = model()
    optimizer = optimizer_of(net)
    store = ModuleStore(net)
    first = FirstUpdate(store.parameters, [optimizer], rank=0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    first.adopted(list(store.parameters.trained))
    updated(net, optimizer)


def test_a_layer_that_limits_its_rows_when_it_computes_and_a_state_of_its_own_are_allowed() -> None:
    net = nn.Sequential(nn.Embedding(8, 3, max_norm=0.1), nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = optimizer_of(net)
    FirstUpdate(ModuleStore(net).parameters, [optimizer], rank=0)
    optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does
    net(torch.arange(8)).square().mean().backward()
    optimizer.step()


def test_a_state_may_be_loaded_once_the_program_trains() -> None:
    net = model()
    optimizer = optimizer_of(net)
    FirstUpdate(ModuleStore(net).parameters, [optimizer], rank=0)
    updated(net, optimizer)
    loads_the_model(net, optimizer)
    loads_the_optimizer(net, optimizer)
    updated(net, optimizer)
