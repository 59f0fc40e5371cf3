"""The state of torch's optimizers on its way from one process to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from builders.master_sgd import MasterSGD
from diloco.algorithm.layout import Layout
from diloco.canonical import Canonical
from diloco.protocol.state_parts import StateError, cut
from diloco.protocol.state_values import decode, encode
from diloco.torch.inner_state import HandedOver, OptimizerState
from diloco.torch.store import ModuleStore

STEPS = 3


class Program:
    """A model and its optimizers. Two programs of one seed have the same batches."""

    def __init__(
        self,
        make: Callable[[torch.nn.Module], Sequence[torch.optim.Optimizer]],
        hand_over: Callable[[Sequence[torch.optim.Optimizer]], Sequence[HandedOver]] = lambda _: (),
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(dtype)
        self.dtype = dtype
        self.optimizers = make(self.model)
        self.handed_over = hand_over(self.optimizers)
        # An axis that lies otherwise than in canonical form, so that moments are turned, too.
        self.store = ModuleStore(self.model, canonical={"0.weight": Canonical("first", axes=(1, 0))})
        self.state = OptimizerState(self.store, self.optimizers, self.handed_over)
        self.generator = torch.Generator().manual_seed(1)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = torch.randn(4, 5, generator=self.generator).to(self.dtype)
            self.model(batch).float().square().mean().backward()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for one in self.handed_over:
                if isinstance(one, torch.optim.lr_scheduler.LRScheduler):
                    one.step()

    def gives_to(self, taker: Program, meanwhile: Callable[[], None] = lambda: None) -> None:
        """As over the wire: each part, and then the small rest. `meanwhile`: what happens to the taker between the two."""
        layout = Layout(self.store.specs())
        taker.state.begin()
        for part in cut(layout.tensors, 6):
            arrays = self.state.arrays(part)
            staged = self.state.stage(arrays)
            values = staged.wait().copy()
            staged.release()
            start = 0
            for one in arrays:
                taker.state.put(one, values[start : start + one.piece.elements])
                start += one.piece.elements
        meanwhile()
        taker.state.finish(decode(encode(self.state.stage_rest().wait())))
        taker.generator.set_state(self.generator.get_state())

    def adopt(self, name: str, change: float) -> None:
        """Overwrite one tensor, moved by `change`."""
        (values,) = (one.detach().float() for own, one in self.model.named_parameters() if own == name)
        self.store.apply(self.store.prepare([name], (values + change).numpy().reshape(-1).astype(np.float32)))

    def values(self) -> list[np.ndarray]:
        return [parameter.detach().float().numpy().copy() for parameter in self.model.parameters()]


def adamw(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=0.05)]


def two(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    weights = [one for one in model.parameters() if one.ndim > 1]
    return [torch.optim.AdamW(weights, amsgrad=True), torch.optim.SGD([one for one in model.parameters() if one.ndim == 1], lr=0.1)]


def momentum(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def step_rate(optimizers: Sequence[torch.optim.Optimizer]) -> list[HandedOver]:
    return [torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=2, gamma=0.5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "hand_over"),
    [(adamw, lambda _: ()), (two, lambda _: ()), (momentum, lambda _: ()), (adamw, step_rate)],
    ids=["AdamW", "two optimizers", "momentum", "schedule"],
)
def test_who_took_the_state_trains_on_as_the_donor_does(make: Any, hand_over: Any, dtype: torch.dtype) -> None:
    donor, taker = Program(make, hand_over, dtype=dtype), Program(make, hand_over, seed=9, dtype=dtype)
    donor.train(STEPS)
    donor.gives_to(taker)
    for program in (donor, taker):
        program.train(STEPS)
    np.testing.assert_equal(taker.values(), donor.values())  # bit for bit


def test_masters_of_a_copy_keep_their_bits_but_follow_what_was_adopted_since() -> None:
    make = lambda model: [MasterSGD(model.parameters(), 0.01)]  # noqa: E731
    donor, taker = Program(make, dtype=torch.bfloat16), Program(make, seed=9, dtype=torch.bfloat16)
    donor.train(STEPS)
    donor.gives_to(taker, meanwhile=lambda: taker.adopt("2.weight", 1.0))

    masters = [[program.optimizers[0].state[one]["master_param"] for one in program.model.parameters()] for program in (donor, taker)]
    names = [name for name, _ in taker.model.named_parameters()]
    for name, given, taken in zip(names, *masters, strict=True):
        if name == "2.weight":
            assert torch.equal(taken, dict(taker.model.named_parameters())["2.weight"].float()), "the next step would undo the adoption"
        else:
            assert torch.equal(taken, given)
            assert not torch.equal(taken, taken.bfloat16().float()), "the test is of bits that the parameter does not have"


def test_without_the_state_it_would_not() -> None:
    donor, taker = Program(adamw), Program(adamw)
    donor.train(STEPS)
    taker.model.load_state_dict(donor.model.state_dict())
    taker.generator.set_state(donor.generator.get_state())
    for program in (donor, taker):
        program.train(STEPS)
    assert any((ours != theirs).any() for ours, theirs in zip(taker.values(), donor.values(), strict=True))


def test_generators_and_objects_with_a_state_dict_are_handed_over() -> None:
    class Sampler:
        position = 0

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.position = state["position"]

    donor = Program(adamw, lambda _: [torch.Generator().manual_seed(3), Sampler()])
    taker = Program(adamw, lambda _: [torch.Generator().manual_seed(4), Sampler()])
    donor.handed_over[1].position = 7  # type: ignore[union-attr]
    donor.gives_to(taker)
    draws = [torch.rand(2, generator=program.handed_over[0]).tolist() for program in (donor, taker)]  # type: ignore[arg-type]
    assert draws[0] == draws[1]
    assert taker.handed_over[1].position == 7  # type: ignore[union-attr]
    assert donor.state.kind == "torch AdamW, Generator, Sampler"


def test_a_state_before_the_first_step_is_empty_and_goes_as_such() -> None:
    donor, taker = Program(adamw), Program(adamw, seed=9)
    donor.gives_to(taker)
    donor.train(1)
    taker.train(1)
    np.testing.assert_equal(taker.values(), donor.values())


def test_what_has_no_state_to_hand_over_is_refused_when_it_joins() -> None:
    class Opaque:
        def state_dict(self) -> dict[str, Any]:
            return {"file": object()}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match="state must hold objects with state_dict"):
        Program(adamw, lambda _: [3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"the state of Opaque cannot be handed over to another process: state\['file'\] is object"):
        Program(adamw, lambda _: [Opaque()])


def test_the_steps_behind_a_state_go_with_it_and_an_older_version_gave_none() -> None:
    donor, taker = Program(adamw), Program(adamw, seed=9)
    donor.train(STEPS)
    donor.state.steps = STEPS
    donor.gives_to(taker)
    assert taker.state.steps == STEPS
    rest = decode(encode(donor.state.stage_rest().wait()))
    del rest["steps"]
    taker.state.finish(rest)
    assert taker.state.steps == 0


@pytest.mark.parametrize("steps", [-1, True, "3", 2.0])
def test_steps_that_cannot_be_are_refused_and_change_nothing(steps: object) -> None:
    donor, taker = Program(adamw), Program(adamw, seed=9)
    donor.train(STEPS)
    rest = decode(encode(donor.state.stage_rest().wait())) | {"steps": steps}
    for take in (taker.state.check, taker.state.finish):
        with pytest.raises(StateError, match="which is no number of steps"):
            take(rest)
    assert not taker.optimizers[0].state
    assert taker.state.steps == 0


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    donor, taker = Program(adamw), Program(adamw, step_rate)
    donor.train(STEPS)
    taker.train(1)
    before = {key: float(state["step"]) for key, state in enumerate(taker.optimizers[0].state.values())}
    rest = decode(encode(donor.state.stage_rest().wait()))
    with pytest.raises(StateError, match="does not fit this program"):
        taker.state.finish(rest)
    assert {key: float(state["step"]) for key, state in enumerate(taker.optimizers[0].state.values())} == before
