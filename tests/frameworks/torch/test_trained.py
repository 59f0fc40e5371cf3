"""Programs that train other parameters than they joined with, and those that change their model and train the same ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import diloco.torch
import pytest
import torch
from builders.exchange import LocalSyncer, Place, job_file, training
from diloco.learner.leave import LoopError
from diloco.torch import ModuleStore
from diloco.torch.trained import TrainedParameters
from torch import nn

FOR_EVER = 1_000_000
type Change = Callable[[nn.Sequential, torch.optim.Optimizer], object]


def model() -> nn.Sequential:
    """A frozen first layer, and a head."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))


def train(folder: Path, change: Change, *, at: int, steps: int = FOR_EVER, everything: bool = False) -> int:
    """Train a model until its job is done, with a change of the program before local step `at`; the local steps. `everything`: join with
    `trained=lambda name: True`."""
    place = Place(folder, job_file(training(steps)))
    net = model()
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.01)
    with LocalSyncer(place) as syncer:
        environment = place.of_learner(syncer.address, "a")
        trained = (lambda name: True) if everything else None
        with diloco.torch.join(net, optimizer=optimizer, trained=trained, environment=environment) as session:
            for batch in session.batches(lambda numbers: torch.ones(len(numbers), 3), 2):
                if session.step_count == at:
                    change(net, optimizer)
                net(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step(tokens=batch.numel())
            assert session.step_count > at
        assert session.done
        return session.step_count


def unfreeze(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    net[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(net[0].parameters())})


def put_a_new_head(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    net[1] = nn.Linear(4, 2)


def train_with_another_optimizer(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    """The one that joined steps on, over gradients that are gone."""
    other = torch.optim.AdamW(net[1].parameters(), lr=0.01)
    net(torch.ones(2, 3)).square().mean().backward()
    other.step()
    other.zero_grad()


def add_an_adapter(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    net[1].register_parameter("scale", nn.Parameter(torch.ones(2)))


CHANGES: dict[str, tuple[Change, bool, str]] = {
    "unfreezes a layer": (unfreeze, False, r"an optimizer trains 0\.weight, 0\.bias, frozen in join\. .*trained=lambda name: True"),
    "unfreezes what its optimizer passed over": (
        lambda net, optimizer: net[0].requires_grad_(True),
        True,
        r"an optimizer trains 0\.weight, 0\.bias, frozen in join",
    ),
    "trains with another optimizer": (train_with_another_optimizer, False, r"an optimizer that did not join trains 1\.weight, 1\.bias"),
    "puts a new head": (put_a_new_head, False, r"there are others in the place of 1\.weight, 1\.bias, which joined"),
    "adds a parameter": (add_an_adapter, False, r"1\.scale came after join"),
    "adds a layer": (lambda net, optimizer: net.append(nn.Linear(2, 2)), False, r"2\.weight, 2\.bias came after join"),
    "takes the head away": (lambda net, optimizer: net.pop(1), False, r"1\.weight, 1\.bias joined, and the model has them no more"),
    "ties two parameters": (
        lambda net, optimizer: setattr(net[1], "bias", net[1].weight),
        False,
        r"1\.bias joined, and the model has them no more",
    ),
    "trains another tensor": (
        lambda net, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(7))]}),
        False,
        r"an optimizer trains what the model does not have \(one of shape \[7\]\)",
    ),
}


@pytest.mark.parametrize(("change", "listed", "why"), [pytest.param(*one, id=name) for name, one in CHANGES.items()])
def test_each_way_to_train_other_parameters_is_named(change: Change, listed: bool, why: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters() if listed else net[1].parameters(), lr=0.01)
    parameters = TrainedParameters(net, ModuleStore(net).parameters, [optimizer])
    parameters.check()
    change(net, optimizer)
    with pytest.raises(LoopError, match=f"trains other parameters than it joined with: {why}"):
        parameters.check()


@pytest.mark.slow
def test_a_program_that_unfreezes_a_layer_while_it_trains_ends(tmp_path: Path) -> None:
    with pytest.raises(LoopError, match=r"an optimizer trains 0\.weight, 0\.bias, frozen in join"):
        train(tmp_path, unfreeze, at=3)


@pytest.mark.slow
def test_a_head_that_is_replaced_after_the_last_step_is_found_at_the_end(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(12)))
    net = model()
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.01)
    with LocalSyncer(place) as syncer:
        session = diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a"))
        for batch in session.batches(lambda numbers: torch.ones(len(numbers), 3), 2):
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step(tokens=batch.numel())
        net[1] = nn.Linear(4, 2)
        with pytest.raises(LoopError, match=r"in the place of 1\.weight"):
            session.close()


@pytest.mark.slow
def test_layers_that_are_exchanged_from_the_beginning_may_be_unfrozen_later(tmp_path: Path) -> None:
    before: list[torch.Tensor] = []
    nets: list[nn.Sequential] = []

    def change(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        nets.append(net)
        before.append(net[0].get_parameter("weight").detach().clone())
        unfreeze(net, optimizer)

    assert train(tmp_path, change, at=3, steps=80, everything=True) > 3
    assert not torch.equal(before[0], nets[0][0].get_parameter("weight")), "it was trained, and is part of what the job ends with"


def test_what_changes_nothing_that_is_trained_is_allowed() -> None:
    net = model()
    parameters = TrainedParameters(net, ModuleStore(net).parameters, [torch.optim.SGD(net[1].parameters(), lr=0.01)])
    net.average = copy.deepcopy(net).requires_grad_(False)  # a module of the model, as a teacher is
    net[1].weight.requires_grad_(False)
    net[0].requires_grad_(True)  # no optimizer has it
    parameters.check()


def test_optimizers_of_other_models_and_those_inside_of_one_that_joined_are_allowed() -> None:
    net, critic = model(), nn.Linear(2, 1)
    outer = torch.optim.SGD(net[1].parameters(), lr=0.01)
    outer.base = torch.optim.AdamW(net[1].parameters(), lr=0.01)  # type: ignore[attr-defined] # as SAM has it
    parameters = TrainedParameters(net, ModuleStore(net).parameters, [outer])
    critic(net(torch.ones(2, 3))).square().mean().backward()
    torch.optim.SGD(critic.parameters(), lr=0.01).step()
    outer.base.step()  # type: ignore[attr-defined]
    parameters.check()
