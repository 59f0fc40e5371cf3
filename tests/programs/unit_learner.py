"""A learner of a unit of any number of processes, in torch or JAX: fits one layer's map with another's. Same model in all kinds.

    unit_learner.py KIND

KIND: `numpy` and `single` (torch) in one process, `ddp`, `fsdp`, `tensor_parallel` (all ranks train the same batch), `jax` (SPMD over all
processes, or one). These, all optional, say how to behave:

UNIT_STEP_MS     a step lasts this long at least (default 5)
UNIT_TRACE       append one JSON line {"unit", "attempt", "rank", "step", "t", "numbers"} a step to this file
UNIT_KEEPS       "1": of `jax`: go on from the program's own parameters, and not from those that it gets back
UNIT_AHEAD       "1": of `jax`: fetch a batch between an update, to which the parameters are donated, and its `step`
UNIT_DEVICES     of `jax`: so many local devices must be there
UNIT_DIE         "UNIT:RANK:STEP": this rank of the unit's first attempt kills itself at this local step

At the end each rank prints one JSON line: {"unit", "rank", "digest" of all parameters, "steps" of this process, "held_out"}.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diloco import contract
from numpy.typing import NDArray

INPUT, HIDDEN = 8, 24
BATCH = 8
"""Samples of the unit's batch."""
RATE = 0.05

type Arrays = dict[str, NDArray[np.float32]]


def initial() -> Arrays:
    chance = np.random.default_rng(1)
    shapes = {"first": (INPUT, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, INPUT)}
    return {name: (0.3 * chance.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def samples(numbers: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Inputs and what the model is to make of them, float32 [n, INPUT]: a fixed function of each sample's number."""
    inputs = np.stack([np.random.default_rng(int(number)).standard_normal(INPUT) for number in numbers]).astype(np.float32)
    return inputs, np.roll(inputs, 1, axis=1)


def digest(arrays: Arrays) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()[:16]


def trace(session: Any, rank: int, numbers: NDArray[np.int64]) -> None:
    if path := os.environ.get("UNIT_TRACE"):
        line = {
            "unit": os.environ[contract.ENV_UNIT],
            "attempt": int(os.environ[contract.ENV_ATTEMPT]),
            "rank": rank,
            "step": session.step_count,
            "t": session.t,
            "numbers": numbers.tolist(),
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def held_out(arrays: Arrays) -> float:
    """The loss on samples that no unit trains."""
    inputs, targets = samples(np.arange(1 << 40, (1 << 40) + 256))
    outputs = np.tanh(inputs @ arrays["first"] + arrays["bias"]) @ arrays["second"]
    return float(np.mean(np.square(outputs - targets)))


def report(session: Any, rank: int, arrays: Arrays) -> None:
    loss = held_out(arrays)
    session.evaluate(loss, tokens=256 * INPUT)
    line = {"unit": os.environ[contract.ENV_UNIT], "rank": rank, "digest": digest(arrays), "steps": session.step_count, "held_out": loss}
    print(json.dumps(line), flush=True)


def die_when_told(session: Any, rank: int) -> None:
    me = [os.environ[contract.ENV_UNIT], str(rank), str(session.step_count + 1)]
    if os.environ[contract.ENV_ATTEMPT] == "1" and os.environ.get("UNIT_DIE", "").split(":") == me:
        os.kill(os.getpid(), signal.SIGKILL)


def with_numpy(step_seconds: float) -> None:
    from diloco.learner.arrays import ArrayStore
    from diloco.session.session import Session

    params = initial()
    with Session.join(ArrayStore(params), framework="numpy") as session:
        for numbers in session.batches(lambda numbers: numbers, BATCH):
            until = time.monotonic() + step_seconds
            inputs, targets = samples(numbers)
            hidden = np.tanh(inputs @ params["first"] + params["bias"])
            error = hidden @ params["second"] - targets
            slope = 2 * error / error.size
            inner = (slope @ params["second"].T) * (1 - np.square(hidden))
            for name, gradient in (("second", hidden.T @ slope), ("first", inputs.T @ inner), ("bias", inner.sum(axis=0))):
                params[name] -= np.float32(RATE) * gradient
            die_when_told(session, 0)
            pause(until)
            session.step(tokens=inputs.size, loss=float(np.mean(np.square(error))))
            trace(session, 0, numbers)
        if session.done:
            report(session, 0, params)


def pause(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def with_torch(kind: str, step_seconds: float) -> None:
    import diloco.torch as diloco
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in initial().items():
                self.register_parameter(name, nn.Parameter(torch.from_numpy(value)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, bias, second = self.parameters()
            return torch.tanh(x @ first + bias) @ second

    torch.set_num_threads(1)
    ranks = 1
    if kind != "single":
        distributed.init_process_group("gloo")
        ranks = distributed.get_world_size()
    rank = distributed.get_rank() if ranks > 1 else 0
    plain = Model()
    model: nn.Module = plain
    if kind == "ddp":
        model = DistributedDataParallel(plain)
    elif kind == "fsdp":
        fully_shard(plain, mesh=init_device_mesh("cpu", (ranks,)))
    elif kind == "tensor_parallel":
        mesh = init_device_mesh("cpu", (ranks,))
        placements = {"first": Shard(1), "bias": Shard(0), "second": Shard(0)}
        for name, placement in placements.items():
            value = getattr(plain, name)
            setattr(plain, name, nn.Parameter(distribute_tensor(value.detach(), mesh, [placement])))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    same = kind == "tensor_parallel"
    parts = 1 if same else ranks
    loss = torch.tensor(0.0)
    with diloco.join(model, optimizer=optimizer, data_parallel=(0, 1) if same else None) as session:
        for numbers in session.batches(lambda numbers: numbers, BATCH // parts):
            until = time.monotonic() + step_seconds
            inputs, targets = (torch.from_numpy(one) for one in samples(numbers))
            if same:
                inputs = DTensor.from_local(inputs, mesh, [Replicate()], run_check=False)
                outputs = model(inputs).full_tensor()
            else:
                outputs = model(inputs)
            loss = torch.nn.functional.mse_loss(outputs, targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            die_when_told(session, rank)
            pause(until)
            session.step(tokens=inputs.numel(), loss=loss.item())
            trace(session, rank, numbers)
        if session.done:
            final = {
                name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().numpy()
                for name, value in plain.named_parameters()
            }
            report(session, rank, final)
    if ranks > 1:
        distributed.destroy_process_group()


def with_jax(step_seconds: float) -> None:
    import diloco.jax as diloco
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh

    diloco.initialize()
    count, index = jax.process_count(), jax.process_index()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    placed: dict[str, Any] = {"first": (None, "x"), "bias": ("x",), "second": ()}
    shardings = {name: _sharding(mesh, axes) for name, axes in placed.items()}
    own = initial()
    params = {name: jax.make_array_from_callback(value.shape, shardings[name], value.__getitem__) for name, value in own.items()}
    batched = _sharding(mesh, ("x",))

    def loss_of(params: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
        outputs = jnp.tanh(inputs @ params["first"] + params["bias"]) @ params["second"]
        return jnp.mean(jnp.square(outputs - targets))

    @partial(jax.jit, donate_argnums=0)
    def train(params: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(params, inputs, targets)
        moved = {name: params[name] - RATE * gradient[name] for name in params}
        constrain: Any = jax.lax.with_sharding_constraint
        return {name: constrain(value, shardings[name]) for name, value in moved.items()}, loss

    from_local: Any = jax.make_array_from_process_local_data
    assert jax.local_device_count() == int(os.environ.get("UNIT_DEVICES", jax.local_device_count()))
    ahead = bool(os.environ.get("UNIT_AHEAD"))
    last = 0.0
    with diloco.join(params, ()) as session:
        params = session.params
        batches = session.batches(lambda numbers: numbers, BATCH // count)
        numbers = next(batches, None)
        while numbers is not None:
            until = time.monotonic() + step_seconds
            inputs, targets = (from_local(batched, one) for one in samples(numbers))
            params, loss = train(params, inputs, targets)
            last = float(loss)
            die_when_told(session, index)
            pause(until)
            following = next(batches, None) if ahead else None
            got, _ = session.step(params, (), tokens=len(numbers) * INPUT, loss=last)
            params = params if os.environ.get("UNIT_KEEPS") else got
            trace(session, index, numbers)
            numbers = following if ahead else next(batches, None)
        if session.done:
            final = {name: np.asarray(value) for name, value in multihost_utils.process_allgather(session.params, tiled=True).items()}
            report(session, index, final)


def _sharding(mesh: Any, axes: tuple[str | None, ...]) -> Any:
    from jax import sharding

    spec: Any = sharding.PartitionSpec
    return sharding.NamedSharding(mesh, spec(*axes))


def main() -> None:
    kind, step_seconds = sys.argv[1], float(os.environ.get("UNIT_STEP_MS", "5")) / 1000
    match kind:
        case "numpy":
            with_numpy(step_seconds)
        case "jax":
            with_jax(step_seconds)
        case _:
            with_torch(kind, step_seconds)


if __name__ == "__main__":
    main()
