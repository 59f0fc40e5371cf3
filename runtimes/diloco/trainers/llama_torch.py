"""The Llama-type decoder in torch: `python -m diloco.trainers.llama_torch`.

A learner's program, or with `--alone` a plain one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import diloco.torch
from diloco.trainers import llama, llama_options, options, steps_torch
from diloco.trainers.alone import AloneSession
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.llama import LlamaConfig
from diloco.trainers.llama_options import LlamaOptions
from diloco.trainers.ranks_torch import Ranks, joined_ranks


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight, computed in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * normalised.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention. Several heads of queries share one head of keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        keys = config.kv_heads * config.head_width
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, keys, bias=False)
        self.v_proj = nn.Linear(config.width, keys, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.head_width).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _turn(query, cosines, sines), _turn(key, cosines, sines)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        mixed: torch.Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fed: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return fed


class Layer(nn.Module):
    """Attention and feed-forward block, each on a normalised copy of the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """x: [batch, time, width], as the result."""
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        fed: torch.Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + fed


class Decoder(nn.Module):
    """The model without its head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_epsilon)


class Llama(nn.Module):
    """Tokens [batch, time] -> logits [batch, time, vocabulary] of the next token. Its parameters' names are the canonical ones."""

    def __init__(self, config: LlamaConfig, *, recompute: bool = False) -> None:
        """The model has no useful values yet, see `initial_model`. `recompute`: keep only the layers' inputs, and compute the rest again in
        the backward pass."""
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.recompute = recompute
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.empty(config.context, config.head_width // 2), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.model.embed_tokens(inputs)
        length = inputs.shape[1]
        cosines, sines = self.get_buffer("cosines")[:length], self.get_buffer("sines")[:length]
        for layer in self.model.layers:
            x = checkpoint(layer, x, cosines, sines, use_reentrant=False) if self.recompute else layer(x, cosines, sines)
        logits: torch.Tensor = self.lm_head(self.model.norm(x))
        return logits


def _turn(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate each head, [batch, heads, time, head width], by its position: the first half of its elements with the second half."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


@torch.no_grad()
def initial_model(config: LlamaConfig, seed: int, *, device: torch.device | None = None, recompute: bool = False) -> Llama:
    """The model with its first values on `device`. It is made there, so that the host holds only one tensor at a time."""
    with torch.device("meta"):
        model = Llama(config, recompute=recompute)
    model.to_empty(device=device or torch.device("cpu"))
    if config.tied:  # to_empty has given each of the two its own memory
        model.lm_head.weight = model.model.embed_tokens.weight
    for name, table in zip(("cosines", "sines"), llama.rope_tables(config, config.context), strict=True):
        model.get_buffer(name).copy_(torch.from_numpy(table))
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.from_numpy(llama.initial_value(config, seed, name)))
    return model


def make_optimizer(model: nn.Module, inner: InnerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    return steps_torch.make_optimizer(model, llama.is_decayed, inner)


def main(argv: list[str], *, before_join: Callable[[], None] = lambda: None) -> int:
    """Train as `argv` says, and return the exit status. `before_join` is called right before the first contact with the job."""
    chosen = llama_options.parse("diloco.trainers.llama_torch", argv)
    options.pin_threads(chosen.threads)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    with joined_ranks(chosen.device) as ranks:
        return _train(chosen, ranks, before_join)


def _train(chosen: LlamaOptions, ranks: Ranks, before_join: Callable[[], None]) -> int:
    log = options.start_logging()
    corpus, device = chosen.read_corpus(), ranks.device
    share = ranks.share(chosen.batch)
    half = chosen.dtype == "bfloat16"
    model = initial_model(chosen.model, chosen.seed, device=device, recompute=chosen.recompute)
    log.info("%.1f M parameters", chosen.model.parameters / 1e6)
    optimizer = make_optimizer(model, chosen.inner)
    run: nn.Module = ranks.replicated(model)
    if chosen.compile:
        run = torch.compile(run)  # type: ignore[assignment]
    before_join()

    if chosen.alone_steps is None:
        session: diloco.torch.Session | AloneSession = diloco.torch.join(model, optimizer=optimizer)
    else:
        session = AloneSession(chosen.alone_steps, rank=ranks.rank, ranks=ranks.count)
    with session:
        began = time.monotonic()
        for windows in session.batches(corpus.batch, share):
            rate = chosen.inner.rate(session.optimizer_steps + 1, session.progress)
            tensor = steps_torch.as_tensor(windows, device)
            loss = steps_torch.train_step(run, optimizer, tensor, rate, micro=chosen.micro_batch, half=half).item()
            session.step(tokens=windows.shape[0] * chosen.model.context, loss=loss)
            if session.step_count % chosen.log_every == 0:
                speed = session.step_count * chosen.batch * chosen.model.context / (time.monotonic() - began)
                log.info("local step %d, outer step %d: loss %.4f, %.0f tokens/s", session.step_count, session.t, loss, speed)
        if session.done:
            with session.paused("evaluation", at_most=options.EVALUATION_SECONDS):
                final = steps_torch.held_out_loss(run, corpus, chosen.micro_batch or share, half=half)
            session.evaluate(final, corpus.held_out_tokens)
            if ranks.rank == 0:
                options.print_result("torch", session.step_count, session.step_count * chosen.batch * chosen.model.context, final)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
