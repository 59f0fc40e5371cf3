"""Who owns what in a unit of several ranks."""

from __future__ import annotations

from collections.abc import Callable

from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, deal, whole

Owned = list[list[Piece]]
"""The pieces of each rank."""
Sharding = Callable[[Layout], Owned]


def dealt(ranks: int) -> Sharding:
    """As DDP: every tensor along its longest axis."""
    return lambda layout: deal(layout.tensors, ranks)


def rows(ranks: int) -> Sharding:
    """As FSDP2: the first axis in equal parts, the last ranks with less or nothing."""

    def cut(layout: Layout) -> Owned:
        owned: Owned = [[] for _ in range(ranks)]
        for spec in layout.tensors:
            part = -(-spec.shape[0] // ranks)
            for rank, start in enumerate(range(0, spec.shape[0], part)):
                size = min(part, spec.shape[0] - start)
                owned[rank].append(Piece(spec.name, (start, *(0,) * (len(spec.shape) - 1)), (size, *spec.shape[1:])))
        return owned

    return cut


def columns(ranks: int) -> Sharding:
    """As tensor parallel: the second axis in equal parts; whole tensors to rank 0 where it cannot be cut."""

    def cut(layout: Layout) -> Owned:
        owned: Owned = [[] for _ in range(ranks)]
        for spec in layout.tensors:
            if len(spec.shape) != 2 or spec.shape[1] % ranks:
                owned[0].append(whole(spec))
                continue
            part = spec.shape[1] // ranks
            for rank in range(ranks):
                owned[rank].append(Piece(spec.name, (0, part * rank), (spec.shape[0], part)))
        return owned

    return cut


def grid(layout: Layout) -> Owned:
    """As FSDP2 with tensor parallel, 2 x 2: both axes in halves."""
    owned: Owned = [[] for _ in range(4)]
    for spec in layout.tensors:
        row, column = (n // 2 for n in spec.shape)
        for rank, (i, j) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            size = (spec.shape[0] - row if i else row, spec.shape[1] - column if j else column)
            owned[rank].append(Piece(spec.name, (i * row, j * column), size))
    return owned
