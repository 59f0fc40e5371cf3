"""The byte-level language model in torch: `python -m diloco.trainers.byte_lm_torch`.

A learner's program, or with `--alone` a plain one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import diloco.torch
from diloco.torch import Canonical, ModuleStore
from diloco.trainers import byte_lm, options, steps_torch
from diloco.trainers.alone import AloneSession
from diloco.trainers.byte_lm import ModelConfig
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.ranks_torch import Ranks, joined_ranks


class Block(nn.Module):
    """Causal self-attention and a gated feed-forward block, each on a normalised copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width, eps=byte_lm.NORM_EPSILON)
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.feed_norm = nn.LayerNorm(config.width, eps=byte_lm.NORM_EPSILON)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, time, width], as the result."""
        batch, length, width = x.shape
        y = self.attention_norm(x)
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (layer(y).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.feed_norm(x)
        fed: torch.Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + fed


class ByteLM(nn.Module):
    """Bytes [batch, time] -> logits [batch, time, 256] of the next byte."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(byte_lm.VOCABULARY, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width, eps=byte_lm.NORM_EPSILON)
        self.head = nn.Linear(config.width, byte_lm.VOCABULARY, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.embedding(inputs) + self.position.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.final_norm(x))
        return logits


def canonical_names(config: ModelConfig) -> dict[str, Canonical | str]:
    """The canonical form of each of `ByteLM`'s parameters. Matrices are transposed, because torch keeps them as [out, in]."""
    names: dict[str, Canonical | str] = {}
    for name in byte_lm.parameter_shapes(config):
        own = name.replace("block.", "blocks.")
        if name in byte_lm.EMBEDDINGS:
            names[f"{own}.weight"] = name
        elif own.endswith(".scale"):
            names[own.replace(".scale", ".weight")] = name
        elif own.endswith(".bias"):
            names[own] = name
        else:
            names[f"{own}.weight"] = Canonical(name, axes=(1, 0))
    return names


def initial_model(config: ModelConfig, seed: int) -> ByteLM:
    """The model with its first values, on the CPU."""
    model = ByteLM(config)
    ModuleStore(model, canonical=canonical_names(config)).write(byte_lm.initial_parameters(config, seed))
    return model


def make_optimizer(model: ByteLM, config: ModelConfig, inner: InnerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    decayed = {name for name, form in canonical_names(config).items() if byte_lm.is_decayed(form if isinstance(form, str) else form.name)}
    return steps_torch.make_optimizer(model, lambda name: name in decayed, inner)


def main(argv: list[str], *, before_join: Callable[[], None] = lambda: None) -> int:
    """Train as `argv` says, and return the exit status. `before_join` is called right before the first contact with the job."""
    chosen = options.parse("diloco.trainers.byte_lm_torch", argv)
    options.pin_threads(chosen.threads)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with joined_ranks(chosen.device) as ranks:
        return _train(chosen, ranks, before_join)


def _train(chosen: options.TrainerOptions, ranks: Ranks, before_join: Callable[[], None]) -> int:
    log = options.start_logging()
    corpus = chosen.read_corpus()
    share = ranks.share(chosen.batch)
    model = initial_model(chosen.model, chosen.seed).to(ranks.device)
    run = ranks.replicated(model)
    optimizer = make_optimizer(model, chosen.model, chosen.inner)
    before_join()

    if chosen.alone_steps is None:
        session: diloco.torch.Session | AloneSession = diloco.torch.join(
            model, optimizer=optimizer, canonical=canonical_names(chosen.model)
        )
    else:
        session = AloneSession(chosen.alone_steps, rank=ranks.rank, ranks=ranks.count)
    with session:
        began = time.monotonic()
        for windows in session.batches(corpus.batch, share):
            rate = chosen.inner.rate(session.optimizer_steps + 1, session.progress)
            loss = steps_torch.train_step(run, optimizer, steps_torch.as_tensor(windows, ranks.device), rate).item()
            session.step(tokens=windows.shape[0] * chosen.model.context, loss=loss)
            if session.step_count % chosen.log_every == 0:
                speed = session.step_count * chosen.batch * chosen.model.context / (time.monotonic() - began)
                log.info("local step %d, outer step %d: loss %.4f, %.0f tokens/s", session.step_count, session.t, loss, speed)
        if session.done:
            with session.paused("evaluation", at_most=options.EVALUATION_SECONDS):
                final = steps_torch.held_out_loss(model, corpus)
            session.evaluate(final, corpus.held_out_tokens)
            if ranks.rank == 0:
                options.print_result("torch", session.step_count, session.step_count * chosen.batch * chosen.model.context, final)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
