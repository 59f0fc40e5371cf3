"""Where a torch trainer runs: on which device, and with which other ranks of its unit.

With one process of a host for each GPU (`processesPerHost`, `diloco-launch`), every rank trains a part of the batch on its own GPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of the unit, of which this process is one."""

    device: torch.device
    rank: int = 0
    count: int = 1

    def replicated(self, model: nn.Module) -> nn.Module:
        """Return the model as it trains: the gradients of all ranks are averaged."""
        return DistributedDataParallel(model) if self.count > 1 else model

    def share(self, batch: int) -> int:
        """Return samples that each rank trains of one batch of the unit. Raises SystemExit if they do not share it evenly."""
        if batch % self.count:
            raise SystemExit(f"{self.count} ranks do not share {batch} samples evenly: change --batch, or processesPerHost of the pool")
        return batch // self.count


def choose_device(name: str) -> torch.device:
    """Choose the device: `auto`: the GPU of this rank, or the CPU where there is none; else the device of this name."""
    if name != AUTO:
        return torch.device(name)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local % torch.cuda.device_count())


@contextlib.contextmanager
def joined_ranks(name: str) -> Iterator[Ranks]:
    """Let the ranks of this unit meet; they have inside the context. `name`: of the device, see `choose_device`. The launcher says who they
    are."""
    device = choose_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device)
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(device, distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
