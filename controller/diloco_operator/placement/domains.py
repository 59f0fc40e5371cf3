"""Where free slices are near to each other: a unit of several hosts gets them from one domain. Pure.

See docs/decisions/0043-placement.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from diloco_operator.api.job import Locality
from diloco_operator.fleet.locality import Domain
from diloco_operator.fleet.slices import Slice

DEPTH = {Locality.ANY: 0, Locality.ZONE: 1, Locality.BLOCK: 2}
"""Length of the domain that all hosts of a unit must share."""


class Candidates:
    """Free slices that fit, read only as far as needed."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._more = iter(slices)
        self.seen: list[Slice] = []
        self.cursor = 0
        """All slices before this index are taken."""

    def untaken(self, taken: Container[str], start: int) -> Iterator[tuple[int, Slice]]:
        """Slices that no unit has taken, from this index on, with their indexes."""
        index = start
        while True:
            if index == len(self.seen):
                following = next(self._more, None)
                if following is None:
                    return
                self.seen.append(following)
            if self.seen[index].key not in taken:
                yield index, self.seen[index]
            index += 1

    def take(self, taken: Container[str], count: int) -> list[Slice]:
        """The first slices that no unit has taken, at most `count`; the caller takes all of them."""
        found: list[Slice] = []
        for index, slice_ in self.untaken(taken, self.cursor):
            if not found:
                self.cursor = index
            found.append(slice_)
            if len(found) == count:
                break
        return found


class DomainRooms:
    """The free slices that fit one set of requirements, by domain, and how many of them no unit has taken yet."""

    def __init__(self, slices: Iterable[Slice], taken: Container[str], locality: Locality) -> None:
        self._depth = DEPTH[locality]
        self._paths: dict[str, Domain] = {}
        """First node of a slice -> its nearest domain. Within a network block, or a zone without blocks, a node pool is one more domain."""
        found: dict[Domain, list[Slice]] = {}
        self._left: Counter[Domain] = Counter()
        """Of each domain, slices that no unit has taken."""
        for slice_ in slices:
            node = slice_.hosts[0].node
            self._paths[node] = path = (*slice_.locality, f"pool {slice_.node_pool}")
            for domain in self._around(path):
                found.setdefault(domain, []).append(slice_)
                self._left[domain] += node not in taken
        self._slices = found
        self.candidates = {domain: Candidates(slices) for domain, slices in found.items()}

    def _around(self, path: Domain) -> Iterator[Domain]:
        """The domains of the depth that is needed, and nearer, that contain the host of this path."""
        return (path[:depth] for depth in range(self._depth, len(path) + 1))

    def count(self, node: str, change: int) -> None:
        """The slice that begins with this node was taken (-1) or released (1)."""
        path = self._paths.get(node)
        if path is not None:
            for domain in self._around(path):
                self._left[domain] += change

    def nearest(self, slots: int) -> Domain | None:
        """The nearest domain with room for a unit of so many slices, of several the one with the least room: what is large stays large.
        None: no domain of the depth that is needed has room."""
        return min((d for d, left in self._left.items() if left >= slots), key=lambda d: (-len(d), self._left[d]), default=None)

    def required(self, domain: Domain) -> Domain:
        """The part of a domain that all slices of a unit must share."""
        return domain[: self._depth]

    def widest(self, slots: int) -> list[Domain]:
        """Domains of the depth that is needed that would have room if no unit of this round were there; the one with most room first."""
        return sorted(
            (d for d, slices in self._slices.items() if len(d) == self._depth and len(slices) >= slots), key=lambda d: -self._left[d]
        )

    def left(self) -> dict[Domain, int]:
        """Slices that no unit has taken, of each domain of the depth that is needed; the one with most first."""
        return {d: left for d, left in self._left.most_common() if len(d) == self._depth and left}

    def slices_in(self, domain: Domain) -> list[Slice]:
        """All of them, taken or not."""
        return self._slices.get(domain, [])
