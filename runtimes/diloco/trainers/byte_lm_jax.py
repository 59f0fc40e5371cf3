"""The byte-level language model in JAX: `python -m diloco.trainers.byte_lm_jax`.

A learner's program, or with `--alone` a plain one. If there are several local devices, each has all parameters and trains a part of the
batch.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import diloco.jax
from diloco.jax import Canonical, TreeStore
from diloco.trainers import byte_lm, options, steps_jax
from diloco.trainers.alone_jax import AloneTreeSession
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.devices_jax import LocalDevices, shardings_of
from diloco.trainers.inner_optimizer import InnerConfig

type Params = dict[str, Any]
"""{"embedding", "position", "blocks": {… with a leading axis of layers}, "final_norm": {"scale", "bias"}, "head" unless tied}."""


def canonical_names(config: ModelConfig) -> dict[str, Canonical | str]:
    """The canonical form of each leaf, by path. The leaves of `blocks` stack the layers."""
    names: dict[str, Canonical | str] = {}
    for name in byte_lm.parameter_shapes(config):
        if name.startswith("block."):
            _, _, own = name.split(".", 2)
            names["blocks/" + own.replace(".", "/")] = Canonical(f"block.{{layer}}.{own}", stacked=True)
        else:
            names[name.replace(".", "/")] = Canonical(name, embedding=name in byte_lm.EMBEDDINGS)
    return names


def initial_params(config: ModelConfig, seed: int) -> Params:
    values = byte_lm.initial_parameters(config, seed)
    tree: Params = {}
    for path, form in canonical_names(config).items():
        *folders, leaf = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        name = form if isinstance(form, str) else form.name
        if name in values:
            node[leaf] = jnp.array(values[name])
        else:
            node[leaf] = jnp.stack([values[name.format(layer=layer)] for layer in range(config.layers)])
    return tree


def forward(params: Params, inputs: jax.Array, heads: int) -> jax.Array:
    """Return logits [batch, time, 256] of the next byte, from bytes int [batch, time]."""
    x = params["embedding"][inputs] + params["position"][: inputs.shape[1]]
    x, _ = jax.lax.scan(partial(_block, heads=heads), x, params["blocks"])
    x = _normalise(x, params["final_norm"])
    logits: jax.Array = x @ (params["head"] if "head" in params else params["embedding"].T)
    return logits


def _block(x: jax.Array, block: Params, heads: int) -> tuple[jax.Array, None]:
    batch, length, width = x.shape
    y = _normalise(x, block["attention_norm"])
    query, key, value = ((y @ block[name]).reshape(batch, length, heads, width // heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(batch, length, width) @ block["out"]
    y = _normalise(x, block["feed_norm"])
    return x + (jax.nn.silu(y @ block["gate"]) * (y @ block["up"])) @ block["down"], None


def _normalise(x: jax.Array, norm: Params) -> jax.Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normalised: jax.Array = centred * jax.lax.rsqrt(variance + byte_lm.NORM_EPSILON) * norm["scale"] + norm["bias"]
    return normalised


def mean_loss(params: Params, windows: jax.Array, heads: int) -> jax.Array:
    """The mean cross-entropy in nats per byte. `windows`: uint8 [batch, context + 1]."""
    tokens = windows.astype(jnp.int32)
    logits = forward(params, tokens[:, :-1], heads)
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
    return loss


def make_optimizer(config: ModelConfig, inner: InnerConfig) -> optax.GradientTransformation:
    """AdamW with weight decay on matrices only."""
    return steps_jax.make_optimizer(canonical_names(config), byte_lm.is_decayed, inner)


def make_train_step(
    config: ModelConfig, optimizer: optax.GradientTransformation, shardings: tuple[Any, ...] | None = None
) -> steps_jax.TrainStep:
    """Return a function for one step on a batch of windows. `shardings`: of params and state, which the results keep."""
    return steps_jax.make_train_step(partial(mean_loss, heads=config.heads), optimizer, shardings=shardings)


def main(argv: list[str], *, before_join: Callable[[], None] = lambda: None) -> int:
    """Train as `argv` says, and return the exit status. `before_join` is called right before the first contact with the job."""
    chosen = options.parse("diloco.trainers.byte_lm_jax", argv)
    options.pin_threads(chosen.threads)
    log = options.start_logging()
    corpus = chosen.read_corpus()
    devices = LocalDevices.all()
    devices.check_batch(chosen.batch, "--batch")
    forms = canonical_names(chosen.model)
    params = devices.replicate(initial_params(chosen.model, chosen.seed))
    log.info("each batch of %d samples on %d devices", chosen.batch, devices.count)
    optimizer = make_optimizer(chosen.model, chosen.inner)
    state = devices.replicate(optimizer.init(params))
    train_step = make_train_step(chosen.model, optimizer, shardings_of(params, state))
    # Compiled before joining, without running: a unit that has joined should contribute at once.
    first = devices.place(np.zeros((chosen.batch, chosen.model.context + 1), np.uint8))
    compiled = train_step.lower(params, state, first, 0.0).compile()  # type: ignore[attr-defined]
    before_join()

    if chosen.alone_steps is None:
        session: diloco.jax.Session[Params, Any] | AloneTreeSession[Params, Any] = diloco.jax.join(params, state, canonical=forms)
    else:
        session = AloneTreeSession(chosen.alone_steps, TreeStore(params, canonical=forms), state)
    with session:
        params, state = session.params, session.opt_state
        began = time.monotonic()
        for windows in session.batches(corpus.batch, chosen.batch):
            rate = chosen.inner.rate(session.optimizer_steps + 1, session.progress)
            params, state, loss = compiled(params, state, devices.place(windows), rate)
            params, state = session.step(params, state, tokens=windows.shape[0] * chosen.model.context, loss=loss)
            if session.step_count % chosen.log_every == 0:
                speed = session.step_count * chosen.batch * chosen.model.context / (time.monotonic() - began)
                log.info("local step %d, outer step %d: loss %.4f, %.0f tokens/s", session.step_count, session.t, loss, speed)
        if session.done:
            with session.paused("evaluation", at_most=options.EVALUATION_SECONDS):
                final = steps_jax.held_out_loss(session.params, partial(mean_loss, heads=chosen.model.heads), corpus)
            session.evaluate(final, corpus.held_out_tokens)
            options.print_result("jax", session.step_count, session.step_count * chosen.batch * chosen.model.context, final)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
