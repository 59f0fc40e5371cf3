"""Interval sets against plain sets."""

import itertools
from collections.abc import Iterable

from diloco.data.intervals import IntervalSet, Range
from hypothesis import given
from hypothesis import strategies as st

type Change = tuple[str, Range]

ranges = st.tuples(st.integers(0, 40), st.integers(0, 40))
changes = st.lists(st.tuples(st.sampled_from(["add", "remove"]), ranges), max_size=30)


def both(changes: list[Change]) -> tuple[IntervalSet, set[int]]:
    intervals = IntervalSet()
    plain: set[int] = set()
    for what, (start, end) in changes:
        if what == "add":
            intervals.add(start, end)
            plain |= set(range(start, end))
        else:
            intervals.remove(start, end)
            plain -= set(range(start, end))
    return intervals, plain


def members(ranges: Iterable[Range]) -> set[int]:
    return {n for start, end in ranges for n in range(start, end)}


@given(changes)
def test_holds_what_a_set_holds_in_as_few_intervals_as_possible(changes: list[Change]) -> None:
    intervals, plain = both(changes)
    assert members(intervals) == plain
    assert intervals.count == len(plain)
    assert bool(intervals) == bool(plain)
    kept = list(intervals)
    assert all(a < b for a, b in kept)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(kept))  # touching ones are one


@given(changes, ranges)
def test_overlap_and_gaps_share_out_a_range(changes: list[Change], asked: Range) -> None:
    intervals, plain = both(changes)
    assert members(intervals.overlap(*asked)) == set(range(*asked)) & plain
    assert members(intervals.gaps(*asked)) == set(range(*asked)) - plain


@given(changes, st.integers(1, 10))
def test_take_removes_the_lowest_that_lie_together(changes: list[Change], n: int) -> None:
    intervals, plain = both(changes)
    taken = intervals.take(n)
    if not plain:
        assert taken is None
    else:
        assert taken is not None
        start, end = taken
        assert start == min(plain)
        assert set(range(start, end)) <= plain
        assert end - start == n or end not in plain
        assert members(intervals) == plain - set(range(start, end))
