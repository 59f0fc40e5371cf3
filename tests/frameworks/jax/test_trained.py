"""JAX programs that change leaves which joined as frozen, and those that give the same values in other arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diloco.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.exchange import LocalSyncer, Place, job_file, training
from diloco.jax.trained import FrozenLeaves
from diloco.learner.leave import LoopError
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FOR_EVER = 1_000_000
type Tree = dict[str, Any]


def tree() -> Tree:
    base = {"weight": jnp.ones((4, 3), jnp.bfloat16), "codes": jnp.arange(6, dtype=jnp.int8), "scale": 0.5, "table": np.ones(5)}
    return {"head": jnp.ones(3), "base": base, "key": jax.random.key(0), "activation": jnp.tanh}


def train(folder: Path, change: Callable[[Tree], Tree], *, at: int, steps: int = FOR_EVER) -> int:
    """Train the head until the job is done, with a change of the program to its parameters in local step `at`; the local steps."""
    place = Place(folder, job_file(training(steps, fragments=1)))
    with LocalSyncer(place) as syncer:
        environment = place.of_learner(syncer.address, "a")
        with diloco.jax.join(tree(), (), trained=lambda path: path == "head", environment=environment) as session:
            params, state = session.params, session.opt_state
            for batch in session.batches(lambda numbers: np.ones(len(numbers)), 2):
                params = {**params, "head": params["head"] * 0.99}
                params = change(params) if session.step_count == at else params
                params, state = session.step(params, state, tokens=batch.size)
            assert session.step_count > at
        assert session.done
        return session.step_count


def with_base(**leaves: Any) -> Callable[[Tree], Tree]:
    return lambda params: {**params, "base": {**params["base"], **leaves}}


CHANGES: dict[str, tuple[Callable[[Tree], Tree], str]] = {
    "one element of a weight": (with_base(weight=jnp.ones((4, 3), jnp.bfloat16).at[3, 2].set(2)), "base/weight"),
    "integers": (with_base(codes=jnp.arange(6, dtype=jnp.int8) + 1), "base/codes"),
    "a number": (with_base(scale=0.25), "base/scale"),
    "an array of numpy": (with_base(table=np.zeros(5)), "base/table"),
    "two leaves": (with_base(scale=0.25, codes=jnp.zeros(6, jnp.int8)), "base/codes, base/scale"),
    "a key of random numbers": (lambda params: {**params, "key": jax.random.split(params["key"])[0]}, "key"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES.keys())
def test_a_program_that_changes_frozen_leaves_ends_with_their_names(tmp_path: Path, change: Callable[[Tree], Tree], named: str) -> None:
    with pytest.raises(LoopError, match=f"joined as frozen: {named}\\. .*Let `trained` select them"):
        train(tmp_path, change, at=0)


def test_a_change_shortly_before_the_end_of_the_job_is_found_at_its_end(tmp_path: Path) -> None:
    with pytest.raises(LoopError, match="joined as frozen: base/scale"):
        train(tmp_path, with_base(scale=0.25), at=3, steps=8)


def test_the_same_values_in_other_arrays_are_no_change(tmp_path: Path) -> None:
    """As a compiled step gives back what it got: its arrays are of JAX, with numbers among them."""

    def compiled(params: Tree) -> Tree:
        again = jax.tree.map(lambda leaf: leaf if leaf is jnp.tanh else jnp.array(leaf), params)
        return {**again, "key": jax.random.wrap_key_data(jnp.array(jax.random.key_data(params["key"])))}

    assert train(tmp_path, compiled, at=0, steps=8) >= 8


def test_an_array_of_numpy_that_is_written_to_in_place_is_a_change() -> None:
    leaves = {"table": np.ones(5)}
    frozen = FrozenLeaves(lambda: leaves)
    frozen.check()
    leaves["table"][4] = 2
    with pytest.raises(LoopError, match="table"):
        frozen.check()


def test_another_sharding_of_the_same_values_is_no_change() -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",))
    values = np.arange(4 * len(jax.devices()), dtype=np.float32)
    leaves = {"w": jnp.asarray(values)}
    frozen = FrozenLeaves(lambda: leaves)
    spec: Any = PartitionSpec
    for axes in (spec("x"), spec()):
        leaves["w"] = jax.device_put(values, NamedSharding(mesh, axes))
        frozen.check()
    leaves["w"] = jax.device_put(values + 1, NamedSharding(mesh, spec("x")))
    with pytest.raises(LoopError, match="w"):
        frozen.check()


def test_leaves_that_are_donated_when_they_are_looked_at_are_left_out() -> None:
    leaves = {"w": jnp.ones(3)}
    frozen = FrozenLeaves(lambda: leaves)
    leaves["w"] = jnp.zeros(3)
    leaves["w"].delete()
    frozen.check()
