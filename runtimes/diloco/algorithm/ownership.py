"""Which rank of a unit owns which part of the pieces that several ranks hold.

See docs/decisions/0161-parameters-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diloco.algorithm.layout import TensorSpec
from diloco.algorithm.pieces import Piece, deal


@dataclass(frozen=True)
class Group:
    """Pieces that exactly these ranks hold."""

    ranks: tuple[int, ...]
    owned: tuple[tuple[Piece, ...], ...]
    """What each of the ranks owns of these pieces, in the order of `ranks`. The pieces come in the same order on all ranks."""

    def of(self, rank: int) -> tuple[Piece, ...]:
        """What `rank` owns of these pieces; nothing if it does not hold them."""
        return self.owned[self.ranks.index(rank)] if rank in self.ranks else ()


def divide(held: Sequence[Iterable[Piece]]) -> list[Group]:
    """Divide what the ranks of a unit hold. `held[r]` are the pieces of rank r; its pieces of one tensor are disjoint.

    A rank owns what it alone holds. Equal pieces of several ranks are cut evenly among these ranks, so that none sends for the others.
    Deterministic: every rank gets the same answer. Pieces that overlap without being equal stay so, which `pieces.check_cover` refuses.
    """
    holders: dict[Piece, list[int]] = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            holders.setdefault(piece, []).append(rank)
    groups: dict[tuple[int, ...], list[Piece]] = {}
    for piece in sorted(holders):
        groups.setdefault(tuple(holders[piece]), []).append(piece)
    return [Group(ranks, _dealt(pieces, len(ranks))) for ranks, pieces in sorted(groups.items())]


def _dealt(pieces: Sequence[Piece], ranks: int) -> tuple[tuple[Piece, ...], ...]:
    if ranks == 1:
        return (tuple(pieces),)
    by_name = {str(index): piece for index, piece in enumerate(pieces)}
    dealt = deal([TensorSpec(name, piece.size) for name, piece in by_name.items()], ranks)
    return tuple(tuple(_within(by_name[part.tensor], part) for part in parts) for parts in dealt)


def _within(piece: Piece, part: Piece) -> Piece:
    return Piece(piece.tensor, tuple(a + b for a, b in zip(piece.start, part.start, strict=True)), part.size)
