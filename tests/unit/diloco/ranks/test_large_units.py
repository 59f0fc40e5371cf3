"""Units of 512 ranks at full scale: the pure part of their meeting, and of the leader's Hello."""

from __future__ import annotations

import pytest
from builders.exploration import full
from builders.local_process import LocalProcess
from builders.momentum_learner import MomentumState
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, PieceError, check_cover, portion
from diloco.learner.incarnations import Incarnations
from diloco.protocol.diloco_pb2 import Hello, Tensor
from diloco.protocol.piece_maps import piece_maps, read_owned
from diloco.ranks.messages import pieces_from_wire, pieces_to_wire
from diloco.ranks.ranks_pb2 import Pieces
from diloco.ranks.state_of_unit import StateOfUnit

pytestmark = pytest.mark.slow

RANKS = 512
ROWS = 1020
"""The last ranks of fully_shard have less: 510 ranks own two rows of each matrix, and two ranks none."""


def a_layout(tensors: int) -> Layout:
    return Layout(TensorSpec(f"model.layers.{number:04}.weight", (ROWS, 8)) for number in range(tensors))


def sharded(layout: Layout) -> list[list[Piece]]:
    """Per rank, what it owns."""
    firsts = range(0, 2 * RANKS, 2)
    return [[Piece(one.name, (first, 0), (2, 8)) for one in layout.tensors if first < ROWS] for first in firsts]


@pytest.mark.parametrize("tensors", [100, full(700), full(1100)])
def test_the_leader_of_512_ranks_finds_that_their_pieces_make_up_the_model(tensors: int) -> None:
    layout = a_layout(tensors)
    said = [pieces_to_wire(owned).SerializeToString() for owned in sharded(layout)]
    heard = [pieces_from_wire(Pieces.FromString(one)) for one in said]
    check_cover(layout, heard)
    gone = heard[300].pop()
    with pytest.raises(PieceError, match=gone.tensor):
        check_cover(layout, heard)


def test_nothing_of_512_ranks_that_share_no_element_is_passed_on() -> None:
    layout = a_layout(100)
    owned = sharded(layout)
    fragments = make_fragments(layout, 2)
    process = LocalProcess(layout, fragments, MomentumState({}), owned[0], Incarnations(), lambda donor: [])
    unit = StateOfUnit(process, [portion(fragment, owned[0]) for fragment in fragments], lambda rank, order: None, owned, owned)
    assert not any(unit._shared)
    assert not any(unit._held)


@pytest.mark.full
@pytest.mark.parametrize("tensors", [700, full(1100)])
def test_the_syncer_reads_who_owns_what_of_512_ranks(tensors: int) -> None:
    layout = a_layout(tensors)
    owned = sharded(layout)
    hello = Hello(ranks=RANKS, tensors=[Tensor(name=one.name, shape=one.shape) for one in layout.tensors], owned=piece_maps(layout, owned))
    assert read_owned(Hello.FromString(hello.SerializeToString())) == tuple(map(tuple, owned))
