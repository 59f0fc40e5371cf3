"""The model of `adamw_learner.py` in JAX, with AdamW of optax and a key of random numbers: for tests of what a process begins with.

OPTAX_STEP_MS  a step lasts this long (default 20)
OPTAX_TRACE    append one JSON line {"unit", "attempt", "rank", "steps", "warm", "moments", "key"} to this file before the first step: what
               the optimizer has counted by then, the first rate of a schedule that warms up over 20 steps to 1, the sum of the second
               moments, and the key
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import diloco.jax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from diloco import contract
from diloco.canonical import Canonical
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS = 8


def initial() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    weights = chance.standard_normal((LAYERS, 16, 16), np.float32) / 4
    return {"weights": weights, "biases": np.zeros((LAYERS, 16), np.float32)}


def main() -> None:
    canonical = {
        "weights": Canonical("{layer}.weight", axes=(1, 0), stacked=True),
        "biases": Canonical("{layer}.bias", stacked=True),
    }
    diloco.jax.initialize()
    # Of several processes, the model is sharded over them.
    mesh = Mesh(np.array(jax.devices()), ("x",))
    shardings = {"weights": NamedSharding(mesh, PartitionSpec(None, None, "x")), "biases": NamedSharding(mesh, PartitionSpec())}  # type: ignore[no-untyped-call]
    params = {name: jax.make_array_from_callback(value.shape, shardings[name], value.__getitem__) for name, value in initial().items()}
    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any) -> Any:
        moments, key = state
        key, own = jax.random.split(key)
        source = jax.random.normal(own, (2, 16))

        def loss(params: Any) -> jax.Array:
            found = source
            for layer in range(LAYERS):
                found = found @ params["weights"][layer] + params["biases"][layer]
            return jnp.square(found - source).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        moved: Any = optax.apply_updates(params, updates)
        constrain: Any = jax.lax.with_sharding_constraint
        moments = jax.tree.map(lambda leaf: constrain(leaf, shardings["weights"]) if leaf.ndim == 3 else leaf, moments)
        return {name: constrain(leaf, shardings[name]) for name, leaf in moved.items()}, (moments, key), value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    seconds = float(os.environ.get("OPTAX_STEP_MS", "20")) / 1000
    with diloco.jax.join(params, (optimizer.init(params), jax.random.key(1)), canonical=canonical) as session:
        params, state = session.params, session.opt_state
        _trace(state, diloco.jax.schedule(session, 1.0, "constant", warmup=20)())
        for numbers in session.batches(lambda numbers: numbers, 2):
            begun = time.monotonic()
            params, state, loss = compiled(params, state)
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            params, state = session.step(params, state, tokens=16 * len(numbers), loss=loss)
        if session.done:
            session.evaluate(0.5, 100)


def _trace(state: Any, warm: float) -> None:
    moments, key = state
    said = {
        "unit": os.environ[contract.ENV_UNIT],
        "attempt": int(os.environ[contract.ENV_ATTEMPT]),
        "rank": jax.process_index(),
        "steps": [int(moments[0].count)],
        "warm": warm,
        "moments": float(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(moments[0].nu))),
        "key": jax.random.key_data(key).tolist(),
    }
    with Path(os.environ["OPTAX_TRACE"]).open("a", encoding="utf-8") as trace:
        trace.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
