"""Piece maps in Hello: there and back, and bounded."""

from typing import Any

import pytest
from diloco.algorithm.layout import Layout, LayoutError, TensorSpec
from diloco.algorithm.pieces import Piece, PieceError, deal
from diloco.protocol import piece_maps
from diloco.protocol.diloco_pb2 import Hello, PieceMap, Tensor
from diloco.protocol.diloco_pb2 import Piece as PieceMessage
from diloco.protocol.piece_maps import MOST_RANKS, layout_of, read_owned
from hypothesis import given
from hypothesis import strategies as st

LAYOUT = Layout([TensorSpec("a", (5, 4)), TensorSpec("b", ()), TensorSpec("c", (3,))])


def hello(layout: Layout = LAYOUT, **changes: object) -> Hello:
    tensors = [Tensor(name=x.name, shape=x.shape, embedding=x.embedding, stack_axes=x.stack_axes) for x in layout.tensors]
    fields: dict[str, object] = {"tensors": tensors}
    return Hello(**(fields | changes))  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=5), st.integers(1, 6))
def test_what_is_said_is_what_is_read(shapes: list[tuple[int, ...]], ranks: int) -> None:
    layout = Layout(TensorSpec(f"t{i}", shape, i % 2 == 0, len(shape) // 2) for i, shape in enumerate(shapes))
    owned = deal(layout.tensors, ranks)
    message = hello(layout, ranks=ranks, owned=piece_maps.piece_maps(layout, owned))
    assert layout_of(message) == layout
    assert read_owned(Hello.FromString(message.SerializeToString())) == tuple(map(tuple, owned))


def test_a_whole_tensor_needs_its_number_only() -> None:
    maps = piece_maps.piece_maps(LAYOUT, deal(LAYOUT.tensors, 1))
    assert maps == [PieceMap(pieces=[PieceMessage(tensor=i) for i in range(3)])]


def test_a_unit_of_one_process_says_nothing() -> None:
    assert read_owned(hello()) == ()


def test_tensors_are_numbered_as_the_hello_lists_them() -> None:
    tensors = [Tensor(name="b", shape=[2]), Tensor(name="a", shape=[3])]
    message = Hello(tensors=tensors, ranks=1, owned=[PieceMap(pieces=[PieceMessage(tensor=1), PieceMessage(tensor=0)])])
    assert read_owned(message) == ((Piece("a", (0,), (3,)), Piece("b", (0,), (2,))),)


ALL = PieceMap(pieces=[PieceMessage(tensor=i) for i in range(3)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 2, "owned": [ALL]}, "has 2 ranks, and the pieces of 1"),
        ({"ranks": 2}, "has 2 ranks, and the pieces of 0"),
        ({"owned": [ALL]}, "has 0 ranks, and the pieces of 1"),
        ({"ranks": MOST_RANKS + 1, "owned": [PieceMap()] * (MOST_RANKS + 1)}, "4097 ranks, and the pieces of 4097; 4096 are the most"),
        (
            {"ranks": 1, "owned": [PieceMap(pieces=[PieceMessage(tensor=3)])]},
            "rank 0 owns a piece of tensor number 3; the model has 3 tensors",
        ),
        ({"ranks": 2, "owned": [ALL, PieceMap(pieces=[PieceMessage(tensor=1)])]}, "rank 0 and rank 1 both own b"),
        ({"ranks": 1, "owned": [PieceMap(pieces=ALL.pieces[1:])]}, r"no rank owns a\[\]"),
        ({"ranks": 1, "owned": [PieceMap(pieces=[PieceMessage(tensor=0, start=[0, 0], size=[5])])]}, "no part of shape"),
        ({"ranks": 1, "owned": [PieceMap(pieces=[PieceMessage(tensor=0, start=[2**63, 0], size=[2**64 - 1, 4])])]}, "no part of shape"),
    ],
)
def test_maps_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PieceError, match=message):
        read_owned(hello(**changes))


def test_a_tensor_of_very_many_dimensions_is_refused_before_it_is_cut() -> None:
    deep = Layout([TensorSpec("deep", (1,) * 5000)])
    with pytest.raises(PieceError, match="tensor deep has 5000 dimensions; with more than 64"):
        read_owned(hello(deep, ranks=1, owned=[PieceMap(pieces=[PieceMessage(tensor=0)])]))


def test_very_many_pieces_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piece_maps, "MOST_PIECES", 5)
    with pytest.raises(PieceError, match="2 ranks own 6 pieces; 5 are the most"):
        read_owned(hello(ranks=2, owned=[ALL, ALL]))


def test_pieces_of_no_layout_are_refused_as_the_layout() -> None:
    with pytest.raises(LayoutError, match="no tensors"):
        read_owned(Hello(ranks=1, owned=[PieceMap()]))
