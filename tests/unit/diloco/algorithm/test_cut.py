"""A coded fragment cut for the ranks of a unit: every rank adopts, bit for bit, what a whole unit does."""

import numpy as np
import pytest
from diloco.algorithm import cut as cutting
from diloco.algorithm.codec import CodecError, Coding, NonFiniteError, encode, payload_bytes, value_of
from diloco.algorithm.cut import cut, cut_bytes, value_of_cut
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, Portion, deal, portion, whole
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

shapes = st.lists(st.integers(1, 40), max_size=3).map(tuple)


@st.composite
def shardings(draw: st.DrawFn) -> list[Portion]:
    """The portions of one fragment of 1 to 4 ranks, cut at any place of any axis."""
    layout = Layout(TensorSpec(f"t{i}", shape) for i, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=3))))
    owned: list[list[Piece]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for spec in layout.tensors:
        pieces = [whole(spec)]
        for _ in range(draw(st.integers(0, 4))):
            piece = pieces.pop(0)
            axes = [axis for axis, size in enumerate(piece.size) if size > 1]
            axis = draw(st.sampled_from(axes)) if axes else None
            if axis is None:
                pieces.append(piece)
                continue
            at = draw(st.integers(1, piece.size[axis] - 1))
            for start, size in ((piece.start[axis], at), (piece.start[axis] + at, piece.size[axis] - at)):
                starts, sizes = list(piece.start), list(piece.size)
                starts[axis], sizes[axis] = start, size
                pieces.append(Piece(spec.name, tuple(starts), tuple(sizes)))
        for piece in pieces:
            draw(st.sampled_from(owned)).append(piece)
    (fragment,) = make_fragments(layout, 1)
    return [portion(fragment, pieces) for pieces in owned]


def normal(n: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("coding", list(Coding))
@given(portions=shardings())
def test_what_all_ranks_adopt_is_bit_for_bit_what_a_whole_unit_adopts(coding: Coding, portions: list[Portion]) -> None:
    n = portions[0].fragment.size
    base, payload = normal(n, 1), encode(coding, normal(n, 2))
    adopted = np.full(n, np.nan, np.float32)
    for each in portions:
        part = cut(coding, payload, each)
        assert len(part) == cut_bytes(coding, each)
        each.place(value_of_cut(coding, part, each, each.cut(base)), adopted)
    assert adopted.tobytes() == value_of(coding, payload, base).tobytes()


@pytest.mark.parametrize("coding", list(Coding))
def test_the_cut_of_a_rank_that_owns_all_is_the_payload(coding: Coding) -> None:
    (fragment,) = make_fragments(layout := Layout([TensorSpec("a", (7, 9)), TensorSpec("b", (1001,))]), 1)
    payload = encode(coding, normal(fragment.size, 3))
    assert bytes(cut(coding, payload, portion(fragment, map(whole, layout.tensors)))) == bytes(payload)


@pytest.mark.parametrize("coding", list(Coding))
def test_a_rank_that_owns_nothing_of_a_fragment_gets_nothing(coding: Coding) -> None:
    (fragment,) = make_fragments(Layout([TensorSpec("a", (300,))]), 1)
    nothing = portion(fragment, [])
    part = cut(coding, encode(coding, normal(300, 4)), nothing)
    assert (len(part), cut_bytes(coding, nothing)) == (0, 0)
    assert value_of_cut(coding, part, nothing, np.empty(0, np.float32)).size == 0


def test_an_int4_cut_by_hand() -> None:
    # 300 values in two blocks. Block 0 has 7 first: scale 1, levels are the values. Block 1 has 14 first: scale 2, levels are half of them.
    values = np.zeros(300, np.float32)
    values[[0, 255, 256, 257]] = 7, 3, 14, -6
    (fragment,) = make_fragments(Layout([TensorSpec("a", (300,))]), 1)
    payload = encode(Coding.INT4_DELTA, values)
    # elements 255 to 257 touch both blocks; levels 3, 7, -3 stored + 8 as 11, 15, 5: two to a byte, the first in the low half
    middle = portion(fragment, [Piece("a", (255,), (3,))])
    assert bytes(cut(Coding.INT4_DELTA, payload, middle)) == np.array([1, 2], "<f4").tobytes() + bytes([11 | 15 << 4, 5])
    # the last two touch the second block only, and begin in the high half of a byte
    last = portion(fragment, [Piece("a", (257,), (2,))])
    assert bytes(cut(Coding.INT4_DELTA, payload, last)) == np.array([2], "<f4").tobytes() + bytes([5 | 8 << 4])


def test_pieces_of_many_runs_are_listed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_MOST_RUNS", 5)
    (fragment,) = make_fragments(Layout([TensorSpec("a", (3, 11, 4))]), 1)
    base, payload = normal(fragment.size, 5), encode(Coding.INT4_DELTA, normal(fragment.size, 6))
    # 3 x 7 runs of one element, in parts of 5
    column = portion(fragment, [Piece("a", (0, 2, 3), (3, 7, 1))])
    value = value_of_cut(Coding.INT4_DELTA, cut(Coding.INT4_DELTA, payload, column), column, column.cut(base))
    assert value.tobytes() == column.cut(value_of(Coding.INT4_DELTA, payload, base)).tobytes()


def test_cuts_cost_nothing_where_ranks_meet_at_blocks() -> None:
    # 64 x 1024 values over 4 ranks, by rows and by columns: both meet at multiples of 256.
    spec = TensorSpec("a", (64, 1024))
    (fragment,) = make_fragments(Layout([spec]), 1)
    columns = [[Piece("a", (0, 256 * rank), (64, 256))] for rank in range(4)]
    for owned in (deal([spec], 4), columns):
        for coding in Coding:
            assert sum(cut_bytes(coding, portion(fragment, pieces)) for pieces in owned) == payload_bytes(coding, fragment.size)


def test_what_does_not_fit_the_portion_is_refused() -> None:
    (fragment,) = make_fragments(Layout([TensorSpec("a", (300,))]), 1)
    half = portion(fragment, [Piece("a", (0,), (150,))])
    payload = encode(Coding.INT4_DELTA, normal(300, 7))
    with pytest.raises(CodecError, match="has 157 bytes, 300 values in INT4_DELTA have 158"):
        cut(Coding.INT4_DELTA, payload[1:], half)
    part = bytes(cut(Coding.INT4_DELTA, payload, half))
    with pytest.raises(CodecError, match="has 78 bytes, 150 values in 1 block of INT4_DELTA have 79"):
        value_of_cut(Coding.INT4_DELTA, part[1:], half, np.zeros(150, np.float32))
    with pytest.raises(CodecError, match=r"has 150 values, its base the shape \(300,\)"):
        value_of_cut(Coding.INT4_DELTA, part, half, np.zeros(300, np.float32))
    with pytest.raises(NonFiniteError, match="payload holds NaN"):
        value_of_cut(Coding.INT4_DELTA, np.float32(np.nan).tobytes() + part[4:], half, np.zeros(150, np.float32))
    with pytest.raises(NonFiniteError, match="what they give is not"):
        value_of_cut(Coding.INT4_DELTA, np.float32(1e38).tobytes() + part[4:], half, np.full(150, 3e38, np.float32))
