"""The inner optimizer and its step in torch, for all trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from diloco.trainers.inner_optimizer import ADAM_BETAS, ADAM_EPSILON, CLIP_NORM, InnerConfig
from diloco.trainers.windows import TokenWindows


def make_optimizer(model: nn.Module, is_decayed: Callable[[str], bool], inner: InnerConfig) -> torch.optim.AdamW:
    """Return AdamW; `train_step` sets the rate before every step. `is_decayed`: whether weight decay acts on the parameter of this name."""
    named = dict(model.named_parameters())
    groups = [
        {"params": [value for name, value in named.items() if is_decayed(name)], "weight_decay": inner.weight_decay},
        {"params": [value for name, value in named.items() if not is_decayed(name)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=inner.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=True)


def mean_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy in nats per token. `windows`: int64 [batch, context + 1]."""
    logits = model(windows[:, :-1]).float()
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def train_step(
    model: nn.Module, optimizer: torch.optim.AdamW, windows: torch.Tensor, rate: float, *, micro: int | None = None, half: bool = False
) -> torch.Tensor:
    """Take one step of the inner optimizer on one batch, int64 [batch, context + 1], at learning rate `rate`. Returns the batch's loss
    before the step.

    `micro`: samples in memory at once; the gradients of the parts are added. `half`: matrices are multiplied in bfloat16.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    total = torch.zeros((), device=windows.device)
    for part in torch.split(windows, micro or len(windows)):
        with torch.autocast(windows.device.type, torch.bfloat16, enabled=half):
            loss = mean_loss(model, part) * (len(part) / len(windows))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return total


@torch.no_grad()
def held_out_loss(model: nn.Module, corpus: TokenWindows[Any], batch: int = 32, *, half: bool = False) -> float:
    """The mean loss in nats per token over the corpus's held-out windows."""
    device = next(model.parameters()).device
    total = 0.0
    for windows in corpus.held_out(batch):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            total += float(mean_loss(model, as_tensor(windows, device))) * len(windows)
    return total / corpus.held_out_windows


def as_tensor(windows: NDArray[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    return torch.from_numpy(windows.astype(np.int64)).to(device)
