"""The Llama-type decoder in JAX: `python -m diloco.trainers.llama_jax`.

A learner's program, or with `--alone` a plain one. If there are several local devices, parameters, optimizer state and batch are sharded
over them.
"""

from __future__ import annotations

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
from diloco.trainers import llama, llama_options, options, steps_jax
from diloco.trainers.alone_jax import AloneTreeSession
from diloco.trainers.devices_jax import ONE_DEVICE, LocalDevices, shardings_of
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.llama import LlamaConfig

type Params = dict[str, Any]
"""{"embed", "layers": {… with a leading axis of layers}, "norm", "head" unless tied}. Matrices are [out, in], as in canonical form."""

_LAYERS = "model.layers.0."


def canonical_names(config: LlamaConfig) -> dict[str, Canonical | str]:
    """The canonical form of each leaf, by path. The leaves of `layers` stack the layers."""
    names: dict[str, Canonical | str] = {
        "embed": Canonical(llama.EMBEDDING, embedding=True),
        "norm": Canonical("model.norm.weight"),
    }
    for name in llama.parameter_shapes(config):
        if name.startswith(_LAYERS):
            leaf = name.removeprefix(_LAYERS).removesuffix(".weight").rpartition(".")[2]
            names[f"layers/{leaf}"] = Canonical(name.replace(_LAYERS, "model.layers.{layer}."), stacked=True)
    if not config.tied:
        names["head"] = Canonical(llama.HEAD, embedding=False)
    return names


def initial_params(config: LlamaConfig, seed: int, devices: LocalDevices = ONE_DEVICE) -> Params:
    """The parameters with their first values. They are made leaf by leaf, each placed on the devices at once."""
    tree: Params = {"layers": {}}
    for path, form in canonical_names(config).items():
        assert isinstance(form, Canonical)
        if form.stacked:
            value = np.stack([llama.initial_value(config, seed, form.name.format(layer=layer)) for layer in range(config.layers)])
        else:
            value = llama.initial_value(config, seed, form.name)
        node, leaf = (tree["layers"], path.removeprefix("layers/")) if form.stacked else (tree, path)
        node[leaf] = devices.shard(value, stacked=form.stacked)
    return tree


def forward(params: Params, inputs: jax.Array, config: LlamaConfig, *, dtype: Any = jnp.float32, recompute: bool = False) -> jax.Array:
    """Return logits float32 [batch, time, vocabulary] of the next token, from tokens int [batch, time]. Matrices are multiplied in `dtype`.
    `recompute`: keep only the layers' inputs, and compute the rest again in the backward pass."""
    cosines, sines = (jnp.asarray(table) for table in llama.rope_tables(config, inputs.shape[1]))
    layer = partial(_layer, config=config, cosines=cosines, sines=sines)
    embed = params["embed"].astype(dtype)
    x, _ = jax.lax.scan(jax.checkpoint(layer) if recompute else layer, embed[inputs], params["layers"])
    x = _normalise(x, params["norm"], config)
    head = params["head"].astype(dtype) if "head" in params else embed
    logits: jax.Array = (x @ head.T).astype(jnp.float32)
    return logits


def _layer(x: jax.Array, layer: Params, config: LlamaConfig, cosines: jax.Array, sines: jax.Array) -> tuple[jax.Array, None]:
    batch, length, width = x.shape
    weights = {name: value if name.endswith("norm") else value.astype(x.dtype) for name, value in layer.items()}
    y = _normalise(x, weights["input_layernorm"], config)
    query, key, value = ((y @ weights[name].T).reshape(batch, length, -1, config.head_width) for name in ("q_proj", "k_proj", "v_proj"))
    query, key = _turn(query, cosines, sines), _turn(key, cosines, sines)
    attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + attended.reshape(batch, length, width) @ weights["o_proj"].T
    y = _normalise(x, weights["post_attention_layernorm"], config)
    return x + (jax.nn.silu(y @ weights["gate_proj"].T) * (y @ weights["up_proj"].T)) @ weights["down_proj"].T, None


def _normalise(x: jax.Array, scale: jax.Array, config: LlamaConfig) -> jax.Array:
    wide = x.astype(jnp.float32)
    normalised = wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + config.norm_epsilon)
    return (scale * normalised).astype(x.dtype)


def _turn(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
    """Rotate each head, [batch, time, heads, head width], by its position: the first half of its elements with the second half."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[:, None, :], sines[:, None, :]
    return jnp.concatenate((first * cosines - second * sines, second * cosines + first * sines), axis=-1).astype(x.dtype)


def mean_loss(params: Params, windows: jax.Array, config: LlamaConfig, *, dtype: Any = jnp.float32, recompute: bool = False) -> jax.Array:
    """The mean cross-entropy in nats per token. `windows`: unsigned integers [batch, context + 1]."""
    tokens = windows.astype(jnp.int32)
    logits = forward(params, tokens[:, :-1], config, dtype=dtype, recompute=recompute)
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
    return loss


def make_optimizer(config: LlamaConfig, inner: InnerConfig) -> optax.GradientTransformation:
    """AdamW with weight decay on matrices only."""
    return steps_jax.make_optimizer(canonical_names(config), llama.is_decayed, inner)


def main(argv: list[str], *, before_join: Callable[[], None] = lambda: None) -> int:
    """Train as `argv` says, and return the exit status. `before_join` is called right before the first contact with the job."""
    chosen = llama_options.parse("diloco.trainers.llama_jax", argv)
    options.pin_threads(chosen.threads)
    log = options.start_logging()
    corpus = chosen.read_corpus()
    devices = LocalDevices.all()
    if chosen.micro_batch and chosen.batch % chosen.micro_batch:
        raise SystemExit(f"--micro-batch {chosen.micro_batch} does not divide --batch {chosen.batch}, as JAX needs it")
    devices.check_batch(chosen.micro_batch or chosen.batch, "--batch or --micro-batch")
    forms = canonical_names(chosen.model)
    params = initial_params(chosen.model, chosen.seed, devices)
    log.info("%.1f M parameters on %d devices", chosen.model.parameters / 1e6, devices.count)
    optimizer = make_optimizer(chosen.model, chosen.inner)
    state = devices.replicate(optimizer.init(params))
    loss_of = partial(mean_loss, config=chosen.model, dtype=jnp.dtype(chosen.dtype), recompute=chosen.recompute)
    train_step = steps_jax.make_train_step(loss_of, optimizer, chosen.micro_batch, shardings_of(params, state))

    # Compiled before joining, without running: a unit that has joined should contribute at once.
    first = devices.place(corpus.batch(np.arange(chosen.batch, dtype=np.int64)))
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
                final = steps_jax.held_out_loss(session.params, loss_of, corpus, chosen.micro_batch or chosen.batch)
            session.evaluate(final, corpus.held_out_tokens)
            options.print_result("jax", session.step_count, session.step_count * chosen.batch * chosen.model.context, final)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
