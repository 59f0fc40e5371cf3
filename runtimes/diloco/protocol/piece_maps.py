"""What each process of a unit owns, as the leader's Hello says it.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from diloco.algorithm.layout import FrozenTensor, Layout, TensorSpec
from diloco.algorithm.pieces import Piece, PieceError, check_cover, whole
from diloco.protocol.diloco_pb2 import Hello, PieceMap
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.wording import plural

type Owned = tuple[tuple[Piece, ...], ...]
"""The pieces that each rank owns."""

MOST_RANKS: Final = 4096
"""The most processes of one unit."""
MOST_PIECES: Final = 1 << 20
"""The most pieces of all ranks together. Enough for 512 ranks that each own a piece of each of 2000 tensors."""
MOST_DIMENSIONS: Final = 64
"""The most dimensions of a tensor that can be cut; numpy's limit."""


def layout_of(hello: Hello) -> Layout:
    """Return the model's layout. Raises LayoutError."""
    frozen = (FrozenTensor(tensor.name, tuple(tensor.shape), tensor.digest) for tensor in hello.frozen)
    return Layout((TensorSpec(tensor.name, tuple(tensor.shape), tensor.embedding, tensor.stack_axes) for tensor in hello.tensors), frozen)


def piece_maps(layout: Layout, owned: Sequence[Iterable[Piece]]) -> list[PieceMap]:
    """Return `Hello.owned` for the pieces of each rank. `Hello.tensors` must be in the order of the layout."""
    index = {tensor.name: number for number, tensor in enumerate(layout.tensors)}
    all_of = {tensor.name: whole(tensor) for tensor in layout.tensors}

    def message(piece: Piece) -> PieceMessage:
        if piece == all_of[piece.tensor]:
            return PieceMessage(tensor=index[piece.tensor])
        return PieceMessage(tensor=index[piece.tensor], start=piece.start, size=piece.size)

    return [PieceMap(pieces=map(message, pieces)) for pieces in owned]


def read_owned(hello: Hello) -> Owned:
    """Return what each rank owns, or () for a unit of one process. A unit of many pieces takes some seconds at most.

    Raises PieceError for too many ranks or pieces, and for pieces that do not cover the layout exactly once. Raises LayoutError if the
    Hello's tensors make no layout.
    """
    if len(hello.owned) != hello.ranks or hello.ranks > MOST_RANKS:
        raise PieceError(
            f"Hello says that the unit has {plural(hello.ranks, 'rank')}, and the pieces of {len(hello.owned)}; {MOST_RANKS} are the most"
        )
    if not hello.ranks:
        return ()
    pieces = sum(len(of_rank.pieces) for of_rank in hello.owned)
    if pieces > MOST_PIECES:
        raise PieceError(f"the unit's {plural(hello.ranks, 'rank')} own {pieces} pieces; {MOST_PIECES} are the most")
    layout = layout_of(hello)
    if deep := next((tensor for tensor in layout.tensors if len(tensor.shape) > MOST_DIMENSIONS), None):
        raise PieceError(f"{deep} has {len(deep.shape)} dimensions; with more than {MOST_DIMENSIONS} it cannot be cut into pieces")
    wholes = {tensor.name: whole(tensor) for tensor in layout.tensors}
    in_order = [wholes[tensor.name] for tensor in hello.tensors]
    owned = tuple(tuple(_piece(rank, message, in_order) for message in of_rank.pieces) for rank, of_rank in enumerate(hello.owned))
    check_cover(layout, owned)
    return owned


def _piece(rank: int, message: PieceMessage, wholes: Sequence[Piece]) -> Piece:
    if message.tensor >= len(wholes):
        raise PieceError(f"rank {rank} owns a piece of tensor number {message.tensor}; the model has {plural(len(wholes), 'tensor')}")
    tensor = wholes[message.tensor]
    return Piece(tensor.tensor, tuple(message.start), tuple(message.size)) if message.start or message.size else tensor
