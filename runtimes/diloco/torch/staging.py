"""A fragment's way from a torch module to the host. The step boundary waits only for a copy on the device; the rest is done meanwhile.

See docs/decisions/0151-step-boundary.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from diloco.learner.host_buffers import HostBuffers
from diloco.learner.store import Float32Array
from diloco.torch.places import Place


class Stager:
    """Stages tensors of a module, on the training thread. Any thread may release what was staged."""

    def __init__(self, *, pinned: bool) -> None:
        """`pinned`: page-lock the host memory, so that the host does not wait while CUDA copies into it."""
        self._buffers: HostBuffers[torch.Tensor] = HostBuffers(
            lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else torch.zeros(size, dtype=torch.uint8)
        )
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def stage(self, places: Sequence[Place], tensors: Sequence[torch.Tensor]) -> StagedTensors:
        """Keep the present values of `tensors`. Tensors on a CUDA device are copied there by the current stream, and then to the host by
        another stream. For other devices the host waits until the copy to its memory is done."""
        size, buffer = self._buffers.take(sum(_room(tensor.nbytes) for tensor in tensors))
        host: dict[int, torch.Tensor] = {}
        finished = []
        start = 0
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            of_device = [index for index, tensor in enumerate(tensors) if tensor.device == device]
            on_device = [tensors[index] for index in of_device]
            end = start + sum(tensor.nbytes for tensor in on_device)
            region, start = buffer[start:end], _room(end)
            host.update(zip(of_device, _views(region, on_device), strict=True))
            if device.type == "cuda":
                finished.append(self._from_cuda(device, on_device, region))
            else:
                for index in of_device:
                    host[index].copy_(tensors[index])
        return StagedTensors(places, [host[index] for index in range(len(tensors))], finished, size, buffer, self._buffers)

    def _from_cuda(self, device: torch.device, tensors: Sequence[torch.Tensor], host: torch.Tensor) -> torch.cuda.Event:
        """Copy on the device in the current stream's order, and from there to pinned memory on a side stream. Returns the event that marks
        the end of the second copy."""
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        copy = torch.empty(host.shape, dtype=host.dtype, device=device)
        for place, tensor in zip(_views(copy, tensors), tensors, strict=True):
            place.copy_(tensor)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            host.copy_(copy, non_blocking=True)
            # The allocator may give this memory to the current stream again only after the side stream has read it.
            copy.record_stream(side)
            finished = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            finished.record(side)
        return finished


class StagedTensors:
    """A `Staged` of a module's tensors. They are in host memory once the events have come."""

    def __init__(
        self,
        places: Sequence[Place],
        host: Sequence[torch.Tensor],
        finished: Sequence[torch.cuda.Event],
        size: int,
        buffer: torch.Tensor,
        buffers: HostBuffers[torch.Tensor],
    ) -> None:
        self._places = places
        self._host = host
        self._finished = finished
        self._held: tuple[int, torch.Tensor] | None = (size, buffer)
        self._buffers = buffers

    def wait(self) -> Float32Array:
        if self._held is None:
            raise RuntimeError("wait() after release()")
        for event in self._finished:
            event.synchronize()
        size = sum(value.numel() for value in self._host)
        if self._is_canonical():
            values: Float32Array = self._held[1][: 4 * size].view(torch.float32).numpy()
            return values
        flat = torch.empty(size)
        start = 0
        for place, value in self._pairs():
            target = flat[start : start + value.numel()].view(place.piece.size)
            target.copy_(value if place.axes is None else value.permute(place.axes))
            start += value.numel()
        return np.asarray(flat.numpy())

    def release(self) -> None:
        """Give the memory back, without waiting. While a transfer into it is under way, the memory is left to torch instead, which frees it
        afterwards."""
        held, self._held = self._held, None
        if held is not None and all(event.query() for event in self._finished):  # type: ignore[no-untyped-call]
            self._buffers.give(*held)

    def _is_canonical(self) -> bool:
        # Whether the host memory already is the flat canonical vector, so that `wait` need not copy.
        start = self._host[0].data_ptr() if self._host else 0
        for place, value in self._pairs():
            if place.axes is not None or value.dtype is not torch.float32 or not value.is_contiguous() or value.data_ptr() != start:
                return False
            start += value.nbytes
        return True

    def _pairs(self) -> Iterator[tuple[Place, torch.Tensor]]:
        return zip(self._places, self._host, strict=True)


def _room(size: int) -> int:
    # Rounded up, so that the next device's region is aligned for any type.
    return -(-size // 16) * 16


def _views(buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a view into the buffer for each tensor, with its type and its order of elements, so that the copy is one move of memory. The
    longest types come first, so that each view is aligned."""
    places: dict[int, torch.Tensor] = {}
    start = 0
    for index in sorted(range(len(tensors)), key=lambda index: -tensors[index].element_size()):
        tensor = tensors[index]
        flat = buffer[start : start + tensor.nbytes].view(tensor.dtype)
        places[index] = flat.as_strided(tensor.shape, tensor.stride()) if _is_dense(tensor) else flat.view(tensor.shape)
        start += tensor.nbytes
    return [places[index] for index in range(len(tensors))]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements fill a block of memory without gaps, in any order of its axes."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
