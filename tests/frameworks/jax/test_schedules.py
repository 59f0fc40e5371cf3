"""The rate of a job in optax: it reaches the update, and nothing is compiled again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from builders.frameworks.adapter import Clock
from diloco.jax import schedule


def test_the_rate_of_the_job_reaches_the_update_without_compiling_again() -> None:
    clock = Clock()
    rate = schedule(clock, 0.5, "linear")
    optimizer = optax.chain(optax.clip(10.0), optax.inject_hyperparams(optax.sgd)(learning_rate=0.0))
    params = jnp.zeros(2)
    state = optimizer.init(params)
    compiled = 0

    @jax.jit
    def step(params: jax.Array, state: optax.OptState) -> tuple[jax.Array, optax.OptState]:
        nonlocal compiled
        compiled += 1
        updates, state = optimizer.update(jnp.ones(2), state, params)
        return optax.apply_updates(params, updates), state

    before = 0.0
    moved = []
    for done in (0.0, 0.5, 0.9):
        clock.progress = done
        params, state = step(params, rate.into(state))
        moved.append(before - float(params[0]))
        before = float(params[0])
    assert moved == pytest.approx([0.5, 0.25, 0.05], abs=1e-6)
    assert compiled == 1


def test_a_state_without_a_rate_is_refused_with_what_to_do() -> None:
    state = optax.adamw(1e-3).init(jnp.zeros(2))
    with pytest.raises(ValueError, match=r"optax\.inject_hyperparams"):
        schedule(Clock(), 1e-3).into(state)
