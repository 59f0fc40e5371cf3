"""What `diloco.torch.join` asks of a program before it contacts the job, and what it tells it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import diloco.torch
import numpy as np
import pytest
import torch
from builders.exchange import LocalLearner, LocalSyncer, Place, connection_of, job_file, training
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout
from diloco.learner.arrays import ArrayStore
from diloco.learner.leave import Leave
from diloco.session.session import Session
from diloco.torch import ModuleStore
from diloco.torch.optimizers import UpdateCounts
from torch import nn


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)  # type: ignore[arg-type]


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trains 6 parameters that the model does not have \(one of shape \[4, 3\], .* and 1 more\)"):
        diloco.torch.join(model(), optimizer=adam(model().parameters()), environment={})


def test_a_parameter_that_no_optimizer_trains_is_named() -> None:
    net = model()
    with pytest.raises(ValueError, match=r"no optimizer trains 1\.weight, 1\.bias, 2\.weight, 2\.bias: .* requires_grad"):
        diloco.torch.join(net, optimizer=adam(net[0].parameters()), environment={})


def test_a_parameter_that_two_optimizers_train_is_named() -> None:
    net = model()
    with pytest.raises(ValueError, match=r"more than one optimizer trains 0\.weight, 0\.bias"):
        diloco.torch.join(net, optimizer=[adam(net.parameters()), adam(net[0].parameters())], environment={})


def test_something_that_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="not str"):
        diloco.torch.join(model(), optimizer=["adam"], environment={})  # type: ignore[list-item]


def test_frozen_parameters_several_optimizers_and_tied_parameters_are_allowed() -> None:
    net = model()
    net[2].requires_grad_(False)
    net.append(nn.Linear(3, 4))
    net[3].weight = net[0].weight
    optimizers = [adam(net[0].parameters()), adam([*net[1].parameters(), net[3].bias])]
    with pytest.raises(SystemExit, match="64"):  # all is well with the model, and this is no pod of a job
        diloco.torch.join(net, optimizer=optimizers, environment={})


@pytest.mark.slow
def test_a_program_is_told_which_parameters_were_overwritten(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(60)))
    net = nn.Linear(3, 2)
    told: list[str] = []
    average: dict[str, torch.Tensor] = {}

    def on_adopt(names: Sequence[str]) -> None:
        told.extend(names)
        average.update({name: net.get_parameter(name).detach().clone() for name in names})

    arrays = {"bias": np.full(2, 3, np.float32), "weight": np.full((2, 3), 5, np.float32)}
    with LocalSyncer(place) as syncer:
        first = LocalLearner(place, syncer.address, "a", arrays=arrays, embeddings=(), step_seconds=0.02).start()
        while first.session is None:
            first._thread.join(0.01)
        session = diloco.torch.join(
            net, optimizer=adam(net.parameters()), on_adopt=on_adopt, environment=place.of_learner(syncer.address, "b")
        )
        assert {"bias", "weight"} == set(told)
        joined = len(told)
        with session:
            for _ in session.batches(lambda numbers: numbers, 2):
                session.step(tokens=2)
        first.wait()
    assert session.done
    assert len(told) > joined + 2, "in the course of the training, and at its end"
    assert all(torch.equal(average[name], parameter) for name, parameter in net.named_parameters())


@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_bfloat16_parameters_that_nothing_trains_leave_the_jobs_values_as_they_are(tmp_path: Path, compression: str) -> None:
    place = Place(tmp_path, job_file(training(60, compression=compression)))
    chance = np.random.default_rng(1)
    seed = {name: chance.standard_normal(shape, np.float32) for name, shape in (("bias", (2,)), ("weight", (2, 3)))}
    net = nn.Linear(3, 2, dtype=torch.bfloat16)
    with LocalSyncer(place) as syncer:
        seeder = Session.join(ArrayStore(seed), framework="numpy", environment=place.of_learner(syncer.address, "a"))
        seeder._drain(signal.SIGTERM, None)
        with pytest.raises(Leave):
            seeder.close()
        session = diloco.torch.join(net, optimizer=adam(net.parameters()), environment=place.of_learner(syncer.address, "b"))
        contributions = 0
        with session:
            for _ in session.batches(lambda numbers: numbers, 2):
                threading.Event().wait(0.005)  # a step
                session.step(tokens=2)
            unit = syncer.unit("b")  # before Bye: after it the syncer of a complete job ends
            assert unit is not None
            contributions = unit.contributions
    assert contributions > 10
    held = connection_of(session).received()
    assert held is not None
    # Two fragments, each of one tensor. None of the values is one of bfloat16's.
    assert {value.tobytes() for value in held} == {value.tobytes() for value in seed.values()}
    assert not any(torch.equal(net.get_parameter(name).float(), torch.from_numpy(value)) for name, value in seed.items())


# --- steps and updates --------------------------------------------------------------------------------------------------


def accumulate(tmp_path: Path, steps: int, *, step_at_each_batch: bool = False) -> Session:
    """A unit alone in its job, with gradients of four batches in each update, until the job is done."""
    place = Place(tmp_path, job_file(training(steps)))
    net = model()
    with LocalSyncer(place) as syncer:
        optimizer = adam(net.parameters())
        with diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            for number, batch in enumerate(session.batches(lambda numbers: torch.from_numpy(numbers).float(), 3), 1):
                net(batch.tile(2, 1)).square().mean().backward()
                if number % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                if step_at_each_batch:
                    session.step(tokens=6)
                elif number % 4 == 0:
                    session.step(tokens=24, batches=4)
            unit = syncer.unit("a")
            assert unit.steps * 24 == unit.tokens
    return session


def test_an_update_of_several_batches_is_one_step(tmp_path: Path) -> None:
    assert accumulate(tmp_path, 30).done


def test_a_program_that_feeds_itself_trains_to_the_end_and_the_report_says_so(tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(30)))
    net = model()
    with LocalSyncer(place) as syncer:
        optimizer = adam(net.parameters())
        with diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            while not session.over:
                net(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step(tokens=6)
            unit = syncer.unit("a")
            ledger = syncer.call(syncer.syncer.engine.work.ledger.summary)
    assert unit is not None
    assert (unit.own_data, unit.tokens) == (True, 6 * unit.steps)
    assert unit.tokens > 0
    assert (ledger.committed, ledger.frontier) == (0, 0)


def test_a_program_with_a_grad_scaler_leaves_out_updates_and_trains_to_the_end(tmp_path: Path) -> None:
    """The gradient of an output is 2^6 times the scale at most, which begins at 2^16, and float16 ends at 2^16: the scale is halved seven
    times at most for the outputs, and twice for the sums over batch and outputs behind them, each with an update left out. 16 of 64 may
    be. Where this loss is low tanh is flat, and the gradients small: however many steps the program makes, no more are left out."""
    place = Place(tmp_path, job_file(training(70)))
    net = model()
    scaler = torch.amp.GradScaler("cpu", growth_interval=1_000_000)
    skipped = 0
    with LocalSyncer(place) as syncer:
        optimizer = adam(net.parameters())
        with diloco.torch.join(net, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            for batch in session.batches(lambda numbers: torch.ones(len(numbers), 3), 2):
                with torch.autocast("cpu", torch.float16):
                    loss = net(batch).float().tanh().sum() * 2.0**6
                before = scaler.get_scale()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                skipped += scaler.get_scale() < before
                session.step(tokens=batch.numel())
    assert session.done
    assert 1 <= skipped <= 9
    assert all(value.isfinite().all() for value in net.parameters())


def test_a_step_for_each_micro_batch_ends_the_program(tmp_path: Path) -> None:
    with pytest.raises(diloco.torch.LoopError, match=r"step\(\) was called 64 times for 16 updates of the optimizer"):
        accumulate(tmp_path, 1000, step_at_each_batch=True)


@pytest.mark.slow
def test_updates_of_a_wrapped_optimizer_count_and_those_of_a_compiled_one_do_not() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As accelerate's: it is an optimizer, and holds the real one."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    net = model()
    real = adam(net.parameters())
    counts = UpdateCounts([Wrapper(real), plain := torch.optim.SGD(net.parameters(), lr=0.1)])
    net(torch.ones(1, 3)).sum().backward()
    real.step()
    real.step()
    plain.step()
    assert list(counts()) == [2, 1]
    torch.compile(plain.step, backend="eager")()
    assert list(counts()) == [2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_model_that_is_compiled_before_or_after_joining_computes_with_what_it_adopts(tmp_path: Path, before: bool) -> None:
    place = Place(tmp_path, job_file(training(40)))
    net, graphs = model(), 0

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled: nn.Module = torch.compile(net, backend=backend)  # type: ignore[assignment]
    inputs = torch.arange(6.0).view(2, 3)
    adopted = 0
    with LocalSyncer(place) as syncer:
        optimizer = adam(net.parameters())
        joins = compiled if before else net
        with diloco.torch.join(joins, optimizer=optimizer, environment=place.of_learner(syncer.address, "a")) as session:
            if not before:
                compiled = torch.compile(net, backend=backend)  # type: ignore[assignment]
            for batch in session.batches(lambda numbers: numbers, 2):
                compiled(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                version = session.t
                session.step(tokens=len(batch))
                adopted += session.t > version
        held = connection_of(session).received()
        assert held is not None
    assert session.done
    assert adopted > 10
    assert graphs == 1, "neither joining nor what is adopted compiles it again"
    plain = model()
    values = np.concatenate(held)
    store = ModuleStore(plain)
    names = [spec.name for fragment in make_fragments(Layout(store.specs()), 2) for spec in fragment.tensors]
    store.apply(store.prepare(names, values))
    assert torch.equal(compiled(inputs), plain(inputs)), "with the job's final values"
