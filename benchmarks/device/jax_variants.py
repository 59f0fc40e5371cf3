"""Checks the JAX adapter with programs whose steps donate their buffers. Each runs with a session and without, compared step by step.

    python -m benchmarks.device.jax_variants --device cuda KIND…

Prints a line for each kind, see `Outcome`, and one for how long a boundary takes while the device computes. The exit status is 1 when a
kind fails, or its outcome is not good.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from builders.scripted_connection import ScriptedSession
from diloco.algorithm.fragments import pack
from diloco.jax import Session, TreeStore
from diloco.jax.inner_state import TreeState
from diloco.jax.masters import Masters

from benchmarks.device.outcome import Outcome, look_at_each
from benchmarks.device.part import print_result
from benchmarks.device.script import ADOPTED_AT, BATCH, EQUAL, QUIET, READS, STEPS, adopted, comes_before, read, seeds

WIDTH, LAYERS, ROWS = 256, 6, 64
RATE: Final = 1e-2
LAG: Final = 100
"""Number of matrix products in each step on a GPU, so that the device lags behind the host."""
KINDS: Final = {"donated-float32": jnp.float32, "donated-bfloat16-with-masters": jnp.bfloat16}

type Params = dict[str, jax.Array]


def first(dtype: Any) -> tuple[Params, Params]:
    """Initial parameters, and as their state their float32 masters."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    masters = {f"w{index}": jax.random.normal(key, (WIDTH, WIDTH)) / 16 for index, key in enumerate(keys)}
    return {name: jnp.array(value, dtype, copy=True) for name, value in masters.items()}, masters


@partial(jax.jit, donate_argnums=(0, 1), static_argnames="lag")
def update(params: Params, masters: Params, inputs: jax.Array, *, lag: int) -> tuple[Params, Params]:
    def loss(params: Params) -> jax.Array:
        values = inputs
        for name in sorted(params):
            values = jnp.tanh(values @ params[name].astype(jnp.float32))
        return jnp.square(values - inputs).mean()

    gradients = jax.grad(loss)(params)
    # `late` is 0, but the compiler does not know that, and it takes long to compute.
    zeros = jnp.full((2048 if lag else 1,) * 2, inputs[0, 0] * 0)
    late = jax.lax.fori_loop(0, lag, lambda _, value: jnp.tanh(value @ value), zeros)[0, 0]
    moved = {name: masters[name] - RATE * gradients[name].astype(jnp.float32) + late for name in params}
    return {name: value.astype(params[name].dtype) for name, value in moved.items()}, moved


def inputs_of(step: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(step).standard_normal((ROWS, WIDTH), np.float32))


def copied(params: Params) -> Params:
    """Copy the parameters on their device: the next step donates their buffers. The host does not wait."""
    return {name: jnp.array(value, copy=True) for name, value in params.items()}


def alone(dtype: Any, lag: int) -> list[Params]:
    params, masters = first(dtype)
    after = []
    for step in range(1, STEPS + 1):
        params, masters = update(params, masters, inputs_of(step), lag=lag)
        after.append(copied(params))
    return after


def values(params: Params) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float32) for name, value in params.items()}


def same(one: Params, other: Params) -> bool:
    return all(np.array_equal(value, values(other)[name]) for name, value in values(one).items())


class InJob:
    """The same program in a job, whose messages come from `script`."""

    def __init__(self, dtype: Any, lag: int) -> None:
        self.lag = lag
        params, masters = first(dtype)
        store = TreeStore(params)
        self.job = ScriptedSession(store=store)
        store.watch()
        followed = Masters(params, masters)
        self.session: Session[Params, Params] = self.job.begin(Session(self.job.parts, store, TreeState(store, masters), followed))
        seeds(self.job)
        self.after: list[Params] = []
        self.boundaries: list[float] = []
        """Seconds of each boundary."""
        self.device_seconds = 0.0
        """Seconds of one step on the device."""

    def train(self) -> None:
        batches = self.session.batches(lambda numbers: numbers, BATCH)
        params, masters = self.session.params, self.session.opt_state
        for step in range(1, STEPS + 1):
            next(batches)
            jax.block_until_ready(params)  # type: ignore[no-untyped-call]
            began = time.monotonic()
            params, masters = update(params, masters, inputs_of(step), lag=self.lag)
            if step in (ADOPTED_AT, STEPS):
                jax.block_until_ready(params)  # type: ignore[no-untyped-call]
                self.device_seconds = time.monotonic() - began
            comes_before(self.job, step)
            began = time.monotonic()
            params, masters = self.session.step(params, masters, tokens=16)
            self.boundaries.append(time.monotonic() - began)
            self.after.append(copied(params))

    def packed(self, fragment: int, params: Params) -> np.ndarray:
        return pack(self.job.fragments[fragment], values(params))


def outcome(kind: str, device: str) -> Outcome:
    """Check a kind of program, and print how long its boundaries take."""
    dtype, lag = KINDS[kind], 0 if device == "cpu" else LAG
    reference, again = alone(dtype, lag), alone(dtype, lag)
    in_job = InJob(dtype, lag)
    in_job.train()
    staged = read(in_job.job)
    expected = np.asarray(jnp.asarray(adopted(in_job.job)).astype(dtype).astype(jnp.float32))
    waited = sum(in_job.boundaries[step - 1] > in_job.device_seconds / 2 for step in QUIET) if lag else 0
    outcome_ = Outcome(
        f"jax {kind}",
        equal=sum(same(one, other) for one, other in zip(reference[:EQUAL], in_job.after, strict=False)),
        repeats=all(same(one, other) for one, other in zip(reference, again, strict=True)),
        staged=all(np.array_equal(staged[fragment], in_job.packed(fragment, in_job.after[step - 1])) for step, fragment in READS.items()),
        adopted=np.array_equal(expected, in_job.packed(0, in_job.after[ADOPTED_AT - 1])),
        waits=waited,
        waits_of_adoption=0,
        waits_seen=None,
    )
    longest = 1000 * max(in_job.boundaries[step - 1] for step in QUIET)
    print_result(
        f"jax {kind}: boundary", longest, "ms, the longest that moves nothing", step_on_device_ms=round(1000 * in_job.device_seconds, 2)
    )
    return outcome_


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
    sys.exit(look_at_each("jax", KINDS, outcome))
