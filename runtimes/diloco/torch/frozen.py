"""Digests of a torch module's frozen parameters, on the device where they are: see `diloco.algorithm.frozen`.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import torch

from diloco.algorithm.frozen import FIRST, MASK, PLACE, SECOND, blocks, strides


@torch.no_grad()
def digest(shape: tuple[int, ...], start: tuple[int, ...], values: torch.Tensor) -> int:
    """Return the result of `algorithm.frozen.digest` for these values. It is computed block by block, so its memory does not grow with the
    tensor."""
    total = 0
    for first, size in blocks((0,) * values.dim(), tuple(values.shape)):
        block = values
        for axis, (low, length) in enumerate(zip(first, size, strict=True)):
            block = block.narrow(axis, low, length)
        total += _digest(shape, tuple(a + b for a, b in zip(start, first, strict=True)), block)
    return total & MASK


def _digest(shape: tuple[int, ...], start: tuple[int, ...], values: torch.Tensor) -> int:
    # In int64, because torch has no arithmetic for uint64. It wraps in the same way.
    places = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    for axis, stride in enumerate(strides(shape)):
        along = (torch.arange(values.shape[axis], device=values.device) + start[axis]) * stride
        places += along.view((-1,) + (1,) * (values.dim() - axis - 1))
    mixed = _bits(values) + (places + 1) * _signed(PLACE)
    mixed = (mixed ^ _right(mixed, 30)) * _signed(FIRST)
    mixed = (mixed ^ _right(mixed, 27)) * _signed(SECOND)
    return int((mixed ^ _right(mixed, 31)).sum().item())


def _bits(values: torch.Tensor) -> torch.Tensor:
    if values.is_floating_point():
        return values.float().contiguous().view(torch.int32).long() & 0xFFFFFFFF
    return values.long()


def _right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right, filling with zeros: torch's shift of a signed integer fills with the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
