"""One process of a unit of JAX whose parameters every process holds whole, one of them frozen.

Prints the digest of the final parameters.
"""

from __future__ import annotations

import hashlib

import diloco.jax as diloco
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

BATCH = 4
"""Samples of one process."""


def main() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    diloco.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    values = {"w": jnp.linspace(0.0, 1.0, 12).reshape(4, 3), "b": jnp.zeros(3, jnp.bfloat16), "base": jnp.ones((2, 2))}
    params = jax.device_put(values, everywhere)
    state = {name: value.astype(jnp.float32) for name, value in params.items()}

    @jax.jit
    def update(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        moved: dict[str, jax.Array] = jax.tree.map(lambda leaf: leaf - jnp.asarray(0.1, leaf.dtype) * (leaf - 1), params)
        return moved

    with diloco.join(params, state, trained=lambda path: path != "base") as session:
        params, state = session.params, session.opt_state
        for _ in session.batches(lambda numbers: jnp.asarray(numbers), BATCH):
            params, state = session.step(update(params), state, tokens=BATCH)
        held = {name: np.asarray(leaf.addressable_data(0)) for name, leaf in session.params.items()}
    print(hashlib.sha256(b"".join(held[name].tobytes() for name in sorted(held))).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
