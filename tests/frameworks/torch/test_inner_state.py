"""The state of torch's optimizers on its way from one process to another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders.master_sgd import MasterSGD
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import wholes
from diloco.canonical import Canonical
from diloco.protocol.state_parts import PieceArray, StateError, cut
from diloco.protocol.state_values import Leaf, decode, encode
from diloco.torch.inner_state import HandedOver, OptimizerState
from diloco.torch.store import ModuleStore
from torch._subclasses.fake_tensor import FakeTensorMode

STEPS = 3

type Arrays = list[tuple[PieceArray, np.ndarray]]
type Sent = tuple[Arrays, Any]


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

    def sent(self) -> Sent:
        """All that it gives, as over the wire."""
        arrays: Arrays = []
        for part in cut(wholes(Layout(self.store.specs()).tensors), 6):
            of_part = self.state.arrays(part)
            staged = self.state.stage(of_part)
            ends = np.cumsum([one.piece.elements for one in of_part])[:-1]
            arrays += zip(of_part, np.split(staged.wait().copy(), ends), strict=True)
            staged.release()
        return arrays, decode(encode(self.state.stage_rest().wait()))

    def puts(self, arrays: Arrays) -> None:
        self.state.begin()
        for array, values in arrays:
            self.state.put(array, values)

    def takes(self, arrays: Arrays, rest: Any, take: Callable[[Any], None] | None = None) -> None:
        self.puts(arrays)
        (take or self.state.finish)(rest)

    def gives_to(self, taker: Program, meanwhile: Callable[[], None] = lambda: None) -> None:
        """`meanwhile`: what happens to the taker before the small rest comes."""
        arrays, rest = self.sent()
        taker.puts(arrays)
        meanwhile()
        taker.state.finish(rest)
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


class Counting(torch.optim.Optimizer):
    """Moves each parameter by how many steps it has taken, which it keeps once for all of them."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.state["all"] = {"steps": 0, "sum": torch.zeros(())}  # type: ignore[index]  # torch's stub knows of parameters only

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        of_all: dict[str, Any] = self.state["all"]  # type: ignore[index]
        of_all["steps"] += 1
        of_all["sum"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("sum", torch.zeros_like(parameter)).add_(parameter.grad)
                parameter.sub_(group["lr"] * (of_all["steps"] + of_all["sum"]) * self.state[parameter]["sum"])


def test_what_an_optimizer_keeps_for_all_parameters_is_handed_over_and_stays_if_an_older_version_gave_none() -> None:
    make = lambda model: [Counting(model.parameters())]  # noqa: E731
    donor, taker, other = (Program(make, seed=seed) for seed in (0, 9, 9))
    donor.train(STEPS)
    donor.gives_to(taker)
    for program in (donor, taker):
        program.train(STEPS)
    np.testing.assert_equal(taker.values(), donor.values())
    arrays, rest = donor.sent()
    del rest["optimizers"][0]["shared"]
    other.takes(arrays, rest)
    other.train(1)
    assert other.optimizers[0].state["all"]["steps"] == 1  # type: ignore[index]


@pytest.mark.parametrize("choice", ["foreach", "fused", "capturable"])
@pytest.mark.parametrize(("theirs", "own"), [(True, None), (None, True)])
def test_a_copy_does_not_choose_the_kernel(choice: str, theirs: bool | None, own: bool | None) -> None:
    donor, taker = Program(adamw), Program(adamw, seed=9)
    donor.train(STEPS)
    for program, chosen in ((donor, theirs), (taker, own)):
        program.optimizers[0].param_groups[0][choice] = chosen
    donor.gives_to(taker)
    assert taker.optimizers[0].param_groups[0][choice] is own


@pytest.mark.parametrize("choice", ["foreach", "fused", "capturable"])
def test_step_counts_of_a_copy_lie_where_the_kernel_of_each_parameter_reads_them(choice: str) -> None:
    # Tensors that have devices and no values, as the machine may have no such device.
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def on_two_devices(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
        with fake:
            model.add_module("0", torch.nn.Linear(5, 7, device="cuda:0"))
            model.add_module("2", torch.nn.Linear(7, 3, device="cuda:1"))
            return [torch.optim.AdamW(model.parameters(), **{choice: True})]  # type: ignore[arg-type]

    donor, taker = Program(adamw), Program(on_two_devices)
    donor.train(STEPS)
    sent = donor.sent()
    with fake:
        taker.takes(*sent)
    [optimizer] = taker.optimizers
    lie = {str(parameter.device): str(state["step"].device) for parameter, state in optimizer.state.items()}
    own = {"cuda:0": "cuda:0", "cuda:1": "cuda:1"}
    assert lie == (dict.fromkeys(own, "cpu") if choice == "foreach" else own)


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
    arrays, rest = donor.sent()
    del rest["steps"]
    taker.takes(arrays, rest)
    assert taker.state.steps == 0


def without(names: Callable[[PieceArray], bool]) -> Callable[[Arrays, Any], Sent]:
    return lambda arrays, rest: ([one for one in arrays if not names(one[0])], rest)


def half(array: PieceArray) -> bool:
    return array.name == "exp_avg_sq" and array.piece.start[0] > 0


def as_int8(arrays: Arrays, rest: Any) -> Sent:
    return [(replace(array, dtype="int8") if array.name == "exp_avg" else array, values) for array, values in arrays], rest


def forty_more(arrays: Arrays, rest: Any) -> Sent:
    more = [(replace(arrays[0][0], name=f"more{number}"), arrays[0][1]) for number in range(40)]
    return [*arrays, *more], rest


def changed(where: Sequence[Any], value: Any) -> Callable[[Arrays, Any], Sent]:
    """`value` at a place of the small rest; None: nothing."""

    def change(arrays: Arrays, rest: Any) -> Sent:
        *above, last = where
        place = rest
        for key in above:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
        return arrays, rest

    return change


GROUP, BIAS = ("optimizers", 0, "groups", 0), ("optimizers", 0, "state", "0.bias")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without(half), "6 of 7 elements of exp_avg_sq of 0.bias came"),  # parts have at most 6
        (without(lambda array: array.name == "exp_avg_sq"), "exp_avg_sq of 0.bias is among the arrays or in the small rest only"),
        (without(lambda array: array.name != ""), "exp_avg of 0.bias is among the arrays or in the small rest only"),
        (as_int8, "the donor keeps exp_avg of 0.bias as int8, which does not travel as float32"),
        (forty_more, "the optimizer keeps no more0 of 0.bias here"),
        (changed((*GROUP, "lr"), "abc"), "lr of AdamW is 0.05 here and 'abc' there"),
        (changed((*GROUP, "betas"), (0.9,)), "betas of AdamW is"),
        (changed((*GROUP, "params"), []), "params of AdamW is"),
        (changed((*BIAS, "step"), None), "step of 0.bias is in one of the two states only"),
        (changed((*BIAS, "step"), Leaf("float32", (2,), bytes(8))), "step of 0.bias is not what AdamW keeps"),
        (changed((*BIAS, "step"), Leaf("float32", (2,), bytes(4))), "RuntimeError"),  # torch's, of an array without its data
        (changed(BIAS, None), "arrays of 0.bias came, and no optimizer has a state of it"),
        (changed(("optimizers", 0, "state", "another"), {"step": 1}), "another is of no AdamW here"),
        *((changed(("steps",), steps), "which is no number of steps") for steps in (-1, True, "3", 2.0)),
    ],
)
def test_a_copy_of_something_else_or_of_less_is_refused_and_changes_nothing(change: Callable[[Arrays, Any], Sent], why: str) -> None:
    donor, taker = Program(adamw), Program(adamw, seed=9)
    donor.train(STEPS)
    for take in (taker.state.check, taker.state.finish):
        with pytest.raises(StateError, match=re.escape(why)):
            taker.takes(*change(*donor.sent()), take)
    assert not taker.optimizers[0].state
    assert (taker.state.steps, taker.optimizers[0].param_groups[0]["lr"]) == (0, 0.05)
    donor.gives_to(taker)
    taker.train(1)  # a whole copy is taken afterwards


def test_of_an_optimizer_that_is_known_after_its_first_step_only_a_copy_is_compared_with_what_the_donor_kept() -> None:
    make = lambda model: [torch.optim.ASGD(model.parameters())]  # noqa: E731 - it reads a number before it keeps one
    donor, taker = Program(make), Program(make, seed=9)
    donor.train(STEPS)
    with pytest.raises(StateError, match=r"ax of 0\.bias is among the arrays or in the small rest only"):
        taker.takes(*without(lambda array: array.name == "ax")(*donor.sent()))
    with pytest.raises(StateError, match=r"the donor keeps more7 of 0\.bias beside 8 other arrays"):
        taker.puts(forty_more(*donor.sent())[0])
    donor.gives_to(taker)
    for program in (donor, taker):
        program.train(STEPS)
    np.testing.assert_equal(taker.values(), donor.values())


def test_moments_are_of_the_type_that_the_optimizer_keeps_here() -> None:
    donor, taker = Program(adamw, dtype=torch.bfloat16), Program(adamw, seed=9)
    donor.train(STEPS)
    donor.gives_to(taker)
    assert {state["exp_avg"].dtype for state in taker.optimizers[0].state.values()} == {torch.float32}
    taker.train(1)


class Refusing:
    """Takes no state but its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            raise RuntimeError(f"this is {self.name}")


def scaler(enabled: bool) -> HandedOver:
    return torch.amp.GradScaler("cpu", enabled=enabled)


@pytest.mark.parametrize(
    ("theirs", "own", "why"),
    [
        (lambda: Refusing("a"), lambda: Refusing("b"), "Refusing does not take the donor's state: RuntimeError: this is b"),
        (lambda: scaler(enabled=False), lambda: scaler(enabled=True), "GradScaler does not take the donor's state: RuntimeError"),
        (lambda: Drawn(16), torch.Generator, "Generator does not take the donor's state: RuntimeError"),  # as CUDA's is
    ],
)
def test_what_one_object_does_not_take_is_taken_by_none(theirs: Any, own: Any, why: str) -> None:
    donor = Program(adamw, lambda optimizers: [*step_rate(optimizers), theirs()])
    taker = Program(adamw, lambda optimizers: [*step_rate(optimizers), own()], seed=9)
    donor.train(STEPS)
    arrays, rest = donor.sent()
    (schedule, refusing) = taker.handed_over
    before = encode_state(refusing)
    for take in (taker.state.check, taker.state.finish):
        taker.puts(arrays)
        with pytest.raises(StateError, match=re.escape(why)):
            take(rest)
    assert schedule.last_epoch == 0  # type: ignore[union-attr]
    assert encode_state(refusing) == before
    assert not taker.optimizers[0].state
    assert taker.optimizers[0].param_groups[0]["lr"] == 0.05


def test_objects_that_were_asked_have_their_own_state_until_the_copy_is_taken() -> None:
    donor, taker = Program(adamw, step_rate), Program(adamw, step_rate, seed=9)
    donor.train(STEPS)
    arrays, rest = donor.sent()
    taker.puts(arrays)
    taker.state.check(rest)
    (schedule,) = taker.handed_over
    assert schedule.last_epoch == 0  # type: ignore[union-attr]
    taker.state.finish(rest)
    assert schedule.last_epoch == STEPS  # type: ignore[union-attr]


def encode_state(one: HandedOver) -> str:
    return str(one.get_state() if isinstance(one, torch.Generator) else one.state_dict())


class Drawn:
    """Its state has so many bytes, and no dict around them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def state_dict(self) -> Any:
        return torch.zeros(self.size, dtype=torch.uint8)

    def load_state_dict(self, state: Any) -> None: ...


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    donor, taker = Program(adamw), Program(adamw, step_rate)
    donor.train(STEPS)
    taker.train(1)
    before = {key: float(state["step"]) for key, state in enumerate(taker.optimizers[0].state.values())}
    arrays, rest = donor.sent()
    taker.puts(arrays)
    with pytest.raises(StateError, match="does not fit this program"):
        taker.state.finish(rest)
    assert {key: float(state["step"]) for key, state in enumerate(taker.optimizers[0].state.values())} == before
