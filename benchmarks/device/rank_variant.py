"""One of two torch processes that train one model on one card: by itself first, and then as a rank of a unit in a job.

    python -m benchmarks.device.rank_variant TIMES --mebibytes 1 --step-seconds 0 --wrap fsdp --backend nccl --device cuda

Each rank writes a line for each step in the job: whether its part of the parameters is the same bit for bit as without a session, and how
many tensors were adopted up to the end of the step. The process ends with the one that started it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import diloco.torch
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.device.script import BATCH, STEPS
from benchmarks.fixed_step_learner import parser_of_rig

WIDTH, LAYERS, ROWS = 128, 4, 16


def fsdp(model: nn.Module, device: torch.device) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


def ddp(model: nn.Module, device: torch.device) -> nn.Module:
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


WRAPS: Final[dict[str, Callable[[nn.Module, torch.device], nn.Module]]] = {"fsdp": fsdp, "ddp": ddp}


class Program:
    """The same model on both ranks. Each rank trains rows of its own."""

    def __init__(self, wrap: str, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
        self.device = device
        self.model = WRAPS[wrap](nn.Sequential(*layers).to(device), device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def update(self, number: int) -> None:
        chance = torch.Generator().manual_seed(2 * number + distributed.get_rank())
        inputs = torch.randn(ROWS, WIDTH, generator=chance).to(self.device)
        outputs: torch.Tensor = self.model(inputs)
        (outputs - inputs).square().mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def values(self) -> list[torch.Tensor]:
        """Copies of this rank's part of each parameter."""
        local = (value.to_local() if isinstance(value, DTensor) else value for value in self.model.parameters())
        return [value.detach().clone() for value in local]


def main() -> None:
    parser = parser_of_rig()
    parser.add_argument("--wrap", choices=list(WRAPS), required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(given.backend)
    rank = distributed.get_rank()
    alone = Program(given.wrap, device)
    reference = []
    for step in range(STEPS):
        alone.update(step)
        reference.append(alone.values())

    adopted: list[str] = []
    program = Program(given.wrap, device)
    path = given.times if rank == 0 else Path(f"{given.times}.{rank}")
    session = diloco.torch.join(program.model, optimizer=program.optimizer, on_adopt=adopted.extend)
    adopted.clear()
    with path.open("w", encoding="ascii", buffering=1) as times:
        batches = session.batches(lambda numbers: numbers, BATCH)
        for step, expected in enumerate(reference):
            next(batches)
            program.update(step)
            equal = all(map(torch.equal, program.values(), expected))
            session.step(tokens=16)
            times.write(f"{int(equal)} {len(adopted)}\n")
        # Go on until killed: a rank that ended would end the other one.
        for _ in batches:
            program.update(STEPS)
            session.step(tokens=16)


if __name__ == "__main__":
    main()
