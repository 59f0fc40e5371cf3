"""The inner optimizer and its step in JAX, for all trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from diloco.canonical import Canonical
from diloco.trainers.inner_optimizer import ADAM_BETAS, ADAM_EPSILON, CLIP_NORM, InnerConfig
from diloco.trainers.windows import TokenWindows

type Params = dict[str, Any]
type Loss = Callable[[Params, Any], jax.Array]
type TrainStep = Callable[[Params, optax.OptState, Any, float], tuple[Params, optax.OptState, jax.Array]]


def make_optimizer(
    forms: Mapping[str, Canonical | str], is_decayed: Callable[[str], bool], inner: InnerConfig
) -> optax.GradientTransformation:
    """Return AdamW at rate 1; the train step multiplies by the rate. `forms`: the canonical form of each leaf, by path. `is_decayed`:
    whether weight decay acts on the tensor with this canonical name."""

    def decayed(params: Params) -> Params:
        def one(path: Any, _: jax.Array) -> bool:
            form = forms[jax.tree_util.keystr(path, simple=True, separator="/")]
            return is_decayed(form if isinstance(form, str) else form.name)

        mask: Params = jax.tree_util.tree_map_with_path(one, params)
        return mask

    first, second = ADAM_BETAS
    return optax.chain(
        optax.clip_by_global_norm(CLIP_NORM),
        optax.scale_by_adam(b1=first, b2=second, eps=ADAM_EPSILON),
        optax.add_decayed_weights(inner.weight_decay, mask=decayed),
    )


def make_train_step(
    loss_of: Loss, optimizer: optax.GradientTransformation, micro: int | None = None, shardings: tuple[Any, ...] | None = None
) -> TrainStep:
    """Return a function (params, state, windows, rate) -> (params, state, the batch's loss before the step). It donates params and state.

    `micro`: samples in memory at once, a divisor of the batch; the gradients of the parts are averaged. `shardings`: of params and state,
    which the results keep.
    """
    placed = {} if shardings is None else {"out_shardings": (*shardings, None)}

    def gradients_of(params: Params, windows: jax.Array) -> tuple[jax.Array, Params]:
        if micro is None or micro == len(windows):
            whole: tuple[jax.Array, Params] = jax.value_and_grad(loss_of)(params, windows)
            return whole
        parts = windows.reshape(-1, micro, windows.shape[1])

        def add(total: tuple[jax.Array, Params], part: jax.Array) -> tuple[tuple[jax.Array, Params], None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of)(params, part)), None

        nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(add, nothing, parts)
        mean: tuple[jax.Array, Params] = jax.tree.map(lambda value: value / len(parts), total)
        return mean

    @partial(jax.jit, donate_argnums=(0, 1), **placed)
    def train_step(params: Params, state: optax.OptState, windows: jax.Array, rate: jax.Array) -> tuple[Params, optax.OptState, jax.Array]:
        loss, gradients = gradients_of(params, windows)
        directions, state = optimizer.update(gradients, state, params)
        params = jax.tree.map(lambda value, direction: value - rate * direction, params, directions)
        return params, state, loss

    step: TrainStep = train_step
    return step


def held_out_loss(params: Params, loss_of: Loss, corpus: TokenWindows[Any], batch: int = 32) -> float:
    """The mean loss in nats per token over the corpus's held-out windows."""
    compiled = jax.jit(loss_of)
    losses = [float(compiled(params, windows)) * len(windows) for windows in corpus.held_out(batch)]
    return sum(losses) / corpus.held_out_windows
