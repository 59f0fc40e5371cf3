"""Where the pieces of canonical tensors lie in the memory of this process: in whole parameters, or in a DTensor's local part.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from diloco.algorithm.layout import LayoutError
from diloco.algorithm.pieces import Piece
from diloco.canonical import Part

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a canonical tensor, and where this process stores it."""

    piece: Piece
    part: Part
    where: tuple[int | slice, ...]
    """Index into the parameter's local memory. The result has the parameter's order of axes."""

    @property
    def axes(self) -> tuple[int, ...] | None:
        return self.part.axes

    def inner(self, piece: Piece) -> Place:
        """Return the place of `piece`, which must lie within this place's piece."""
        offset = [a - b for a, b in zip(piece.start, self.piece.start, strict=True)]
        slices = self.where[self.part.layer is not None :]
        inner = list(slices)
        for canonical, native in enumerate(self.axes or range(len(offset))):
            begin = slices[native]
            assert isinstance(begin, slice)
            inner[native] = slice(begin.start + offset[canonical], begin.start + offset[canonical] + piece.size[canonical])
        return Place(piece, self.part, (*self.where[: self.part.layer is not None], *inner))


def local(parameter: torch.Tensor) -> torch.Tensor:
    """Return the part of a parameter that this process stores, without its gradient."""
    if (sharded := _sharded(parameter)) is None:
        return parameter.detach()
    with torch.no_grad():
        value: torch.Tensor = sharded.to_local()
    return value.detach()


def held(name: str, parameter: torch.Tensor, part: Part) -> Place | None:
    """Return the place of the part of a canonical tensor that this process stores; None if it stores nothing of it.

    `name`: the parameter's, for errors. Raises LayoutError for a sharding whose local part is no rectangle.
    """
    start, size = _rectangle(name, parameter)
    where: tuple[int | slice, ...] = ()
    if part.layer is not None:
        if not start[0] <= part.layer < start[0] + size[0]:
            return None
        where, start, size = (part.layer - start[0],), start[1:], size[1:]
    if 0 in size:
        return None
    axes = part.axes or tuple(range(len(size)))
    piece = Piece(part.spec.name, tuple(start[axis] for axis in axes), tuple(size[axis] for axis in axes))
    return Place(piece, part, (*where, *(slice(0, length) for length in size)))


def _sharded(parameter: torch.Tensor) -> DTensor | None:
    return cast("DTensor", parameter) if hasattr(parameter, "device_mesh") else None


def _rectangle(name: str, parameter: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and size of the part that this process stores, in the parameter's order of axes."""
    shape = tuple(parameter.shape)
    sharded = _sharded(parameter)
    if sharded is None:
        return (0,) * len(shape), shape
    from torch.distributed.tensor import Partial, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh, placements = sharded.device_mesh, sharded.placements
    for dimension, placement in enumerate(placements):
        if isinstance(placement, Partial):
            raise LayoutError(f"parameter {name!r} is a sum over the processes ({placement}): reduce it before joining")
        if isinstance(placement, _StridedShard):
            # fully_shard over tensor parallel. Rows are cut by the later mesh dimensions first. If those cut into `split_factor` parts, the
            # part of this process is still one piece.
            later = [
                mesh.size(other)
                for other in range(dimension + 1, mesh.ndim)
                if isinstance(placements[other], Shard) and placements[other].is_shard(placement.dim)
            ]
            if placement.split_factor != math.prod(later):
                raise LayoutError(f"parameter {name!r} is sharded as {placements}: its local parts are no rectangles")
    size, start = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
    if tuple(size) != tuple(local(parameter).shape):
        raise LayoutError(
            f"parameter {name!r} of shape {list(shape)} is sharded as {placements} over {mesh}: its local part should have "
            f"shape {list(size)}, and has {list(local(parameter).shape)}"
        )
    return tuple(start), tuple(size)
