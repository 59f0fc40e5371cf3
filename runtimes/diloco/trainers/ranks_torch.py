"""The device of a torch trainer, and the ranks of its unit.

With one process for each GPU of a host (`processesPerHost`, `diloco-launch`), every rank trains a part of the batch on its own GPU.
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
    """This process among the ranks of its unit."""

    device: torch.device
    rank: int = 0
    count: int = 1

    def replicated(self, model: nn.Module) -> nn.Module:
        """The model to train with: it averages the gradients of all ranks."""
        return DistributedDataParallel(model) if self.count > 1 else model

    def share(self, batch: int) -> int:
        """The samples of a unit's batch that each rank trains. Raises SystemExit if the ranks do not share it evenly."""
        if batch % self.count:
            raise SystemExit(f"{self.count} ranks do not share {batch} samples evenly: change --batch, or processesPerHost of the pool")
        return batch // self.count


def choose_device(name: str) -> torch.device:
    """Return the device with this name. `auto`: this rank's GPU, or the CPU if there are no GPUs."""
    if name != AUTO:
        return torch.device(name)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local % torch.cuda.device_count())


@contextlib.contextmanager
def joined_ranks(name: str) -> Iterator[Ranks]:
    """Within this context, the ranks of the unit have met. The launcher's environment says which ranks there are. `name`: the device's, see
    `choose_device`."""
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
