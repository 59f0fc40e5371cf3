"""A program in JAX with an optimizer of optax, whose state another one takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import wholes
from diloco.canonical import Canonical
from diloco.jax import TreeStore
from diloco.jax.inner_state import TreeState
from diloco.protocol.state_parts import cut
from diloco.protocol.state_values import decode, encode
from jax.sharding import Mesh, NamedSharding, PartitionSpec

type Place = Callable[[jax.Array], jax.Array]


def as_it_is(leaf: jax.Array) -> jax.Array:
    return leaf


def over_two_devices(leaf: jax.Array) -> jax.Array:
    """Put arrays of two axes or more on two devices along the last one, which has an even length; others are on both."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    axes = (*(None,) * (leaf.ndim - 1), "x") if leaf.ndim > 1 else ()
    placed: jax.Array = jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))  # type: ignore[no-untyped-call]
    return placed


class OptaxProgram:
    """A model and its optimizer. Two programs have the same batches. Its step donates what it is given."""

    def __init__(
        self, optimizer: optax.GradientTransformation, *, seed: int = 0, dtype: str = "float32", place: Place = as_it_is, **more: Any
    ) -> None:
        chance = np.random.default_rng(seed)
        shapes: dict[str, tuple[int, ...]] = {"layers": (2, 5, 6), "turned": (4, 6), "bias": (6,), "scale": ()}
        params = {name: place(jnp.asarray(chance.standard_normal(shape), dtype)) for name, shape in shapes.items()}
        canonical = {"layers": Canonical("layer.{layer}", axes=(1, 0), stacked=True), "turned": Canonical("turned", axes=(1, 0))}
        self.store: TreeStore[dict[str, jax.Array]] = TreeStore(params, canonical=canonical)
        of_optimizer = jax.tree.map(lambda leaf: place(leaf) if isinstance(leaf, jax.Array) else leaf, optimizer.init(params))
        self.state: TreeState[Any] = TreeState(self.store, (of_optimizer, more) if more else of_optimizer)
        self.more = bool(more)

        def update(params: Any, state: Any, batch: jax.Array) -> Any:
            def loss(params: Any) -> jax.Array:
                hidden = batch @ params["layers"][0] * params["scale"] + params["bias"]
                return jnp.square(hidden @ params["turned"].T).mean() + jnp.square(params["layers"][1]).mean()

            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        self.update = jax.jit(update, donate_argnums=(0, 1))
        self.batches = np.random.default_rng(1)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = jnp.asarray(self.batches.standard_normal((3, 5)), self.store.held()["bias"].dtype)
            state = self.state.opt_state
            params, of_optimizer = self.update(self.store.hand_out(), state[0] if self.more else state, batch)
            self.store.take_back(params)
            self.state.opt_state = (of_optimizer, state[1]) if self.more else of_optimizer

    def gives_to(self, taker: OptaxProgram) -> None:
        """As over the wire: each part, and then the small rest."""
        parts = cut(wholes(Layout(self.store.specs()).tensors), 7)
        taker.state.begin()
        self.state.warm_up(parts)
        for part in parts:
            arrays = self.state.arrays(part)
            staged = self.state.stage(arrays)
            values = staged.wait()
            staged.release()
            start = 0
            for one in arrays:
                taker.state.put(one, values[start : start + one.piece.elements])
                start += one.piece.elements
        taker.state.finish(self.rest())
        taker.batches.bit_generator.state = self.batches.bit_generator.state

    def rest(self) -> Any:
        return decode(encode(self.state.stage_rest().wait()))

    def values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(leaf, np.float32) for name, leaf in self.store.held().items()}


def clipped() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.1, 0.01, 10)))


def given(donor: Place, taker: Place, steps: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """Let one program take the state of another one after some steps, and both go on. What they end with, and the devices of the least
    spread leaf of the taker's state."""
    gives, takes = OptaxProgram(clipped(), place=donor), OptaxProgram(clipped(), seed=9, place=taker)
    gives.train(steps)
    gives.gives_to(takes)
    devices = min(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(takes.state.opt_state))
    for program in (gives, takes):
        program.train(steps)
    return gives.values(), takes.values(), devices
