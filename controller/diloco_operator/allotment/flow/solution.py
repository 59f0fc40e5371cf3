"""The flow for jobs that compete: `Solution.of(jobs, classes, bonus).plan()`. Pure; the order of jobs and classes does not matter.

1. Minima, by augmenting paths: see `minima`.
2. The cheapest flow that keeps them decides which kinds of slices jobs get, and how many units beyond their minimum.
3. What jobs keep for a minimum that does not fit yet is lent to units beyond a minimum.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from diloco_operator.allotment.flow.minima import Minima, meet_minima
from diloco_operator.allotment.flow.model import Lane, Model
from diloco_operator.allotment.flow.objective import Bonuses
from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowPlan, PoolKey, PoolPlan
from diloco_operator.allotment.flow.residual import BACK, PLENTY, SINK, SOURCE, Arc
from diloco_operator.allotment.flow.simplex import cheapest_flow


def merged(plans: Iterable[FlowPlan]) -> FlowPlan:
    """Join the plans of sets of jobs that do not compete."""
    pools: dict[PoolKey, PoolPlan] = {}
    admitted: set[str] = set()
    missing: dict[str, int] = {}
    kept_for_minimum: dict[str, dict[str, int]] = {}
    objective = lent = 0
    gap = 0.0
    undecided: set[str] = set()
    for plan in plans:
        pools.update(plan.pools)
        admitted |= plan.admitted
        missing.update(plan.missing)
        kept_for_minimum.update({job: dict(classes) for job, classes in plan.kept_for_minimum.items()})
        objective += plan.objective
        lent += plan.lent
        gap = max(gap, plan.gap)
        undecided |= plan.undecided
    return FlowPlan(pools, frozenset(admitted), missing, kept_for_minimum, objective, lent, gap, frozenset(undecided))


@dataclass(slots=True)
class Solution:
    """The solved network of jobs that compete."""

    model: Model
    minima: Minima
    objective: int = 0
    lent: int = 0
    kept_for_minimum: dict[str, dict[str, int]] = field(default_factory=dict)
    """Job -> class -> room."""

    @classmethod
    def of(cls, jobs: Iterable[FlowJob], classes: Iterable[FlowClass], bonus: Bonuses) -> Solution:
        model = Model(jobs, classes, bonus)
        minima = meet_minima(model)
        _release(model, minima)
        cheapest_flow(model.network)
        solution = cls(model, minima)
        solution.lend()
        return solution

    def plan(self) -> FlowPlan:
        model, network = self.model, self.model.network
        staying: dict[PoolKey, dict[str, int]] = {}
        for (pool, class_), arc in model.staying.items():
            if network.flow[arc]:
                staying.setdefault(pool, {})[class_] = network.flow[arc]
        taken, moved_to = (_by_pool(units) for units in self._new_units())
        keys = [(job, pool.name) for job, arcs in model.jobs.items() for pool in arcs.job.pools]
        pools = {key: PoolPlan(staying.get(key, {}), taken.get(key, {}), moved_to.get(key, {})) for key in keys}
        return FlowPlan(pools, frozenset(self.minima.met), self.minima.missing, self.kept_for_minimum, self.objective, self.lent)

    def _new_units(self) -> tuple[ByClass, ByClass]:
        """Return the new units, and the slices for units that would leave theirs."""
        model, flow = self.model, self.model.network.flow
        left = model.chosen()
        taken = {key: _spread(flow[arc], left[key[1:]]) for key, arc in model.taken.items()}
        return taken, {key: _spread(flow[arc], left[key[1:]]) for key, arc in model.moved_to.items()}

    def lend(self) -> None:
        """Lend what is kept for minima to units beyond a minimum. All other flow stays as it is."""
        model, network = self.model, self.model.network
        self.objective, self.lent, self.kept_for_minimum = -network.cost(), 0, {}
        if not self.minima.waiting:
            return
        self.kept_for_minimum = {job: {} for job in self.minima.waiting}
        for ((job, _), hub, lane), classes in self._new_units()[0].items():
            if (kept := self.kept_for_minimum.get(job)) is not None:
                for name, units in classes.items():
                    kept[name] = kept.get(name, 0) + units * lane[0]
                    network.add(model.choices[hub, lane][name], -units)
                    network.add(model.sinks[name, lane[0]], -units)
                    network.add(BACK, -units)
        for job in self.minima.waiting:
            for arc in model.jobs[job].arcs:
                network.clear(arc)
                network.lower[arc] = network.upper[arc] = 0
        network.lower[:] = network.flow
        # A negative cost is a gain: flow is added as long as it gains something.
        while (cheapest := network.cheapest(SOURCE, SINK)) is not None and cheapest[0] < 0:
            path = [Arc(BACK, forward=True), *cheapest[1]]
            units = network.room(path)
            network.push(path, units)
            self.lent -= cheapest[0] * units


type ByClass = dict[tuple[PoolKey, str, Lane], dict[str, int]]
"""(pool, hub, lane) -> class -> units."""


def _spread(units: int, left: dict[str, int]) -> dict[str, int]:
    """Divide units that go through a hub between its classes, which are the same to them, and take them from what is `left` of each."""
    by_class: dict[str, int] = {}
    for name, room in left.items():
        if fitting := min(units, room):
            units -= fitting
            left[name] -= fitting
            by_class[name] = fitting
    assert not units, "what enters a hub leaves it"
    return by_class


def _by_pool(units: ByClass) -> dict[PoolKey, dict[str, int]]:
    """Return pool -> class -> units. A class is of one hub, and the pool has one lane there, so no entry comes twice."""
    by_pool: dict[PoolKey, dict[str, int]] = {}
    for (pool, _, _), classes in units.items():
        by_pool.setdefault(pool, {}).update(classes)
    return by_pool


def _release(model: Model, minima: Minima) -> None:
    """Let jobs that have their minimum have more."""
    network = model.network
    for key, met in minima.met.items():
        arcs = model.jobs[key]
        if arcs.rest is not None:
            network.upper[arcs.rest] = PLENTY
        # The segments are limited to the maximum, so that the entry limits nothing and can be contracted.
        for segments in arcs.surplus:
            room = network.upper[arcs.entry] - met
            for arc in segments:
                network.upper[arc] = min(network.upper[arc], room)
                room -= network.upper[arc]
