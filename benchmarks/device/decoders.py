"""The decoders of step-tax-gpu: float32 parameters, products in bfloat16, AdamW."""

from __future__ import annotations

from typing import Final

import torch
from diloco.trainers import llama
from diloco.trainers.inner_optimizer import InnerConfig
from diloco.trainers.llama import LlamaConfig
from diloco.trainers.llama_torch import Llama, make_optimizer
from diloco.trainers.steps_torch import train_step

SHAPES: Final = {
    # As many parameters as GPT-2: 86 M beside the embedding, which is also the head.
    "124M": LlamaConfig(vocabulary=50304, layers=10, width=768, heads=12, kv_heads=4, hidden=3072, context=1024, tied=True),
    "1B": LlamaConfig(vocabulary=32000, layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, context=1024),
    "small": LlamaConfig(layers=3, width=32, heads=2, kv_heads=2, hidden=64, context=32),
}
RATE: Final = 1e-5
MICRO: Final = 16
"""Rows in memory at once: the logits of 16 take 10 GB with a vocabulary of 50,304."""


class Decoder:
    """A model with its optimizer, which trains the same random tokens over and over."""

    def __init__(self, shape: str, device: str, rows: int) -> None:
        """Make the model on the device: the host would take ten seconds for the random numbers of 1 B parameters."""
        config = SHAPES[shape]
        torch.manual_seed(0)
        with torch.device(device), torch.no_grad():
            self.model = Llama(config)
            for name, table in zip(("cosines", "sines"), llama.rope_tables(config, config.context), strict=True):
                self.model.get_buffer(name).copy_(torch.from_numpy(table))
            for name, parameter in self.model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, 0.02)
            self.windows = torch.randint(config.vocabulary, (rows, config.context + 1))
        self.optimizer = make_optimizer(self.model, InnerConfig(RATE))
        self.tokens = rows * config.context

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def update(self) -> float:
        """Make an update, and return its loss. For that the host waits for the device."""
        return float(train_step(self.model, self.optimizer, self.windows, RATE, micro=min(MICRO, len(self.windows)), half=True))
