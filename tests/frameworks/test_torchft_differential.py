"""A differential: the core against torchft's own DiLoCo, driven through its public `DiLoCo` wrapper, over 100 outer updates.

torchft runs M replicas of one torch model with AdamW; a stub in the place of its manager averages in process. The parameters that a
replica is about to give to torchft's all-reduce are copied to the core as that unit's contribution, so both work on the same ones in every
round. Each keeps its own outer state (values and momentum), which is never copied: a difference would add up.

Without this copy the differential would measure the inner optimizer: AdamW divides by the root of small second moments, so two float32
runs that differ in the last bit are 6e-6 apart after 100 rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Self, cast

import numpy as np
import pytest
import torch
from builders.core import InlineCore, Push
from builders.exploration import full
from diloco.algorithm import codec
from diloco.algorithm.effects import Broadcast, Pull
from diloco.algorithm.events import Metadata, Offer
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.contract import Grace, Merge, OuterOptimizer, Training
from numpy.typing import NDArray
from torch import nn
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager

ROUNDS = 100
REPLICAS = 3
BATCH = 16
SHAPES = {"b1": (8,), "b2": (8,), "b3": (2,), "w1": (3, 8), "w2": (8, 8), "w3": (8, 2)}

type Values = dict[str, NDArray[np.float32]]


class Fragment(nn.Module):
    """The tensors of one fragment: torchft takes a module for each."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.randn(SHAPES[name], generator=generator) * 0.5))

    def values(self) -> Values:
        return {name: p.detach().numpy().copy() for name, p in self.named_parameters()}


class Regression(nn.Module):
    """A network with two hidden layers on a fixed teacher; deterministic in (replica, step)."""

    def __init__(self, cut: list[list[str]], replica: int) -> None:
        super().__init__()
        self.fragments = nn.ModuleList([Fragment(names) for names in cut])
        self.replica = replica

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(1000 * step + self.replica))
        y = torch.stack([torch.sin(x[:, 0]), x[:, 1] * x[:, 2]], dim=1)
        p = {name: value for fragment in self.fragments for name, value in fragment.named_parameters()}
        hidden = torch.tanh(torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])
        return ((hidden @ p["w3"] + p["b3"] - y) ** 2).mean()


class Averaging:
    """What an all-reduce among threads does: every caller's tensor becomes the mean of all."""

    def __init__(self, replicas: int) -> None:
        self._barrier = threading.Barrier(replicas, timeout=180)
        self._given: list[torch.Tensor] = [torch.empty(0)] * replicas

    def __call__(self, replica: int, tensor: torch.Tensor) -> None:
        self._given[replica] = tensor.clone()
        self._barrier.wait()
        tensor.copy_(torch.stack(self._given).mean(dim=0))
        self._barrier.wait()


class Done:
    """A finished collective."""

    def wait(self) -> bool:
        return True


class InProcessManager:
    """What DiLoCo uses of torchft's manager, without its quorum service: every round commits."""

    _use_async_quorum = False

    def __init__(self, replica: int, average: Averaging, before_reading: Callable[[int], None]) -> None:
        self._replica, self._average, self._before_reading = replica, average, before_reading
        self._step = 0

    def current_step(self) -> int:
        return self._step

    def start_quorum(self) -> None:
        self._before_reading(self._step)

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Done:
        assert not should_quantize
        self._average(self._replica, tensor)
        return Done()

    def should_commit(self) -> bool:
        self._step += 1
        return True

    def register_state_dict_fn(self, *_: object) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...


class Torchft:
    """M replicas under torchft's DiLoCo, one thread each, as its collectives block."""

    def __init__(self, cut: list[list[str]], interval: int, delay: int, rate: float, mu: float) -> None:
        self._average = Averaging(REPLICAS)
        self._pool = ThreadPoolExecutor(REPLICAS)
        self.read: list[Values] = [{} for _ in range(REPLICAS)]
        """Per replica, the parameters of the fragment that it gave last."""
        self.models = [Regression(cut, m) for m in range(REPLICAS)]
        self._inner = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in self.models]
        self.wrappers = [self._wrap(m, interval, delay, rate, mu) for m in range(REPLICAS)]

    def _wrap(self, m: int, interval: int, delay: int, rate: float, mu: float) -> DiLoCo:
        fragments = [cast("Fragment", fragment) for fragment in self.models[m].fragments]
        outer = [torch.optim.SGD(f.parameters(), lr=rate, momentum=mu, nesterov=True) for f in fragments]

        def note(step: int) -> None:
            self.read[m] = fragments[step % len(fragments)].values()

        manager = cast("Manager", InProcessManager(m, self._average, note))
        return DiLoCo(manager, list(fragments), self._inner[m], cast("Any", outer), interval, fragment_sync_delay=delay)

    def step(self, step: int) -> None:
        """One step of every replica."""
        list(self._pool.map(lambda m: self._step(m, step), range(REPLICAS)))

    def _step(self, m: int, step: int) -> None:
        self._inner[m].zero_grad()
        torch.autograd.backward(self.models[m].loss(step))
        self._inner[m].step()

    def __enter__(self) -> Self:
        for wrapper in self.wrappers:
            wrapper.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for wrapper in self.wrappers:
            wrapper.__exit__(None, None, None)
        self._pool.shutdown()

    def global_values(self, index: int) -> Values:
        """torchft's own copy of the global parameters of its fragment, which is the same in all replicas."""
        held = [wrapper._fragments[index].original_parameters for wrapper in self.wrappers]
        assert all(torch.equal(other[name], held[0][name]) for other in held for name in other)
        return {name: value.numpy().copy() for name, value in held[0].items()}


def a_training(fragments: int, interval: int, rate: float, mu: float) -> Training:
    return Training(
        steps=ROUNDS * interval // fragments,
        sync_interval=interval,
        fragments=fragments,
        overlap_steps=0,
        quorum=REPLICAS,
        grace=Grace(max_steps=16, safety_factor=1.0),
        merge=Merge(method="Average", embeddings="Average"),
        outer_optimizer=OuterOptimizer(learning_rate=rate, momentum=mu),
        compression="None",
    )


def flat(values: Values) -> NDArray[np.float32]:
    return np.concatenate([values[name].ravel() for name in sorted(values)])


def report_step(core: InlineCore, local_step: int, now: float) -> None:
    """Every unit says that it took a step. The counters of a fragment are equal in all, so each contribution has the same weight."""
    counters = (1,) * len(core.fragments)
    for m in range(REPLICAS):
        core.progress(f"u{m}", Metadata(local_step, counters, counters, 1.0), now)


@pytest.mark.parametrize(
    ("fragments", "interval", "delay", "rate", "mu"),
    [full(1, 4, 0, 0.7, 0.9), full(3, 6, 0, 0.7, 0.9), (3, 6, 1, 0.7, 0.9), (2, 8, 3, 1.0, 0.6)],
)
def test_core_agrees_with_torchft_for_a_hundred_outer_updates(fragments: int, interval: int, delay: int, rate: float, mu: float) -> None:
    core = InlineCore(Layout(TensorSpec(name, shape) for name, shape in SHAPES.items()), a_training(fragments, interval, rate, mu))
    # Here fragment 0 leaves at t = 0 mod H, so it is the last of a cycle; torchft's order is that of the steps.
    order = [*range(1, fragments), 0]
    cut = [[tensor.name for tensor in core.fragments[p].tensors] for p in order]
    worst, moved, merged = 0.0, 0.0, count()
    with Torchft(cut, interval, delay, rate, mu) as theirs:
        initial = [flat(theirs.global_values(order.index(p))) for p in range(fragments)]
        assert core.begin(initial) is None
        for m in range(REPLICAS):
            core.join(f"u{m}", 0.0)
        for step in range(1, core.training.steps + 1):
            theirs.step(step)
            report_step(core, step, float(step))
            for pull in core.advance(float(step)):
                assert isinstance(pull, Pull)
                p = pull.fragment
                for m in range(REPLICAS):
                    payload = codec.encode(core.coding, flat(theirs.read[m]))
                    push = Push(Offer(p, pull.t, core.coding, core.version(p), steps=1, tokens=1), payload)
                    assert core.push(f"u{m}", push, float(step)) is None
                assert any(isinstance(action, Broadcast) for action in core.advance(float(step)))
                expected = flat(theirs.global_values(order.index(p)))
                worst = max(worst, float(np.abs(core.value(p) - expected).max()))
                moved = max(moved, float(np.abs(expected - initial[p]).max()))
                next(merged)
    assert next(merged) == ROUNDS
    # Both sum in float32, in another order: parameters of order one, 2^-24 each, and the recursion forgets its errors (mu < 1).
    assert worst <= 1e-6
    assert moved > 0.1, "training must move the parameters, or the agreement says nothing"
