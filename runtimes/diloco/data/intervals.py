"""Sets of integers as sorted, disjoint, merged half-open intervals.

See docs/decisions/0003-sessions-and-work.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""[start, end)"""


class IntervalSet:
    """A mutable set of integers. Its size in memory grows with the number of its gaps."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    @property
    def count(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Add [start, end). Some of it may be in the set already."""
        if start >= end:
            return
        # [first, last) are the intervals that overlap or touch [start, end): they become one with it.
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end). Some of it may be missing from the set."""
        if start >= end:
            return
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if first >= last:
            return
        kept = [(self._starts[first], start), (end, self._ends[last - 1])]
        kept = [(a, b) for a, b in kept if a < b]
        self._starts[first:last] = [a for a, _ in kept]
        self._ends[first:last] = [b for _, b in kept]

    def overlap(self, start: int, end: int) -> list[Range]:
        """The parts of [start, end) that are in the set, in order."""
        inside = range(bisect_right(self._ends, start), bisect_left(self._starts, end))
        return [(max(start, self._starts[i]), min(end, self._ends[i])) for i in inside]

    def gaps(self, start: int, end: int) -> list[Range]:
        """The parts of [start, end) that are not in the set, in order."""
        gaps, at = [], start
        for a, b in self.overlap(start, end):
            if at < a:
                gaps.append((at, a))
            at = b
        if at < end:
            gaps.append((at, end))
        return gaps

    def take(self, n: int) -> Range | None:
        """Remove and return up to n consecutive integers from the lowest one on. None if the set is empty."""
        if not self._starts:
            return None
        start = self._starts[0]
        end = min(self._ends[0], start + n)
        self.remove(start, end)
        return start, end
