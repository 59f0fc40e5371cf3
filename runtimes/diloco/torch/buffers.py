"""The buffers of a unit's ranks, such as the running statistics of BatchNorm: each rank's own, or those of rank 0 on request.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import json

import torch
from torch import distributed

from diloco.algorithm.layout import LayoutError
from diloco.torch.places import local
from diloco.torch.processes import gather_bytes


class LeadersBuffers:
    """The buffers of one module that its `state_dict` has: all ranks get those of rank 0."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        """Keep the buffers equal on every rank. `device`: one that the default process group can send from. Raises LayoutError when the
        ranks have different buffers, or one is sharded."""
        kept = module.state_dict(keep_vars=True).keys()
        self._module = module
        self._device = device
        self._names = [name for name, _ in module.named_buffers() if name in kept]
        held = dict(module.named_buffers())
        for name in self._names:
            if any(not placement.is_replicate() for placement in getattr(held[name], "placements", ())):
                raise LayoutError(f"buffer {name!r} is sharded over the ranks: there is no leader's copy of it to take (buffers='leader')")
        said = json.dumps([[name, list(held[name].shape), str(held[name].dtype)] for name in self._names]).encode()
        for rank, one in enumerate(gather_bytes(said, device)):
            if one != said:
                raise LayoutError(f"rank {rank} has other buffers than this one: with buffers='leader' all ranks join with the same model")

    @torch.no_grad()
    def take(self) -> None:
        """Overwrite them in place with those of rank 0: one collective for each type. Every rank calls it."""
        held = dict(self._module.named_buffers())  # a program may have put another tensor in its place
        buffers = [local(held[name]) for name in self._names]
        for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
            same = [buffer for buffer in buffers if buffer.dtype == dtype]
            flat = torch.cat([buffer.reshape(-1).to(self._device) for buffer in same])
            distributed.broadcast(flat, src=0)
            if distributed.get_rank() != 0:
                for buffer, values in zip(same, torch.split(flat, [buffer.numel() for buffer in same]), strict=True):
                    buffer.copy_(values.view(buffer.shape))
