"""Pieces: dealt out, checked, and cut from a fragment and put back."""

import itertools

import numpy as np
import pytest
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, PieceError, check_cover, common, deal, portion, whole
from hypothesis import given
from hypothesis import strategies as st

specs = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=5).map(
    lambda shapes: [TensorSpec(f"t{i}", shape) for i, shape in enumerate(shapes)]
)


@st.composite
def cuts(draw: st.DrawFn, spec: TensorSpec) -> list[Piece]:
    """Pieces that cover a tensor: cut again and again at any place of any axis."""
    pieces = [whole(spec)]
    for _ in range(draw(st.integers(0, 6))):
        piece = pieces.pop(draw(st.integers(0, len(pieces) - 1)))
        axes = [axis for axis, size in enumerate(piece.size) if size > 1]
        if not axes:
            pieces.append(piece)
            continue
        axis = draw(st.sampled_from(axes))
        at = draw(st.integers(1, piece.size[axis] - 1))
        for start, size in ((piece.start[axis], at), (piece.start[axis] + at, piece.size[axis] - at)):
            new = list(piece.start), list(piece.size)
            new[0][axis], new[1][axis] = start, size
            pieces.append(Piece(spec.name, tuple(new[0]), tuple(new[1])))
    return pieces


@st.composite
def covers(draw: st.DrawFn) -> tuple[Layout, list[list[Piece]]]:
    """A layout, and pieces of 1 to 4 ranks that cover it exactly once."""
    layout = Layout(draw(specs))
    owned: list[list[Piece]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for spec in layout.tensors:
        for piece in draw(cuts(spec)):
            draw(st.sampled_from(owned)).append(piece)
    return layout, owned


@given(covers())
def test_pieces_that_cover_every_tensor_once_pass(cover: tuple[Layout, list[list[Piece]]]) -> None:
    check_cover(*cover)


@given(covers(), st.data())
def test_a_missing_piece_is_a_gap(cover: tuple[Layout, list[list[Piece]]], data: st.DataObject) -> None:
    layout, owned = cover
    rank = data.draw(st.sampled_from([rank for rank, pieces in enumerate(owned) if pieces]))
    lost = owned[rank].pop(data.draw(st.integers(0, len(owned[rank]) - 1)))
    with pytest.raises(PieceError, match=rf"no rank owns {lost.tensor}\["):
        check_cover(layout, owned)


@pytest.mark.slow
@given(covers(), st.data())
def test_an_element_with_two_owners_is_an_overlap(cover: tuple[Layout, list[list[Piece]]], data: st.DataObject) -> None:
    layout, owned = cover
    spec = data.draw(st.sampled_from(layout.tensors))
    start = tuple(data.draw(st.integers(0, length - 1)) for length in spec.shape)
    data.draw(st.sampled_from(owned)).append(Piece(spec.name, start, (1,) * len(start)))
    with pytest.raises(PieceError, match=rf"(both own|owns) {spec.name}\["):
        check_cover(layout, owned)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([[Piece("x", (0,), (2,))]], "rank 0 owns a piece of tensor x, which the model does not have"),
        ([[Piece("w", (0, 0), (4, 7))]], r"size \[4, 7\], which is no part of shape \[4, 6\]"),
        ([[Piece("w", (-1, 0), (4, 6))]], r"start \[-1, 0\]"),
        ([[Piece("w", (0, 0), (0, 6))]], r"size \[0, 6\]"),
        ([[Piece("w", (0,), (4,))]], r"start \[0\]"),
        ([[Piece("w", (0, 0), (2, 6))], [Piece("w", (3, 0), (1, 6))]], r"no rank owns w\[2:3\]$"),
        ([[Piece("w", (0, 0), (2, 6))], [Piece("w", (2, 0), (2, 5))]], r"no rank owns w\[2:4, 5:6\]$"),
        ([[Piece("w", (0, 0), (3, 6))], [Piece("w", (2, 0), (2, 6))]], r"rank 0 and rank 1 both own w\[2:3, 0:6\]$"),
        ([[Piece("w", (0, 0), (4, 6))] * 2], r"rank 0 owns w\[0:4, 0:6\] twice$"),
        ([[], []], r"no rank owns w\[\]$"),
    ],
)
def test_the_first_defect_is_named(pieces: list[list[Piece]], message: str) -> None:
    with pytest.raises(PieceError, match=message):
        check_cover(Layout([TensorSpec("w", (4, 6))]), pieces)


@pytest.mark.slow
def test_pieces_of_a_whole_cluster_are_checked_at_once_and_hostile_ones_are_given_up() -> None:
    check_cover(Layout([TensorSpec("w", (4096, 64))]), [[Piece("w", (row, 0), (1, 64))] for row in range(4096)])
    # Each of n steps of a staircase has its own end: n cuts, and 2 n pieces are looked at for each. 2 n^2 is four times MOST_VISITS.
    n = 1500
    stairs = [Piece("w", (0, i), (i + 1, 1)) for i in range(n)]
    with pytest.raises(PieceError, match="too irregular"):
        check_cover(Layout([TensorSpec("w", (n, n))]), [stairs, [Piece("w", (i + 1, i), (n - i - 1, 1)) for i in range(n - 1)]])


def test_a_grid_is_never_too_irregular_however_many_pieces_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,100 tensors of 512 ranks were."""
    monkeypatch.setattr("diloco.algorithm.pieces.MOST_VISITS", 0)
    layout = Layout([TensorSpec("w", (7, 6)), TensorSpec("bias", (5,)), TensorSpec("scale", ())])
    check_cover(layout, deal(layout.tensors, 3))
    # FSDP over 2 x tensor parallel over 3, rows of unlike length.
    alone = Layout([TensorSpec("w", (7, 6))])
    check_cover(alone, [[Piece("w", (row, column), (rows, 2))] for row, rows in ((0, 4), (4, 3)) for column in (0, 2, 4)])
    # No grid: each block of rows is cut at columns of its own. One step for each piece and dimension.
    cuts = [Piece("w", (0, 0), (3, 2)), Piece("w", (0, 2), (3, 4)), Piece("w", (3, 0), (4, 5)), Piece("w", (3, 5), (4, 1))]
    check_cover(alone, [cuts])


@given(specs, st.integers(1, 9))
def test_dealt_pieces_cover_the_model_and_differ_by_a_row_of_each_tensor(specs: list[TensorSpec], ranks: int) -> None:
    owned = deal(specs, ranks)
    check_cover(Layout(specs), owned)
    for spec in specs:
        sizes = [sum(piece.elements for piece in pieces if piece.tensor == spec.name) for pieces in owned]
        assert max(sizes) - min(sizes) <= spec.size // max(spec.shape, default=1)


def test_no_rank_gets_every_remainder() -> None:
    # 8 vectors of 3 elements over 2 ranks: 12 elements each, not 16 and 8.
    owned = deal([TensorSpec(f"b{i}", (3,)) for i in range(8)], 2)
    assert [sum(piece.elements for piece in pieces) for pieces in owned] == [12, 12]


@given(covers(), st.integers(1, 3))
def test_portions_put_together_are_the_fragment(cover: tuple[Layout, list[list[Piece]]], count: int) -> None:
    layout, owned = cover
    for fragment in make_fragments(layout, min(count, len(layout.tensors))):
        values = np.arange(fragment.size, dtype=np.float32)
        portions = [portion(fragment, pieces) for pieces in owned]
        assert sum(each.size for each in portions) == fragment.size
        put = np.full(fragment.size, -1, np.float32)
        for each in portions:
            part = each.cut(values)
            assert part.shape == (each.size,)
            each.place(part, put)
        np.testing.assert_array_equal(put, values)


def test_a_portion_lies_in_the_order_of_the_fragment() -> None:
    (fragment,) = make_fragments(Layout([TensorSpec("a", (2, 3)), TensorSpec("b", (2,))]), 1)
    own = portion(fragment, [Piece("b", (1,), (1,)), Piece("a", (1, 0), (1, 2)), Piece("a", (0, 1), (1, 2)), Piece("other", (0,), (1,))])
    # a = [[0, 1, 2], [3, 4, 5]], b = [6, 7]
    np.testing.assert_array_equal(own.cut(np.arange(8, dtype=np.float32)), np.array([1, 2, 3, 4, 7], np.float32))
    places = [(str(piece), at.start, at.stop) for piece, at in own.slices()]
    assert places == [
        ("a[0:1, 1:3]", 0, 2),
        ("a[1:2, 0:2]", 2, 4),
        ("b[1:2]", 4, 5),
    ]


@pytest.mark.parametrize("size", [4, 6])
def test_values_of_another_size_are_refused(size: int) -> None:
    (fragment,) = make_fragments(Layout([TensorSpec("a", (5,))]), 1)
    own = portion(fragment, [Piece("a", (0,), (3,))])
    with pytest.raises(ValueError, match="fragment 0 has 5 elements"):
        own.cut(np.zeros(size, np.float32))
    with pytest.raises(ValueError, match="a portion of fragment 0 has 3 elements"):
        own.place(np.zeros(size, np.float32), np.zeros(5, np.float32))


def test_a_unit_without_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one process, not 0"):
        deal([TensorSpec("a", (5,))], 0)


def test_ranks_of_every_count_have_pieces_of_every_large_tensor() -> None:
    for ranks, spec in itertools.product((1, 2, 3, 8), (TensorSpec("a", (9, 2)), TensorSpec("b", (2, 9)))):
        assert all(pieces for pieces in deal([spec], ranks))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Piece("w", (0, 0), (4, 3)), Piece("w", (2, 1), (4, 2)), Piece("w", (2, 1), (2, 2))),
        (Piece("w", (0, 0), (4, 3)), Piece("w", (4, 0), (1, 3)), None),
        (Piece("w", (), ()), Piece("w", (), ()), Piece("w", (), ())),
    ],
    ids=["corner", "beside", "scalar"],
)
def test_what_two_pieces_have_in_common_is_a_piece(one: Piece, other: Piece, both: Piece | None) -> None:
    assert common(one, other) == common(other, one) == both
