"""Pieces: rectangles of canonical tensors. The processes of a unit divide an exchange by them.

One process (rank) of the unit owns each element of the model, so that each byte crosses between unit and syncer once. Units with different
numbers of processes and different shardings can train in one job.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout, TensorSpec

Array = NDArray[np.float32]

MOST_VISITS = 1 << 20
"""Steps that `check_cover` may take beyond one for each piece and dimension."""


class PieceError(ValueError):
    """Pieces do not fit the layout, or do not cover it exactly once. The message is for people."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The elements `start[d] <= index[d] < start[d] + size[d]` of a tensor in canonical form. For a scalar, both are `()`."""

    tensor: str
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of float32 elements."""
        return math.prod(self.size)

    def is_inside(self, shape: tuple[int, ...]) -> bool:
        """Whether the piece has elements, all of them in a tensor of this shape."""
        return len(self.start) == len(self.size) == len(shape) and all(
            start >= 0 and size > 0 and start + size <= length for start, size, length in zip(self.start, self.size, shape, strict=True)
        )

    def of[T: np.generic](self, tensor: NDArray[T]) -> NDArray[T]:
        """Return a view of the piece. `tensor`: the whole tensor that has the piece's name."""
        where: tuple[Any, ...] = tuple(slice(start, start + size) for start, size in zip(self.start, self.size, strict=True))
        view: NDArray[T] = tensor[(*where, ...)]  # the "..." is for a scalar, which would give no view without it
        return view

    def __str__(self) -> str:
        return self.tensor + _place(self.start, tuple(start + size for start, size in zip(self.start, self.size, strict=True)))


def common(one: Piece, other: Piece) -> Piece | None:
    """Return the intersection of two pieces of one tensor; None if it is empty."""
    start = tuple(max(a, b) for a, b in zip(one.start, other.start, strict=True))
    ends = (min(a + n, b + m) for a, n, b, m in zip(one.start, one.size, other.start, other.size, strict=True))
    size = tuple(end - first for end, first in zip(ends, start, strict=True))
    return Piece(one.tensor, start, size) if all(length > 0 for length in size) else None


def by_tensor(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    """Group pieces by the name of their tensor."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.tensor, []).append(piece)
    return found


def overlap(pieces: Iterable[Piece], others: Mapping[str, Sequence[Piece]]) -> list[Piece]:
    """Return what each piece has in common with each of the others, in the order of the pieces. `others`: by tensor."""
    return [both for piece in pieces for other in others.get(piece.tensor, ()) if (both := common(piece, other)) is not None]


def within[T: np.generic](part: Piece, piece: Piece, values: NDArray[T]) -> NDArray[T]:
    """Return a view of the values of `part`, which lies in `piece`. `values`: those of `piece`, [elements] or [size]."""
    inner = Piece(piece.tensor, tuple(a - b for a, b in zip(part.start, piece.start, strict=True)), part.size)
    return inner.of(values.reshape(piece.size))


def whole(spec: TensorSpec) -> Piece:
    """The piece that is all of a tensor."""
    return Piece(spec.name, (0,) * len(spec.shape), spec.shape)


def wholes(specs: Iterable[TensorSpec]) -> list[Piece]:
    """Return all of each tensor."""
    return [whole(spec) for spec in specs]


def deal(specs: Sequence[TensorSpec], ranks: int) -> list[list[Piece]]:
    """Divide tensors that each of `ranks` processes holds as a whole. Returns the pieces that each rank owns.

    Each tensor is cut along its longest axis into parts that differ by at most one row. The longer parts go to the ranks that own least so
    far. Deterministic: every process gets the same answer.
    """
    if ranks < 1:
        raise ValueError(f"a unit has at least one process, not {ranks}")
    owned: list[list[Piece]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for spec in specs:
        axis = max(range(len(spec.shape)), key=lambda d: spec.shape[d], default=None)
        rows = 1 if axis is None else spec.shape[axis]
        least, extra = divmod(rows, ranks)
        longer = set(sorted(range(ranks), key=lambda rank: (loads[rank], rank))[:extra])
        first = 0
        for rank in range(ranks):
            count = least + 1 if rank in longer else least
            if not count:
                continue
            piece = whole(spec)
            if axis is not None:
                piece = Piece(spec.name, _with(piece.start, axis, first), _with(piece.size, axis, count))
            owned[rank].append(piece)
            loads[rank] += piece.elements
            first += count
    return owned


def check_cover(layout: Layout, owned: Sequence[Sequence[Piece]]) -> None:
    """Check that the pieces of all ranks cover every tensor exactly once. `owned[r]`: the pieces of rank r.

    Raises PieceError for the first piece that does not fit its tensor, and for the first gap or overlap, naming tensor, place and ranks.
    If the pieces are no regular grid, the check takes at most MOST_VISITS steps more than for a grid, and else raises PieceError.
    """
    of_tensor: dict[str, list[tuple[int, Piece]]] = {spec.name: [] for spec in layout.tensors}
    for rank, pieces in enumerate(owned):
        for piece in pieces:
            if piece.tensor not in of_tensor:
                raise PieceError(f"rank {rank} owns a piece of tensor {piece.tensor}, which the model does not have")
            of_tensor[piece.tensor].append((rank, piece))
    # The count begins below zero, so that the steps that a regular grid takes are free.
    visits = itertools.count(-sum(len(pieces) * len(spec.shape) for spec, pieces in zip(layout.tensors, of_tensor.values(), strict=True)))
    for spec in layout.tensors:
        of_one = of_tensor[spec.name]
        if not _is_grid(spec, [piece for _, piece in of_one]):
            # Before `_check_tensor`, which relies on pieces that lie within the tensor.
            for rank, piece in of_one:
                if not piece.is_inside(spec.shape):
                    raise PieceError(
                        f"rank {rank} owns a piece of tensor {spec.name} with start {list(piece.start)} and size {list(piece.size)}, "
                        f"which is no part of shape {list(spec.shape)}"
                    )
            _check_tensor(spec, [_Owned(rank, piece) for rank, piece in of_one], (), visits)


@dataclass(frozen=True)
class Portion:
    """What one rank owns of a fragment: its pieces, one after the other, as one flat float32 vector."""

    fragment: Fragment
    pieces: tuple[Piece, ...]
    """In the order of the fragment's tensors, and within a tensor in the order of their starts."""
    size: int
    """Elements of the flat vector; 0 if the rank owns nothing of this fragment."""

    @property
    def is_whole(self) -> bool:
        """Whether the portion is the fragment's whole flat vector, with each tensor as one piece."""
        return self.size == self.fragment.size and len(self.pieces) == len(self.fragment.tensors)

    def slices(self) -> Iterator[tuple[Piece, slice]]:
        """Yield where each piece lies in the portion's flat vector."""
        start = 0
        for piece in self.pieces:
            yield piece, slice(start, start + piece.elements)
            start += piece.elements

    def cut[T: np.generic](self, values: NDArray[T]) -> NDArray[T]:
        """Return a copy of the portion's values, [size], from the fragment's flat vector of any type."""
        part = np.empty(self.size, values.dtype)
        for (_, at), source in zip(self.slices(), self._views(values), strict=True):
            part[at].reshape(source.shape)[...] = source
        return part

    def place(self, part: Array, values: Array) -> None:
        """Write the portion's values, float32 [size], to their places in the fragment's flat vector `values`. Raises ValueError for
        another size."""
        if part.shape != (self.size,):
            raise ValueError(f"a portion of fragment {self.fragment.index} has {self.size} elements, not an array of shape {part.shape}")
        for (_, at), target in zip(self.slices(), self._views(values), strict=True):
            target[...] = part[at].reshape(target.shape)

    def _views[T: np.generic](self, values: NDArray[T]) -> Iterator[NDArray[T]]:
        """Yield a view of each piece within the fragment's flat vector."""
        if values.shape != (self.fragment.size,):
            raise ValueError(f"fragment {self.fragment.index} has {self.fragment.size} elements, not an array of shape {values.shape}")
        tensors = {tensor.name: values[at].reshape(tensor.shape) for tensor, at in self.fragment.slices()}
        return (piece.of(tensors[piece.tensor]) for piece in self.pieces)


def portion(fragment: Fragment, pieces: Iterable[Piece]) -> Portion:
    """Return the portion of a rank with these pieces. Pieces of other fragments' tensors are ignored."""
    order = {tensor.name: index for index, tensor in enumerate(fragment.tensors)}
    own = tuple(sorted((piece for piece in pieces if piece.tensor in order), key=lambda piece: (order[piece.tensor], piece.start)))
    return Portion(fragment, own, sum(piece.elements for piece in own))


def _is_grid(spec: TensorSpec, pieces: Sequence[Piece]) -> bool:
    """Whether the pieces are the cells of a regular grid over the whole tensor, each once. Nearly every framework shards like this. False
    for all other pieces, right or wrong."""
    try:
        starts = np.array([piece.start for piece in pieces], np.int64).reshape(-1, len(spec.shape))
        sizes = np.array([piece.size for piece in pieces], np.int64).reshape(-1, len(spec.shape))
    except (ValueError, OverflowError):  # pieces with different numbers of dimensions, or numbers beyond 64 bits
        return False
    if not len(starts) == len(sizes) == len(pieces) > 0:
        return False
    cells, cell_of = 1, np.zeros(len(pieces), np.int64)
    for axis, length in enumerate(spec.shape):
        lows, index = np.unique(starts[:, axis], return_inverse=True)
        if lows[0] != 0 or lows[-1] >= length or (sizes[:, axis] != np.diff(lows, append=length)[index]).any():
            return False
        cells *= len(lows)
        # More cells than pieces: no grid. This also keeps the cells' numbers within 64 bits.
        if cells > len(pieces):
            return False
        cell_of = cell_of * len(lows) + index
    return cells == len(pieces) == len(np.unique(cell_of))


@dataclass(frozen=True, slots=True)
class _Owned:
    rank: int
    piece: Piece

    def along(self, axis: int) -> tuple[int, int]:
        start = self.piece.start[axis]
        return start, start + self.piece.size[axis]


def _check_tensor(spec: TensorSpec, pieces: list[_Owned], before: tuple[tuple[int, int], ...], visits: Iterator[int]) -> None:
    """Check that `pieces` cover exactly once the part of the tensor that the intervals `before` select along its first axes. Each piece
    must cover all of these intervals."""
    axis = len(before)
    if axis == len(spec.shape):
        if len(pieces) != 1:
            raise PieceError(_defect(spec, pieces, before))
        return
    if not pieces:
        raise PieceError(_defect(spec, pieces, before))
    end = 0
    for interval, inside in _intervals(pieces, axis, visits):
        if interval[0] > end:
            break
        _check_tensor(spec, inside, (*before, interval), visits)
        end = interval[1]
    if end < spec.shape[axis]:
        following = min((owned.along(axis)[0] for owned in pieces if owned.along(axis)[0] > end), default=spec.shape[axis])
        raise PieceError(_defect(spec, [], (*before, (end, following))))


def _intervals(pieces: list[_Owned], axis: int, visits: Iterator[int]) -> Iterator[tuple[tuple[int, int], list[_Owned]]]:
    """Cut an axis where a piece begins or ends. Yields each interval that pieces cover, ascending, with these pieces."""
    groups: dict[tuple[int, int], list[_Owned]] = {}
    for owned in pieces:
        _count(visits, 1)
        groups.setdefault(owned.along(axis), []).append(owned)
    intervals = sorted(groups)
    # If no two intervals overlap, there is nothing to cut, and a regular sharding costs one step for each piece.
    if all(first[1] <= second[0] for first, second in itertools.pairwise(intervals)):
        for interval in intervals:
            yield interval, groups[interval]
        return
    cuts = sorted({cut for interval in intervals for cut in interval})
    for low, high in itertools.pairwise(cuts):
        _count(visits, len(pieces))
        inside = [owned for owned in pieces if owned.along(axis)[0] <= low and high <= owned.along(axis)[1]]
        if inside:
            yield (low, high), inside


def _count(visits: Iterator[int], steps: int) -> None:
    if next(itertools.islice(visits, steps - 1, None)) >= MOST_VISITS:
        raise PieceError("the unit's pieces are cut in too irregular a way to be checked; cut each tensor along few boundaries")


def _defect(spec: TensorSpec, pieces: list[_Owned], place: tuple[tuple[int, int], ...]) -> str:
    shown = spec.name + _place(tuple(low for low, _ in place), tuple(high for _, high in place))
    if not pieces:
        return f"no rank owns {shown}"
    first, second = pieces[:2]
    return (
        f"rank {first.rank} and rank {second.rank} both own {shown}"
        if first.rank != second.rank
        else f"rank {first.rank} owns {shown} twice"
    )


def _place(starts: tuple[int, ...], ends: tuple[int, ...]) -> str:
    return "[" + ", ".join(f"{start}:{end}" for start, end in zip(starts, ends, strict=True)) + "]"


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
