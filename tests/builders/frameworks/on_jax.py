"""Parameters in a pytree of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from builders.frameworks.adapter import TURNED_AND_STACKED, Clock, Framework, Joined, Model, Program, Rate
from builders.scripted_connection import ScriptedSession
from builders.training_loop import TOKENS
from diloco.canonical import Canonical
from diloco.jax import Session, TreeStore, schedule
from diloco.jax.inner_state import TreeState

type Params = dict[str, jax.Array]

STEP = 0.01
"""What a step of a program moves each element by."""


def model(matrix: str, vector: str) -> Model:
    tree = {
        "matrix": jnp.zeros((5, 3), matrix),
        "layers": jnp.zeros((2, 4, 2), matrix),
        "vector": jnp.zeros(7, vector),
        "scalar": jnp.zeros((), vector),
    }
    store = TreeStore(tree, canonical=TURNED_AND_STACKED)
    step = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
    return Model(store, lambda: store.take_back(step(store.hand_out())))


class JaxProgram(Program):
    """A model of two stacked layers and a bias, and a job that overwrites its layers."""

    def __init__(self, dtype: str, place: Callable[[jax.Array], jax.Array] = lambda leaf: leaf) -> None:
        params = {"layers": place(jnp.ones((2, 16, 16), dtype)), "bias": jnp.zeros(4, dtype)}
        self.store = TreeStore(params, canonical={"layers": Canonical("layer.{layer}", stacked=True)})
        self.store.watch()
        self.params: Params = self.store.hand_out()

    def step(self, of: Params | None = None) -> None:
        """Take a step. `of`: what the program goes on from, in place of what it was handed out last."""
        self.give_back({name: leaf + jnp.asarray(STEP, leaf.dtype) for name, leaf in (of or self.params).items()})

    def give_back(self, params: Params) -> None:
        """Give these back to the session, and take what it hands out."""
        assert self.store.adoption_check is not None
        for sample in self.store.adoption_check._done:
            for values in sample.values:
                values.block_until_ready()  # in a program it is looked at a step later, if need be
        self.store.take_back(params)
        self.params = self.store.hand_out()

    def adopt(self, change: float) -> None:
        self._adopt(change)

    def undo(self, change: float) -> None:
        self.step(self._adopt(change))
        self.step()
        self.step()  # what the second step gave is looked at

    def adopt_own(self) -> None:
        self.step(self._adopt(-STEP))

    def _adopt(self, change: float) -> Params:
        """Move one layer at the end of a step, and return what the program had."""
        params = self.params
        self.store.take_back(params)
        value = self.store.read(["layer.1"])["layer.1"] + np.float32(change)
        self.store.write({"layer.1": value})
        self.params = self.store.hand_out()
        return params


class JaxJoined(Joined):
    """A tree of two leaves, and a step that adds 1."""

    session: Session[Params, int]

    def __init__(self) -> None:
        store = TreeStore({"a": jnp.zeros(3), "b": jnp.zeros(2)})
        self.job = ScriptedSession(store=store, updates=lambda: (store.updates,)).join(5.0)
        self.session = self.job.begin(Session(self.job.parts, store, TreeState(store, 0)))
        self.params = self.session.params

    def step_without_a_batch(self) -> None:
        grown = {name: leaf + 1 for name, leaf in self.params.items()}
        self.params, _ = self.session.step(grown, 0, tokens=TOKENS)

    def values(self) -> tuple[set[float], set[float]]:
        return set(self.params["a"].tolist()), set(self.params["b"].tolist())


def rate(clock: Clock, peak: float, decay: Any, *, warmup: int = 0, final: float = 0.0, tail: float = 0.2) -> Rate:
    return schedule(clock, peak, decay, warmup=warmup, final=final, tail=tail)


def base(values: Mapping[str, np.ndarray], canonical: Mapping[str, Canonical | str], dtypes: Mapping[str, str]) -> TreeStore[Any]:
    of = {name: jnp.asarray(value, dtypes.get(name, value.dtype)) for name, value in values.items()}
    return TreeStore({**of, "trained": jnp.zeros(2)}, canonical=canonical, trained=lambda path: path == "trained")


JAX = Framework((("float32", "float32"), ("bfloat16", "float32")), model, program=JaxProgram, joined=JaxJoined, rate=rate, base=base)
