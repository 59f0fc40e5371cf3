"""The cheapest flow in a network with lower bounds, by networkx's network simplex method. Pure.

Nodes that limit nothing are removed first, because the method's time grows faster than the number of nodes.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx

from diloco_operator.allotment.flow.residual import SINK, SOURCE, Network


def cheapest_flow(network: Network) -> None:
    """Put into the network the cheapest flow from source to sink, of whatever amount. Raises `networkx.NetworkXUnfeasible` if no flow keeps
    the lower bounds."""
    small = _Small(network)
    small.contract()
    for index in range(len(network.tails)):
        network.clear(index)
    for arc, units in small.flow():
        for index in arc.through:
            network.add(index, units)


@dataclass(slots=True, eq=False)
class _Arc:
    tail: int
    head: int
    lower: int
    upper: int
    cost: int
    through: list[int]
    """The arcs of the network that this one stands for: what flows here flows through each of them."""


class _Small:
    """A network with fewer nodes and the same flows."""

    def __init__(self, network: Network) -> None:
        reached = _reached(network)
        self._out: dict[int, dict[_Arc, None]] = {node: {} for node in sorted(reached)}
        self._in: dict[int, dict[_Arc, None]] = {node: {} for node in sorted(reached)}
        for index, (tail, head, upper) in enumerate(zip(network.tails, network.heads, network.upper, strict=True)):
            if upper and tail in reached:
                arc = _Arc(tail, head, network.lower[index], upper, network.costs[index], [index])
                self._out[tail][arc] = self._in[head][arc] = None

    def contract(self) -> None:
        """Remove each node that has a single arc on one side, if this arc lets through all that the arcs on the other side do."""
        again = True
        while again:
            again = False
            for node in list(self._out):
                if len(self._in[node]) == 1:
                    again |= self._merge(node, next(iter(self._in[node])), list(self._out[node]), into_tail=True)
                elif len(self._out[node]) == 1:
                    again |= self._merge(node, next(iter(self._out[node])), list(self._in[node]), into_tail=False)

    def _merge(self, node: int, single: _Arc, others: list[_Arc], *, into_tail: bool) -> bool:
        """Remove the node, and lengthen the `others` by its single arc. False if that arc limits them."""
        if single.tail == single.head or single.upper < sum(arc.upper for arc in others) or single.lower > sum(arc.lower for arc in others):
            return False
        end = single.tail if into_tail else single.head
        del self._out[single.tail][single], self._in[single.head][single]
        for arc in others:
            arc.cost += single.cost
            arc.through += single.through
            if into_tail:
                arc.tail = end
                self._out[end][arc] = None
            else:
                arc.head = end
                self._in[end][arc] = None
        del self._out[node], self._in[node]
        return True

    def flow(self) -> Iterator[tuple[_Arc, int]]:
        """Yield each arc with the flow along it. An arc may come twice: its lower bound, and what flows beyond that."""
        arcs = [arc for group in self._out.values() for arc in group]
        balance = dict.fromkeys(self._out, 0)
        graph = networkx.MultiDiGraph()
        graph.add_nodes_from(balance)
        for index, arc in enumerate(arcs):
            balance[arc.tail] += arc.lower
            balance[arc.head] -= arc.lower
            if arc.lower:
                yield arc, arc.lower
            if arc.upper > arc.lower:
                graph.add_edge(arc.tail, arc.head, key=index, capacity=arc.upper - arc.lower, weight=arc.cost)
        networkx.set_node_attributes(graph, balance, "demand")
        _, flows = networkx.network_simplex(graph)
        for heads in flows.values():
            for group in heads.values():
                for index, units in group.items():
                    if units:
                        yield arcs[index], units


def _reached(network: Network) -> set[int]:
    """Return the nodes to which something can flow."""
    reached = {SOURCE, SINK}
    queue = [SOURCE]
    for node in queue:  # it grows meanwhile
        for index, neighbour, forward in network.around[node]:
            if forward and network.upper[index] and neighbour not in reached:
                reached.add(neighbour)
                queue.append(neighbour)
    return reached
