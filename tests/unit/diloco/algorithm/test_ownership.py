"""Who owns what of that which several ranks hold."""

from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.ownership import divide
from diloco.algorithm.pieces import Piece, check_cover, whole

SPECS = [TensorSpec("matrix", (7, 4)), TensorSpec("scalar", ()), TensorSpec("vector", (3,))]


def owned(groups: list, ranks: int) -> list[list[Piece]]:  # type: ignore[type-arg]
    return [[piece for group in groups for piece in group.of(rank)] for rank in range(ranks)]


def test_what_every_rank_holds_is_dealt_out_evenly() -> None:
    groups = divide([[whole(spec) for spec in SPECS]] * 3)
    assert [group.ranks for group in groups] == [(0, 1, 2)]
    check_cover(Layout(SPECS), owned(groups, 3))
    # 7 rows of 4, 3 elements and 1: 32 in all, of which a row more or less is the most that ranks differ by
    assert sorted(sum(piece.elements for piece in pieces) for pieces in owned(groups, 3)) == [9, 10, 13]


def test_replicas_of_a_shard_share_it_and_what_one_rank_alone_holds_is_its_own() -> None:
    upper, lower = Piece("matrix", (0, 0), (4, 4)), Piece("matrix", (4, 0), (3, 4))
    held = [[upper], [lower, Piece("vector", (0,), (3,))], [upper], [lower, Piece("scalar", (), ())]]
    groups = divide(held)
    assert [group.ranks for group in groups] == [(0, 2), (1,), (1, 3), (3,)]
    check_cover(Layout(SPECS), owned(groups, 4))
    # 4 and 3 rows are the longest axes of neither cut: 4 columns of both, two for each replica of the lower part
    assert groups[0].of(2) == (Piece("matrix", (2, 0), (2, 4)),)
    assert groups[2].of(3) == (Piece("matrix", (4, 2), (3, 2)),)
    assert groups[2].of(0) == ()
