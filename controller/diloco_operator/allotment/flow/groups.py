"""Classes whose hosts units of several sizes share: how many hosts are for which size. Pure.

With the hosts divided between the sizes the problem is a flow, so the search is over divisions. It has three beginnings: what a flow
without the common limit would take is cut down to what there is, the least valuable for each host first, in proportion, or the smallest
units first. From each, hosts go from one size to another as long as that is worth more than it costs. Each such step
changes the flow along a few cheapest paths, so the flow stays the best for its division.

See docs/decisions/0219-groups-in-the-flow.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx

from diloco_operator.allotment.flow.model import Model, Size
from diloco_operator.allotment.flow.residual import SINK, Arc, Network, State
from diloco_operator.allotment.flow.simplex import cheapest_flow

STEPS = 400
"""At most so many steps are tried. A problem that needs more keeps a division that may be a little worse."""
type Division = dict[Size, int]
"""Size -> units that have room."""
type Order = list[tuple[Size, int]]
"""Sizes, and how many units of each should have room."""


@dataclass(frozen=True, slots=True)
class MixedClass:
    """A class that units of several sizes use."""

    name: str
    room: int
    needed: Division
    """What the minima take."""
    sinks: dict[Size, int]


def mixed_classes(model: Model) -> list[MixedClass]:
    """While the model's flow is that of the minima."""
    found = []
    for class_ in model.classes:
        sinks = {size: arc for (name, size), arc in model.sinks.items() if name == class_.name}
        if len(sinks) > 1:
            needed = {size: model.network.flow[arc] for size, arc in sinks.items()}
            found.append(MixedClass(class_.name, class_.room, needed, sinks))
    return found


def best_division(model: Model, mixed: list[MixedClass]) -> None:
    """Leave the best flow that was found in the model."""
    network = model.network
    network.unshare()
    cheapest_flow(network)
    wished = {class_.name: {size: network.flow[arc] for size, arc in class_.sinks.items()} for class_ in mixed}
    if all(sum(size * units for size, units in wished[class_.name].items()) <= class_.room for class_ in mixed):
        for class_ in mixed:
            _divide(network, class_, wished[class_.name])
        return
    worth = {class_.name: _worth(model, class_) for class_ in mixed}
    best: tuple[int, State] | None = None
    tried: set[tuple[int, ...]] = set()
    left = STEPS
    for cut in (_by_density, _in_proportion, _groups_first):
        _begin(network, mixed, [cut(class_, wished[class_.name], worth[class_.name]) for class_ in mixed], wished)
        division = tuple(network.upper[arc] for class_ in mixed for arc in class_.sinks.values())
        if division not in tried:
            left = _improve(network, mixed, left)
            if best is None or network.cost() < best[0]:
                best = network.cost(), network.state()
        tried.add(division)
    assert best is not None
    network.restore(best[1])


def _begin(network: Network, mixed: list[MixedClass], orders: list[Order], wished: dict[str, Division]) -> None:
    """The best flow for a division in these orders. It begins with what the minima took if they need more of a size than it would have."""
    try:
        for class_, order in zip(mixed, orders, strict=True):
            _divide(network, class_, _cut(class_, {}, wished[class_.name], order))
        cheapest_flow(network)
    except networkx.NetworkXUnfeasible:
        for class_, order in zip(mixed, orders, strict=True):
            _divide(network, class_, _cut(class_, class_.needed, wished[class_.name], order))
        cheapest_flow(network)


def _divide(network: Network, class_: MixedClass, division: Division) -> None:
    for size, arc in class_.sinks.items():
        network.upper[arc] = division[size]


# --- beginnings ------------------------------------------------------------------------------------------------------------------
def _worth(model: Model, class_: MixedClass) -> dict[Size, float]:
    """The best value of one unit of each size, for each of its hosts."""
    network = model.network
    found = dict.fromkeys(class_.sinks, 0.0)
    for (_, hub, lane), arc in model.taken.items():
        size = lane[0]
        if class_.name in model.choices[hub, lane]:
            found[size] = max(found[size], -network.costs[arc] / size)
    for (_, name), arc in model.kept.items():
        if name == class_.name:
            size = next(size for size, sink in class_.sinks.items() if network.tails[sink] == network.heads[arc])
            found[size] = max(found[size], -network.costs[arc] / size)
    return found


def _by_density(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    return [(size, wished[size]) for size in sorted(class_.sinks, key=lambda size: (-worth[size], -size))]


def _in_proportion(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    asked = sum(size * units for size, units in wished.items())
    return [(size, wished[size] * class_.room // max(asked, 1)) for size in sorted(class_.sinks, reverse=True)]


def _groups_first(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    return [(size, wished[size]) for size in sorted(class_.sinks, reverse=True)]


def _cut(class_: MixedClass, first: Division, wished: Division, order: Order) -> Division:
    """What comes first, then what the order says, then what else is wished, and what is left to the largest that fit."""
    division = {size: first.get(size, 0) for size in class_.sinks}
    left = class_.room - sum(size * units for size, units in division.items())
    rounds = (order, [(size, wished[size]) for size, _ in order], [(size, class_.room) for size in sorted(wished, reverse=True)])
    for each in rounds:
        for size, units in each:
            more = min(max(0, units - division[size]), left // size)
            division[size] += more
            left -= more * size
    return division


# --- steps ------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Step:
    """Hosts of a class go from one size to another."""

    class_: MixedClass
    giver: Size
    gives: int
    taker: Size
    takes: int


def _improve(network: Network, mixed: list[MixedClass], left: int) -> int:
    """Take the step that promises most, as long as one gains something. At most so many are tried; returns how many are left."""
    network.price()
    improved = True
    while improved:
        improved = False
        for step in _steps(network, mixed):
            while left:  # what gained once often gains again
                left -= 1
                before, cost = network.state(), network.cost()
                if not _take(network, step) or network.cost() >= cost:
                    network.restore(before)
                    break
                improved = True
            if improved or not left:
                break
    return left


def _steps(network: Network, mixed: list[MixedClass]) -> list[_Step]:
    """Those that promise something, the best first: what the first unit of the size that takes would add, less what the first of the size
    that gives would lose."""
    gains, losses = network.distances(SINK)[0], network.distances(SINK, towards=True)[0]
    found: list[tuple[int, str, Size, Size, _Step]] = []
    for class_ in mixed:
        left = class_.room - sum(size * network.upper[arc] for size, arc in class_.sinks.items())
        for giver, giving in class_.sinks.items():
            idle = network.upper[giving] - network.flow[giving]
            for taker, taking in class_.sinks.items():
                gain = -gains.get(network.tails[taking], 0)
                gives = max(1, -((left - taker) // giver)) if taker > left else 0
                takes = (gives * giver + left) // taker
                loss = losses.get(network.tails[giving])
                if taker == giver or gain <= 0 or not gives or gives > network.upper[giving]:
                    continue
                promise = takes * gain - max(0, gives - idle) * (loss or 0)  # None: it goes once the other has come
                if promise > 0:
                    found.append((-promise, class_.name, giver, taker, _Step(class_, giver, gives, taker, takes)))
    return [each[-1] for each in sorted(found, key=lambda each: each[:-1])]


def _take(network: Network, step: _Step) -> bool:
    """The flow stays the cheapest for the division. False: the minima do not allow it."""
    giving, taking = step.class_.sinks[step.giver], step.class_.sinks[step.taker]
    if step.gives > network.upper[giving]:
        return False
    for _ in range(step.takes):
        network.upper[taking] += 1
        found = network.cheapest(SINK, network.tails[taking])
        if found is not None and found[0] < 0:
            network.push([*found[1], Arc(taking, forward=True)])
    for _ in range(step.gives):
        network.upper[giving] -= 1
        if network.flow[giving] > network.upper[giving]:
            network.add(giving, -1)
            found = network.cheapest(network.tails[giving], SINK)
            if found is None:
                return False
            network.push(found[1])
    return True
