"""The learner of [step-tax]: a torch module or a JAX tree of two fragments, and steps of a given length. It writes how long `step()` takes.

    python -m benchmarks.step_tax_learner TIMES --framework torch --mebibytes 128 --step-seconds 0.1 [--axes]

TIMES gets one line for each step: when it ended, in seconds of CLOCK_MONOTONIC. TIMES.inside also gets a line: seconds inside `step()`.
With `--axes` the parameters are transposed against their canonical form. The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH = 8
TENSORS, COLUMNS = 8, 1024
"""Four tensors for each of the two fragments."""

type Note = Callable[[float, float], None]
"""Called after each step, with the times when `step()` began and ended."""


def shape(mebibytes: int) -> tuple[int, int]:
    """The shape of each tensor. Together the tensors have `mebibytes` MiB of float32."""
    return mebibytes * (1 << 20) // 4 // TENSORS // COLUMNS, COLUMNS


def train_torch(mebibytes: int, step_seconds: float, axes: tuple[int, int] | None, note: Note) -> None:
    import torch
    from diloco import torch as diloco

    torch.set_num_threads(1)
    parameters = {f"w{index}": torch.nn.Parameter(torch.randn(shape(mebibytes))) for index in range(TENSORS)}
    model = torch.nn.ParameterDict(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    canonical = {name: diloco.Canonical(name, axes=axes) for name in parameters}
    with diloco.join(model, optimizer=optimizer, canonical=canonical) as session:
        for number, _ in enumerate(session.batches(lambda numbers: numbers, BATCH)):
            deadline = time.monotonic() + step_seconds
            with torch.no_grad():
                parameters[f"w{number % TENSORS}"].mul_(0.999)
            time.sleep(max(0.0, deadline - time.monotonic()))
            began = time.monotonic()
            session.step(tokens=BATCH * 128)
            note(began, time.monotonic())


def train_jax(mebibytes: int, step_seconds: float, axes: tuple[int, int] | None, note: Note) -> None:
    from functools import partial

    import jax
    from diloco import jax as diloco

    keys = jax.random.split(jax.random.key(0), TENSORS)
    tree = {f"w{index}": jax.random.normal(key, shape(mebibytes)) for index, key in enumerate(keys)}
    canonical = {name: diloco.Canonical(name, axes=axes) for name in tree}

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params: dict[str, jax.Array], count: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        return {name: value * np.float32(0.999) for name, value in params.items()}, count + 1

    with diloco.join(tree, jax.numpy.zeros((), int), canonical=canonical) as session:
        params, count = session.params, session.opt_state
        for _ in session.batches(lambda numbers: numbers, BATCH):
            deadline = time.monotonic() + step_seconds
            params, count = jax.block_until_ready(train_step(params, count))  # type: ignore[no-untyped-call]
            time.sleep(max(0.0, deadline - time.monotonic()))
            began = time.monotonic()
            params, count = session.step(params, count, tokens=BATCH * 128)
            note(began, time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--framework", choices=["torch", "jax"], required=True)
    parser.add_argument("--mebibytes", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--axes", action="store_true")
    given = parser.parse_args()
    train = train_torch if given.framework == "torch" else train_jax
    inside_file = given.times.with_suffix(".times.inside")
    with given.times.open("w", encoding="ascii", buffering=1) as times, inside_file.open("w", encoding="ascii", buffering=1) as inside:

        def note(began: float, ended: float) -> None:
            inside.write(f"{ended - began:.6f}\n")
            times.write(f"{ended:.6f}\n")

        train(given.mebibytes, given.step_seconds, (1, 0) if given.axes else None, note)


if __name__ == "__main__":
    main()
