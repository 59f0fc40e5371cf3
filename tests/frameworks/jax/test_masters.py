"""Optimizers of optax that keep float32 copies of shorter parameters in their state."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from diloco.jax.masters import LOOKED_AT, Masters

type Params = dict[str, Any]

RATE = 2.0**-12
"""A step moves a parameter near 1 by RATE, a sixteenth of what bfloat16 can show there (2^-8)."""


class MasterState(NamedTuple):
    inner: optax.OptState
    master: Params
    average: Params


def with_masters(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Updates float32 copies, and rounds them. It keeps an average of them, too, which begins as a copy."""

    def init(params: Params) -> MasterState:
        master = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        return MasterState(inner.init(master), master, master)

    def update(updates: Params, state: MasterState, params: Params | None = None) -> tuple[Params, MasterState]:
        changes, of_inner = inner.update(jax.tree.map(lambda x: x.astype(jnp.float32), updates), state.inner, state.master)
        master = optax.apply_updates(state.master, changes)
        average = jax.tree.map(lambda old, new: 0.5 * old + 0.5 * new, state.average, master)
        return jax.tree.map(lambda new, old: new.astype(old.dtype) - old, master, params), MasterState(of_inner, master, average)

    return optax.GradientTransformation(init, update)


class Program:
    """A training program that a job overwrites a parameter of."""

    def __init__(self, params: Params, optimizer: optax.GradientTransformation) -> None:
        self.optimizer = optimizer
        self.params: Params = params
        self.state: Any = optimizer.init(params)
        self.masters = Masters(params, self.state)

    def step(self, gradient: float = 1.0) -> None:
        gradients = jax.tree.map(lambda x: jnp.full_like(x, gradient), self.params)
        updates, self.state = self.optimizer.update(gradients, self.state, self.params)
        self.params = optax.apply_updates(self.params, updates)
        self.masters.look_again(self.params, self.state)

    def adopt(self, path: str, value: Any) -> None:
        outer, inner = path.split("/")
        self.params = {**self.params, outer: {**self.params[outer], inner: jnp.asarray(value, self.params[outer][inner].dtype)}}
        self.state = self.masters.follow([path], self.params, self.state)


def a_model(dtype: Any) -> Params:
    return {"layer": {"weight": jnp.ones((4, 4), dtype), "bias": jnp.zeros(4, dtype)}, "head": {"weight": jnp.ones((2, 4, 4), dtype)}}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_masters_go_on_from_what_was_adopted(dtype: Any) -> None:
    program = Program(a_model(dtype), with_masters(optax.sgd(RATE)))
    program.step()
    program.adopt("layer/weight", np.full((4, 4), 3.0))
    program.adopt("layer/bias", np.full(4, 0.25))
    program.step()
    assert np.allclose(program.state.master["layer"]["weight"], 3.0 - RATE)
    assert np.allclose(program.state.master["layer"]["bias"], 0.25 - RATE), "also of a parameter that began with zeros"
    assert np.allclose(program.params["layer"]["weight"].astype(np.float32), 3.0, atol=0.01), "the step does not undo the adoption"
    assert np.allclose(program.state.master["head"]["weight"], 1 - 2 * RATE), "what was not adopted keeps its bits below the rounding"


def test_masters_follow_an_adoption_before_the_first_step() -> None:
    program = Program(a_model(jnp.bfloat16), with_masters(optax.adamw(RATE)))
    program.adopt("head/weight", np.full((2, 4, 4), 2.0))
    assert (program.state.master["head"]["weight"] == 2.0).all()


def test_of_a_stacked_leaf_only_the_layer_that_was_adopted_is_overwritten() -> None:
    program = Program(a_model(jnp.bfloat16), with_masters(optax.sgd(RATE)))
    program.step()
    program.adopt("head/weight", np.stack([np.full((4, 4), 2.0), np.asarray(program.params["head"]["weight"][1], np.float32)]))
    first, second = program.state.master["head"]["weight"]
    assert (first == 2.0).all()
    assert np.allclose(second, 1 - RATE, rtol=0, atol=RATE / 8)


def test_an_average_begins_as_a_copy_and_is_left_alone_once_it_is_none() -> None:
    program = Program(a_model(jnp.bfloat16), with_masters(optax.sgd(0.25)))
    program.step()
    before = program.state.average["layer"]["weight"]
    program.adopt("layer/weight", np.full((4, 4), 3.0))
    assert (program.state.average["layer"]["weight"] == before).all()
    assert (program.state.master["layer"]["weight"] == 3.0).all()


def test_float32_parameters_have_no_masters() -> None:
    program = Program(a_model(jnp.float32), with_masters(optax.sgd(RATE)))
    state = program.state
    program.adopt("layer/weight", np.full((4, 4), 3.0))
    assert program.state is state


def test_moments_are_no_masters() -> None:
    """Those of a model of zeros equal it until the first step, and have its shapes."""
    params = {"layer": {"weight": jnp.zeros((4, 4), jnp.bfloat16)}}
    program = Program(params, optax.adam(RATE, mu_dtype=jnp.float32))
    program.adopt("layer/weight", np.full((4, 4), 3.0))
    assert not program.state[0].mu["layer"]["weight"].any()


def test_after_the_first_steps_no_step_waits_for_the_device() -> None:
    program = Program(a_model(jnp.bfloat16), with_masters(optax.sgd(RATE)))
    for _ in range(LOOKED_AT):
        program.step()
    program.masters.look_again({}, ())  # it would not find the parameters
