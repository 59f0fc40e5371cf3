"""A network of arcs with lower bounds, capacities, costs and a flow, and the paths along which the flow can still change. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

SOURCE, SINK = 0, 1
BACK = 0
"""The number of the arc from the sink to the source, which makes the flow a circulation."""
PLENTY = 1 << 40
"""The capacity of an arc that sets no limit."""


class Arc(NamedTuple):
    """An arc by its number, or its reverse."""

    number: int
    forward: bool


type Path = list[Arc]


class Network:
    """A network that can be changed. Nodes and arcs are numbered as they are added, so equal calls make equal networks."""

    def __init__(self) -> None:
        self.nodes = 2
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.lower: list[int] = []
        self.upper: list[int] = []
        self.costs: list[int] = []
        self.flow: list[int] = []
        self.around: list[list[tuple[int, int, bool]]] = [[], []]
        """Node -> its arcs: number, the node at the other end, and whether the arc begins at this node."""
        self.arc(SINK, SOURCE, PLENTY)

    def node(self) -> int:
        self.nodes += 1
        self.around.append([])
        return self.nodes - 1

    def arc(self, tail: int, head: int, upper: int, cost: int = 0, lower: int = 0) -> int:
        """Return the number of the new arc."""
        assert type(cost) is int, "costs are integers: others make the simplex method run for ever"
        index = len(self.tails)
        self.tails.append(tail)
        self.heads.append(head)
        self.lower.append(lower)
        self.upper.append(upper)
        self.costs.append(cost)
        self.flow.append(0)
        self.around[tail].append((index, head, True))
        self.around[head].append((index, tail, False))
        return index

    def spare(self, index: int, *, forward: bool) -> int:
        """Return how much more may flow along the arc, or how much less if not `forward`."""
        if not forward:
            return self.flow[index] - self.lower[index]
        return self.upper[index] - self.flow[index]

    def add(self, index: int, amount: int) -> None:
        self.flow[index] += amount

    def clear(self, index: int) -> None:
        """Take all flow off the arc."""
        self.add(index, -self.flow[index])

    def push(self, path: Path, amount: int = 1) -> None:
        """Add this amount of flow to each arc of the path, and take it off arcs that the path follows backwards."""
        for index, forward in path:
            self.add(index, amount if forward else -amount)

    def cost(self) -> int:
        return sum(cost * flow for cost, flow in zip(self.costs, self.flow, strict=True))

    def shortest(self, start: int, end: int, closed: Collection[int], reached: set[int]) -> Path | None:
        """Return the path with the fewest arcs along which more can flow, and which enters none of the nodes `closed`. If there is none,
        return None and add the nodes that can be reached to `reached`."""
        if start in closed:
            return None
        before: dict[int, Arc | None] = {start: None}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for index, neighbour, forward in self.around[node]:
                if neighbour in closed or self.spare(index, forward=forward) <= 0:
                    continue
                if neighbour not in before:
                    before[neighbour] = Arc(index, forward)
                    if neighbour == end:
                        return self._path(before, start, end)
                    queue.append(neighbour)
        reached.update(before)
        return None

    def room(self, path: Path) -> int:
        """Return how much more may flow along the path."""
        return min(self.spare(index, forward=forward) for index, forward in path)

    def cheapest(self, start: int, end: int) -> tuple[int, Path] | None:
        """Return the cost of the cheapest path, and the path. None if there is no path. This is Bellman and Ford's method, with a queue.
        Raises ValueError for a cycle of negative cost: the flow must be the cheapest for its amount."""
        costs: dict[int, int] = {start: 0}
        before: dict[int, Arc | None] = {start: None}
        arcs = {start: 0}
        queue, waiting = deque([start]), {start}
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            if arcs[node] > self.nodes:
                raise ValueError("a cycle of negative cost: the flow is not the cheapest for its amount")
            for index, neighbour, forward in self.around[node]:
                if self.spare(index, forward=forward) <= 0:
                    continue
                next_cost = costs[node] + (self.costs[index] if forward else -self.costs[index])
                if neighbour not in costs or next_cost < costs[neighbour]:
                    costs[neighbour] = next_cost
                    arcs[neighbour] = arcs[node] + 1
                    before[neighbour] = Arc(index, forward)
                    if neighbour not in waiting and neighbour != end:
                        waiting.add(neighbour)
                        queue.append(neighbour)
        return (costs[end], self._path(before, start, end)) if end in costs else None

    def _path(self, before: dict[int, Arc | None], start: int, end: int) -> Path:
        path: Path = []
        while end != start:
            arc = before[end]
            assert arc is not None
            path.append(arc)
            end = self.tails[arc.number] if arc.forward else self.heads[arc.number]
        return path[::-1]
