"""Classes whose hosts units of several sizes share: how many hosts are for which size. Pure.

With the hosts divided between the sizes the problem is a flow, so the search is over divisions. It has four beginnings: the division of
what units hold, so that nothing changes but for the better; and what a flow without the common limit would take is cut down to what there
is, the least valuable for each host first, in proportion, or the smallest units first. From each, hosts go from one size to another as long
as that is worth more than it costs. Each such step changes the flow along a few cheapest paths, so the flow stays the best for its
division.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import networkx

from diloco_operator.allotment.flow.model import Lane, Model, Size
from diloco_operator.allotment.flow.residual import SINK, Arc, Network, State
from diloco_operator.allotment.flow.simplex import cheapest_flow

STEPS = 400
"""At most so many steps are tried. A problem that needs more keeps a division that may be a little worse."""
type Division = dict[Size, int]
"""Size -> units that have room."""
type Share = tuple[Size, int]
"""A size, and units of it."""
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
    held: Division
    """What units hold."""


def mixed_classes(model: Model) -> list[MixedClass]:
    """Return the classes from which units of several sizes take, while the model's flow is that of the minima."""
    held: dict[str, Division] = {}
    for (pool, name), arc in model.kept.items():
        size = model.sizes[pool, name]
        here = held.setdefault(name, {})
        here[size] = here.get(size, 0) + model.network.upper[arc]
    found = []
    for class_, sinks in model.mixed():
        needed = {size: model.network.flow[arc] for size, arc in sinks.items()}
        found.append(MixedClass(class_.name, class_.room, needed, sinks, held.get(class_.name, {})))
    return found


def best_division(model: Model, mixed: list[MixedClass]) -> None:
    """Leave the best flow that was found in the model."""
    network = model.network
    # First without the common limit: if nothing exceeds it, this is the optimum, and the search is spared.
    network.unshare()
    cheapest_flow(network)
    wished = {class_.name: {size: network.flow[arc] for size, arc in class_.sinks.items()} for class_ in mixed}
    if all(sum(size * units for size, units in wished[class_.name].items()) <= class_.room for class_ in mixed):
        for class_ in mixed:
            _divide(network, class_, wished[class_.name])
        return
    worth = _worths(model, mixed)
    best: tuple[int, State] | None = None
    tried: set[tuple[int, ...]] = set()
    left = STEPS
    for cut in (_as_held, _by_density, _in_proportion, _groups_first):
        _begin(network, mixed, [cut(class_, wished[class_.name], worth[class_.name]) for class_ in mixed], wished)
        division = tuple(network.upper[arc] for class_ in mixed for arc in class_.sinks.values())
        # Two beginnings often are one division; the steps would be spent twice on it.
        if division not in tried:
            left = _improve(network, mixed, left)
            if best is None or network.cost() < best[0]:
                best = network.cost(), network.state()
        tried.add(division)
    assert best is not None
    network.restore(best[1])


def _begin(network: Network, mixed: list[MixedClass], orders: list[Order], wished: dict[str, Division]) -> None:
    """Find the best flow for a division in these orders. It begins with what the minima took if they need more of a size than it would
    have."""
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
def _worths(model: Model, mixed: list[MixedClass]) -> dict[str, dict[Size, float]]:
    """Return class -> size -> the best value of one unit, for each of its hosts."""
    costs = model.network.costs
    found = {class_.name: dict.fromkeys(class_.sinks, 0.0) for class_ in mixed}
    best: dict[tuple[str, Lane], float] = {}
    for (_, hub, lane), arc in model.taken.items():
        best[hub, lane] = max(best.get((hub, lane), 0.0), -costs[arc] / lane[0])
    for (hub, lane), worth in best.items():
        for name in model.choices[hub, lane]:
            if name in found:
                found[name][lane[0]] = max(found[name][lane[0]], worth)
    for (pool, name), arc in model.kept.items():
        if name in found:
            size = model.sizes[pool, name]
            found[name][size] = max(found[name][size], -costs[arc] / size)
    return found


def _as_held(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    return [*sorted(class_.held.items(), reverse=True), *_by_density(class_, wished, worth)]


def _by_density(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    return [(size, wished[size]) for size in sorted(class_.sinks, key=lambda size: (-worth[size], -size))]


def _in_proportion(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    asked = sum(size * units for size, units in wished.items())
    return [(size, wished[size] * class_.room // max(asked, 1)) for size in sorted(class_.sinks, reverse=True)]


def _groups_first(class_: MixedClass, wished: Division, worth: dict[Size, float]) -> Order:
    return [(size, wished[size]) for size in sorted(class_.sinks, reverse=True)]


def _cut(class_: MixedClass, first: Division, wished: Division, order: Order) -> Division:
    """Return what comes first, then what the order says, then what else is wished, and what is left to the largest that fit."""
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
class _Step(NamedTuple):
    """Hosts of a class go from some sizes to others."""

    class_: MixedClass
    gives: tuple[Share, ...]
    takes: tuple[Share, ...]


def _improve(network: Network, mixed: list[MixedClass], left: int) -> int:
    """Take the step that promises most, as long as one gains something. At most so many are tried; returns how many are left."""
    network.price()
    improved = True
    while improved:
        improved = False
        for step in _steps(network, mixed):
            while left:  # what gained once often gains again, if there is still room for it
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
    """Return those that promise something, the best first: what the first unit of each size that takes would add, less what the first of
    each size that gives would lose."""
    gains, losses = network.distances(SINK)[0], network.distances(SINK, towards=True)[0]
    found: list[tuple[int, str, tuple[Share, ...], tuple[Share, ...], _Step]] = []
    for class_ in mixed:
        gain = {size: -gains.get(network.tails[arc], 0) for size, arc in class_.sinks.items()}
        loss = {size: losses.get(network.tails[arc]) or 0 for size, arc in class_.sinks.items()}  # None: it goes once the other has come
        idle = {size: network.upper[arc] - network.flow[arc] for size, arc in class_.sinks.items()}
        for step in _exchanges(network, class_, [size for size in class_.sinks if gain[size] > 0]):
            promise = sum(units * gain[size] for size, units in step.takes)
            promise -= sum(max(0, units - idle[size]) * loss[size] for size, units in step.gives)
            if promise > 0:
                found.append((-promise, class_.name, step.gives, step.takes, step))
    return [each[-1] for each in sorted(found, key=lambda each: each[:-1])]


def _exchanges(network: Network, class_: MixedClass, takers: list[Size]) -> Iterator[_Step]:
    """Yield one size for another, one for two, and two for one."""
    there = {size: network.upper[arc] for size, arc in class_.sinks.items()}
    left = class_.room - sum(size * units for size, units in there.items())
    for taker in takers:
        if taker <= left:
            yield _Step(class_, (), ((taker, left // taker),))
            continue
        for giver in class_.sinks:
            if giver == taker:
                continue
            gives = -((left - taker) // giver)
            if gives <= there[giver]:
                takes = (gives * giver + left) // taker
                rest = gives * giver + left - takes * taker
                yield _Step(class_, ((giver, gives),), ((taker, takes),))
                for other in takers:
                    if other not in (giver, taker) and other <= rest:
                        yield _Step(class_, ((giver, gives),), ((taker, takes), (other, rest // other)))
                continue
            rest = left + there[giver] * giver
            for other in class_.sinks:
                more = -((rest - taker) // other)
                if there[giver] and other not in (giver, taker) and more <= there[other]:
                    yield _Step(class_, ((giver, there[giver]), (other, more)), ((taker, 1),))


def _take(network: Network, step: _Step) -> bool:
    """Say whether the flow stays the cheapest for the division. False: the minima do not allow it."""
    sinks = step.class_.sinks
    room = step.class_.room - sum(size * network.upper[arc] for size, arc in sinks.items())
    room += sum(size * units for size, units in step.gives) - sum(size * units for size, units in step.takes)
    if room < 0 or any(units > network.upper[sinks[size]] for size, units in step.gives):
        return False
    for size, units in step.takes:
        taking = sinks[size]
        for _ in range(units):
            network.upper[taking] += 1
            found = network.cheapest(SINK, network.tails[taking])
            if found is not None and found[0] < 0:
                network.push([*found[1], Arc(taking, forward=True)])
    for size, units in step.gives:
        giving = sinks[size]
        for _ in range(units):
            network.upper[giving] -= 1
            if network.flow[giving] > network.upper[giving]:
                network.add(giving, -1)
                found = network.cheapest(network.tails[giving], SINK)
                # The caller restores the flow: a unit of a minimum has no other place.
                if found is None:
                    return False
                network.push(found[1])
    return True
