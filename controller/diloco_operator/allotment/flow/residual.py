"""A network of arcs with lower bounds, capacities, costs and a flow, and the paths along which the flow can still change. Pure.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
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


class State(NamedTuple):
    """Bounds and flow of a network."""

    lower: list[int]
    upper: list[int]
    flow: list[int]
    rooms: list[int]
    prices: list[int]


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
        self._rooms: list[int] = []
        """For groups of arcs that share room: what is left."""
        self._shared: dict[int, tuple[int, int]] = {}
        """Arc -> its group, and what one unit of flow takes of the room."""
        self._prices: list[int] = []
        """The prices of the nodes: no arc along which more can flow costs less than the price of its end is above that of its beginning.
        Empty: not known."""
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

    def share(self, room: int, sizes: Sequence[tuple[int, int]]) -> None:
        """Let these arcs share the room: `sizes` says what a unit of flow on each takes of it."""
        self._rooms.append(room)
        for arc, size in sizes:
            self._shared[arc] = (len(self._rooms) - 1, size)

    def keep_back(self, rooms: Mapping[int, int]) -> None:
        """Keep so much of the room of each of these arcs back, or give it again if it is negative."""
        for arc, room in rooms.items():
            self._rooms[self._shared[arc][0]] -= room

    def room_shared(self, arc: int) -> int:
        """Return how much is left of the room that the arc shares with others; plenty if it shares none."""
        return self._rooms[self._shared[arc][0]] if arc in self._shared else PLENTY

    def shares(self, arc: int) -> bool:
        """Return whether it shares room with others."""
        return arc in self._shared

    def unshare(self) -> None:
        """Let each arc have its own capacity alone from now on."""
        self._rooms.clear()
        self._shared.clear()

    def spare(self, index: int, *, forward: bool) -> int:
        """Return how much more may flow along the arc, or against it."""
        if not forward:
            return self.flow[index] - self.lower[index]
        spare = self.upper[index] - self.flow[index]
        if (shared := self._shared.get(index)) is not None:
            return min(spare, self._rooms[shared[0]] // shared[1])
        return spare

    def add(self, index: int, amount: int) -> None:
        """Let so much more flow along the arc."""
        self.flow[index] += amount
        if (shared := self._shared.get(index)) is not None:
            self._rooms[shared[0]] -= amount * shared[1]

    def clear(self, index: int) -> None:
        """Let nothing flow along the arc."""
        self.add(index, -self.flow[index])

    def push(self, path: Path, amount: int = 1) -> None:
        """Let so much more flow along the path."""
        for index, forward in path:
            self.add(index, amount if forward else -amount)

    def state(self) -> State:
        """Return bounds and flow as they are."""
        return State(list(self.lower), list(self.upper), list(self.flow), list(self._rooms), list(self._prices))

    def restore(self, state: State) -> None:
        self.lower, self.upper, self.flow, self._rooms, self._prices = (list(each) for each in state)

    def cost(self) -> int:
        """Return the cost of all that flows."""
        return sum(cost * flow for cost, flow in zip(self.costs, self.flow, strict=True))

    def shortest(self, start: int, end: int, closed: Collection[int], reached: set[int]) -> Path | None:
        """Return a path with the fewest arcs along which something can flow; where arcs share room, one that takes the least of it.
        `closed`: nodes that it must not enter. None: there is none; then the nodes that can be reached are added to `reached`."""
        if start in closed:
            return None
        before: dict[int, Arc | None] = {start: None}
        queue = deque([start])
        least = 0
        while queue:
            here = queue.popleft()
            for index, there, forward in self.around[here]:
                if there in closed or self.spare(index, forward=forward) <= 0:
                    continue
                if there == end:
                    takes = self._shared[index][1] if index in self._shared else 1
                    if end not in before or takes < least:
                        before[end], least = Arc(index, forward), takes
                    if least == 1 or not self._shared:
                        return self._path(before, start, end)
                elif there not in before:
                    before[there] = Arc(index, forward)
                    queue.append(there)
        if end in before:
            return self._path(before, start, end)
        reached.update(before)
        return None

    def room(self, path: Path) -> int:
        """Return how much more may flow along it."""
        return min(self.spare(index, forward=forward) for index, forward in path)

    def price(self) -> None:
        """Find prices for the flow, which must be the cheapest for its amount. They make `cheapest` fast, and it keeps them. Bounds may
        then become narrower, and an arc wider if the next path that is asked for is from its end to its beginning."""
        costs, _ = self.distances(*range(self.nodes))
        self._prices = [costs[node] for node in range(self.nodes)]

    def forget_prices(self) -> None:
        """Forget the prices, because bounds or the flow change in other ways."""
        self._prices = []

    def cheapest(self, start: int, end: int) -> tuple[int, Path] | None:
        """Return the cost of the cheapest path, and the path. There must be no cycle of negative cost, so the flow must be optimal for its
        amount. None: there is no path. By prices (Dijkstra), or without them (Bellman and Ford)."""
        costs, before = self._by_prices(start, end) if self._prices else self.distances(start, end=end)
        return (costs[end], self._path(before, start, end)) if end in costs else None

    def _by_prices(self, start: int, end: int) -> tuple[dict[int, int], dict[int, Arc | None]]:
        """Return the cost of the cheapest path to the end, and to nodes on the way. Lowers the prices of nodes that are nearer than the
        end."""
        prices = self._prices
        above: dict[int, int] = {start: 0}
        before: dict[int, Arc | None] = {start: None}
        done: dict[int, int] = {}
        queue = [(0, start)]
        while queue:
            cost, here = heapq.heappop(queue)
            if here in done:
                continue
            done[here] = cost
            if here == end:
                break
            for index, there, forward in self.around[here]:
                if there in done or self.spare(index, forward=forward) <= 0:
                    continue
                next_cost = cost + (self.costs[index] if forward else -self.costs[index]) + prices[here] - prices[there]
                if there not in above or next_cost < above[there]:
                    above[there] = next_cost
                    before[there] = Arc(index, forward)
                    heapq.heappush(queue, (next_cost, there))
        costs = {node: cost + prices[node] - prices[start] for node, cost in done.items()}
        farthest = done[end] if end in done else max(done.values()) + max(prices) - min(prices) + max(map(abs, self.costs))
        for node, cost in done.items():
            prices[node] -= farthest - cost
        return costs, before

    def distances(self, *starts: int, end: int = -1, towards: bool = False) -> tuple[dict[int, int], dict[int, Arc | None]]:
        """Return the cost of the cheapest path to each node from one of the starts, and its last arc. No path goes on behind `end`.
        `towards`: from each node to a start, in place of from a start. Bellman and Ford, with a queue."""
        costs: dict[int, int] = dict.fromkeys(starts, 0)
        before: dict[int, Arc | None] = dict.fromkeys(starts)
        arcs = dict.fromkeys(starts, 0)
        queue, waiting = deque(starts), set(starts)
        while queue:
            here = queue.popleft()
            waiting.discard(here)
            cost = costs[here]
            if arcs[here] > self.nodes:
                raise ValueError("a cycle of negative cost: the flow is not the cheapest for its amount")
            for index, there, begins in self.around[here]:
                forward = begins is not towards
                if self.spare(index, forward=forward) <= 0:
                    continue
                next_cost = cost + (self.costs[index] if forward else -self.costs[index])
                if there not in costs or next_cost < costs[there]:
                    costs[there] = next_cost
                    arcs[there] = arcs[here] + 1
                    before[there] = Arc(index, forward)
                    if there not in waiting and there != end:
                        waiting.add(there)
                        queue.append(there)
        return costs, before

    def _path(self, before: dict[int, Arc | None], start: int, end: int) -> Path:
        path: Path = []
        while end != start:
            arc = before[end]
            assert arc is not None
            path.append(arc)
            end = self.tails[arc.number] if arc.forward else self.heads[arc.number]
        return path[::-1]
