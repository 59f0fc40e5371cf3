"""A network of arcs with lower bounds, capacities, costs and a flow, and the paths along which the flow can still change. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

SOURCE, SINK = 0, 1
BACK = 0
"""The arc from the sink to the source, which closes the circle of what flows."""
PLENTY = 1 << 40
"""The capacity of an arc that sets no limit."""


class Arc(NamedTuple):
    """An arc by its number, or its reverse."""

    number: int
    forward: bool


type Path = list[Arc]


class Network:
    """Mutable. Nodes and arcs have numbers in the order in which they come, so equal calls make equal networks."""

    def __init__(self) -> None:
        self.nodes = 2
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.lower: list[int] = []
        self.upper: list[int] = []
        self.costs: list[int] = []
        self.flow: list[int] = []
        self.around: list[list[tuple[int, int, bool]]] = [[], []]
        """Node -> arc, other end, and whether the arc begins here."""
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
        """Return how much more may flow along the arc, or against it."""
        if not forward:
            return self.flow[index] - self.lower[index]
        return self.upper[index] - self.flow[index]

    def add(self, index: int, amount: int) -> None:
        """Let so much more flow along the arc."""
        self.flow[index] += amount

    def clear(self, index: int) -> None:
        """Let nothing flow along the arc."""
        self.add(index, -self.flow[index])

    def push(self, path: Path, amount: int = 1) -> None:
        """Let so much more flow along the path."""
        for index, forward in path:
            self.add(index, amount if forward else -amount)

    def cost(self) -> int:
        """Return the cost of all that flows."""
        return sum(cost * flow for cost, flow in zip(self.costs, self.flow, strict=True))

    def shortest(self, start: int, end: int, closed: Collection[int], reached: set[int]) -> Path | None:
        """Return a path with the fewest arcs along which something can flow. `closed`: nodes that it must not enter. None: there is
        none; then the nodes that can be reached are added to `reached`."""
        if start in closed:
            return None
        before: dict[int, Arc | None] = {start: None}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            for index, there, forward in self.around[here]:
                if there in closed or self.spare(index, forward=forward) <= 0:
                    continue
                if there not in before:
                    before[there] = Arc(index, forward)
                    if there == end:
                        return self._path(before, start, end)
                    queue.append(there)
        reached.update(before)
        return None

    def room(self, path: Path) -> int:
        """Return how much more may flow along it."""
        return min(self.spare(index, forward=forward) for index, forward in path)

    def cheapest(self, start: int, end: int) -> tuple[int, Path] | None:
        """Return the cost of the cheapest path, and the path. There must be no cycle of negative cost, so the flow must be optimal for its
        amount. None: there is no path. Bellman and Ford, with a queue."""
        costs: dict[int, int] = {start: 0}
        before: dict[int, Arc | None] = {start: None}
        arcs = {start: 0}
        queue, waiting = deque([start]), {start}
        while queue:
            here = queue.popleft()
            waiting.discard(here)
            if arcs[here] > self.nodes:
                raise ValueError("a cycle of negative cost: the flow is not the cheapest for its amount")
            for index, there, forward in self.around[here]:
                if self.spare(index, forward=forward) <= 0:
                    continue
                next_cost = costs[here] + (self.costs[index] if forward else -self.costs[index])
                if there not in costs or next_cost < costs[there]:
                    costs[there] = next_cost
                    arcs[there] = arcs[here] + 1
                    before[there] = Arc(index, forward)
                    if there not in waiting and there != end:
                        waiting.add(there)
                        queue.append(there)
        return (costs[end], self._path(before, start, end)) if end in costs else None

    def _path(self, before: dict[int, Arc | None], start: int, end: int) -> Path:
        path: Path = []
        while end != start:
            arc = before[end]
            assert arc is not None
            path.append(arc)
            end = self.tails[arc.number] if arc.forward else self.heads[arc.number]
        return path[::-1]
