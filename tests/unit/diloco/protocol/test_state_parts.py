"""Cutting a model into parts, and their arrays on the wire."""

from __future__ import annotations

import pytest
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, check_cover, wholes
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.protocol.diloco_pb2 import StateArray, StateMessage, StatePart
from diloco.protocol.incoming_state import MOST_WAITS, IncomingState
from diloco.protocol.state_parts import PieceArray, StateError, cut, from_message, to_message

LAYOUT = Layout([TensorSpec("a", (7, 5)), TensorSpec("b", ()), TensorSpec("c", (3,)), TensorSpec("d", (2, 40))])


@pytest.mark.parametrize("most", [1, 3, 12, 1000])
def test_parts_cover_the_model_once_and_none_is_larger_than_asked(most: int) -> None:
    parts = cut(wholes(LAYOUT.tensors), most)
    check_cover(LAYOUT, [[piece for part in parts for piece in part]])
    assert max(sum(piece.elements for piece in part) for part in parts) <= most


def test_small_tensors_share_a_part() -> None:
    # 35 + 1 + 3 elements in the first part; a row of "d" has 40, so each goes in two pieces, and no other fits beside the longer one.
    assert [[piece.tensor for piece in part] for part in cut(wholes(LAYOUT.tensors), 39)] == [["a", "b", "c"], ["d"], ["d"], ["d"], ["d"]]


def test_arrays_come_as_they_went() -> None:
    arrays = [PieceArray(Piece("a", (2, 0), (3, 5)), "exp_avg", "bfloat16"), PieceArray(Piece("b", (), ()), "", "float32")]
    assert from_message(LAYOUT, to_message(LAYOUT, arrays)) == arrays


@pytest.mark.parametrize(
    "piece",
    [
        PieceMessage(tensor=4, start=[0], size=[1]),
        PieceMessage(tensor=0, start=[0], size=[1]),
        PieceMessage(tensor=0, start=[0, 0], size=[8, 5]),
        PieceMessage(tensor=0, start=[7, 0], size=[1, 5]),
        PieceMessage(tensor=0, start=[0, 0], size=[0, 5]),
    ],
)
def test_what_is_no_piece_of_the_model_is_refused(piece: PieceMessage) -> None:
    with pytest.raises(StateError, match="the peer names"):
        from_message(LAYOUT, [StateArray(piece=piece)])


def test_a_donor_that_only_says_that_it_waits_does_not_keep_its_taker() -> None:
    incoming = IncomingState(LAYOUT, fragments=1)
    for _ in range(MOST_WAITS):
        assert incoming.add(StateMessage()) is None
    with pytest.raises(StateError, match=f"said {MOST_WAITS + 1} times that it waits"):
        incoming.add(StateMessage())


def test_a_donor_with_long_steps_may_wait_before_each_part() -> None:
    incoming = IncomingState(LAYOUT, fragments=1)
    for _ in range(MOST_WAITS):
        incoming.add(StateMessage())
    incoming.add(StateMessage(part=StatePart(index=0, versions=[3])))
    assert incoming.add(StateMessage()) is None
