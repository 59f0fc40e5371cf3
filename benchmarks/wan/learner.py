"""The learner of [wan-*]: a torch model of equal layers, whose forward and backward passes take a given time.

    python -m benchmarks.wan.learner TIMES --mebibytes 16 --step-seconds 0.25 [--data-parallel]

A third of a step is the forward pass, the rest is the backward pass. In the backward pass one layer after the other gets its gradient, so
data parallel can send it while the pass goes on. In a job of ours the learner joins with the `DILOCO_*` variables. With `--data-parallel`
it runs torch's DDP with its bfloat16 hook, over gloo, with the variables RANK, WORLD_SIZE and MASTER_*. TIMES gets one line for each step:
seconds of CLOCK_MONOTONIC. The program ends with the process that started it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diloco.torch
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

BATCH = 8
TOKENS = BATCH * 128
"""Tokens in a step of one learner."""
LAYERS = 24
_FORWARD = 1 / 3
"""Share of a step that is the forward pass."""
_GRADIENT = 1e-3


class _Pass(torch.autograd.Function):
    """Sleeps in both passes, and gives the layer a constant gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.seconds, ctx.like = seconds, weight
        time.sleep(_FORWARD * seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep((1 - _FORWARD) * ctx.seconds)
        return gradients[0], torch.full_like(ctx.like, _GRADIENT), None


class _Layer(nn.Module):
    def __init__(self, parameters: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(parameters))
        self._seconds = seconds

    def forward(self, value: Tensor) -> Tensor:
        return _Pass.apply(value, self.weight, self._seconds)  # type: ignore[no-any-return]


def model(mebibytes: int, step_seconds: float) -> nn.Module:
    """The model, which is the same in each process."""
    torch.manual_seed(0)
    parameters = mebibytes * (1 << 20) // 4 // LAYERS
    return nn.Sequential(*(_Layer(parameters, step_seconds / LAYERS) for _ in range(LAYERS)))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[object], stepped: Callable[[], None]) -> None:
    """Take a step for each batch, and call `stepped` after it."""
    value = torch.zeros(1, requires_grad=True)
    for _ in batches:
        optimizer.zero_grad()
        module(value).sum().backward()
        optimizer.step()
        stepped()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("times", type=Path)
    parser.add_argument("--mebibytes", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--data-parallel", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    module = model(given.mebibytes, given.step_seconds)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    with given.times.open("w", encoding="ascii", buffering=1) as times:

        def note() -> None:
            times.write(f"{time.monotonic():.6f}\n")

        if given.data_parallel:
            distributed.init_process_group("gloo")
            parallel = DistributedDataParallel(module, init_sync=False)  # all ranks have made the same model
            parallel.register_comm_hook(None, bf16_compress_hook)
            train(parallel, optimizer, iter(int, 1), note)
            return
        with diloco.torch.join(module, optimizer=optimizer) as session:

            def stepped() -> None:
                session.step(tokens=TOKENS)
                note()

            train(module, optimizer, session.batches(lambda numbers: numbers, BATCH), stepped)


if __name__ == "__main__":
    main()
