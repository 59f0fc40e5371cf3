"""Minima first: which jobs get their minimum, found by augmenting paths. Pure.

1. Units that the minimum of their job needs keep their slices, except those that may have successors.
2. Jobs that run get what their minimum lacks, unit by unit, in the order of priority and age.
3. Jobs that wait get all of their minimum or nothing, in the same order. If it does not fit, the job keeps what it found from later
   minima, so it starts as soon as enough is free, and small jobs cannot pass it for ever. It keeps nothing if its minimum is larger than
   the fleet, or if its pods are refused.

Units beyond a minimum play no part here: they give way to any minimum.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diloco_operator.allotment.flow.model import JobArcs, Model
from diloco_operator.allotment.flow.problem import FlowJob
from diloco_operator.allotment.flow.residual import BACK, SINK, SOURCE, Arc, Path


@dataclass(slots=True)
class Minima:
    """Which minima are met. The flow in the model meets all of them together."""

    met: dict[str, int] = field(default_factory=dict)
    """Admitted job -> units of its minimum that have slices."""
    missing: dict[str, int] = field(default_factory=dict)
    """Admitted job -> units of its minimum that have none."""
    waiting: list[str] = field(default_factory=list)
    """Jobs whose minimum does not fit, and that keep what they found."""


def meet_minima(model: Model) -> Minima:
    """Give the model the flow of the minima alone, and bounds that keep it."""
    return _Admission(model).run()


class _Admission:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._network = model.network
        self._dead: set[int] = {SOURCE}
        """Nodes from which no path leads to the sink, now or later: flow is only added."""
        self._minima = Minima()

    def run(self) -> Minima:
        running = [arcs for arcs in self._model.jobs.values() if arcs.job.runs]
        for arcs in running:
            self._keep(arcs)
        for arcs in running:
            got = sum(units for _, units in self.fill(arcs))
            self._close(arcs, got)
            if missing := arcs.job.missing - got:
                self._minima.missing[arcs.job.key] = missing
        for arcs in self._model.jobs.values():
            if not arcs.job.runs:
                self._admit(arcs)
        return self._minima

    def _keep(self, arcs: JobArcs) -> None:
        """Keep the units that the minimum needs, and as surplus those beyond it that are settling."""
        job, network = arcs.job, self._network
        # No room for new units yet: `fill` opens it job by job, in their order.
        network.upper[arcs.minimum] = job.protected
        of_minimum = _of_minimum(job)
        for pool in job.pools:
            for each in pool.held:
                key = (job.key, pool.name)
                size = self._model.sizes[key, each.class_]
                last = [self._model.staying_of_pool[key], self._model.staying[key, each.class_], self._model.sinks[each.class_, size]]
                surplus = [[arc] for arc in arcs.surplus[-1]] if pool.scavenged else [[arc, arcs.held] for arc in arcs.surplus[0]]
                units = of_minimum.get((pool.name, each.class_), 0)
                self._stay(arcs, [[arcs.minimum, arcs.held]], last, units)
                self._stay(arcs, surplus, last, max(0, each.settling - units))
        # Else a unit of the minimum could leave for one of a scavenged pool, which does not count towards it.
        network.lower[arcs.minimum] = job.protected
        if arcs.held is not None:
            # Replaceable units may leave for successors. Without a bound for the others the flow could trade them for values.
            network.lower[arcs.held] = job.protected - job.replaceable

    def _stay(self, arcs: JobArcs, ways: Sequence[Sequence[int | None]], last: list[int], units: int) -> None:
        """Send this many units along one of the ways, or several, and then along the arcs `last`."""
        for way in ways if units else ():
            path = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, *way, *last) if arc is not None]
            sent = min(units, self._network.room(path))
            if sent:
                self._network.push(path, sent)
                units -= sent
        assert not units, "a unit that stays has its slice"

    def fill(self, arcs: JobArcs) -> list[tuple[Path, int]]:
        """Add new units for the minimum while there are slices, first for its pools' minima. Returns the paths that were added to the
        flow, and the units on each."""
        job, network = arcs.job, self._network
        wanted = job.missing
        network.upper[arcs.minimum] = job.protected + wanted
        closed = self._dead | {network.tails[arcs.minimum]} | ({arcs.firm} - {arcs.start})
        pushed: list[tuple[Path, int]] = []
        if arcs.rest is not None:
            # Without this limit, units of other pools could fill the minimum and leave no room in it for a pool's own minimum.
            network.upper[arcs.rest] = wanted - sum(pool.missing for pool in job.firm)
            for arc in arcs.pool_minimum.values():
                pushed += self._push(arcs, [arc], closed | {arcs.start, arcs.rest_node}, wanted, set())
        reached: set[int] = set()
        pushed += self._push(arcs, [], closed, wanted - sum(units for _, units in pushed), reached)
        if not pushed:
            self._dead |= reached
        return pushed

    def _push(self, arcs: JobArcs, first: list[int], closed: set[int], wanted: int, reached: set[int]) -> list[tuple[Path, int]]:
        """Send units along paths that begin with the arcs of the minimum and of new units, and then `first`. Returns paths and units."""
        network = self._network
        begin = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, arcs.minimum, arcs.new, *first) if arc is not None]
        start = network.heads[first[-1]] if first else arcs.start
        pushed: list[tuple[Path, int]] = []
        while wanted > 0 and network.room(begin) > 0 and (rest := network.shortest(start, SINK, closed, reached)) is not None:
            path = [*begin, *rest]
            units = min(wanted, network.room(path))
            network.push(path, units)
            pushed.append((path, units))
            wanted -= units
        return pushed

    def _close(self, arcs: JobArcs, got: int) -> None:
        """Let the job keep the `got` new units of its minimum."""
        network, met = self._network, arcs.job.protected + got
        network.lower[arcs.minimum] = network.upper[arcs.minimum] = met
        # Without lower bounds, the surplus of other jobs could take these units when the whole network is solved.
        if arcs.new is not None:
            network.lower[arcs.new] = got
        for arc in arcs.pool_minimum.values():
            network.lower[arc] = network.flow[arc]
        self._minima.met[arcs.job.key] = met

    def _admit(self, arcs: JobArcs) -> None:
        """Admit a job that waits if all of its minimum fits. If not, it may keep what it found."""
        job, network = arcs.job, self._network
        pushed = self.fill(arcs)
        got = sum(units for _, units in pushed)
        if got == job.missing:
            self._close(arcs, got)
            return
        if got and job.keeps:
            self._minima.waiting.append(job.key)
            network.lower[arcs.minimum] = network.upper[arcs.minimum] = network.upper[arcs.entry] = got
            return
        for path, units in reversed(pushed):
            network.push(path, -units)
        # No surplus either: below its minimum, a job that waits would train nothing.
        network.upper[arcs.entry] = 0


def _of_minimum(job: FlowJob) -> dict[tuple[str, str], int]:
    """Return (pool, class) -> held units that count for the minimum: first those that each pool's own minimum needs, then others."""
    counted: dict[tuple[str, str], int] = {}
    own_minima = {pool.name: min(pool.min, pool.has) for pool in job.firm}
    others = job.protected - sum(own_minima.values())
    held = sorted(((pool, each) for pool in job.firm for each in pool.held), key=lambda place: (-place[1].value, place[1].class_))
    # Twice: units that are settling first, as they stay anyway, then those with the highest value.
    for settles in (True, False):
        for pool, each in held:
            place = (pool.name, each.class_)
            units = min((each.settling if settles else each.units) - counted.get(place, 0), own_minima[pool.name])
            counted[place] = counted.get(place, 0) + max(0, units)
            own_minima[pool.name] -= max(0, units)
    for settles in (True, False):
        for pool, each in held:
            place = (pool.name, each.class_)
            units = max(0, min((each.settling if settles else each.units) - counted[place], others))
            counted[place] += units
            others -= units
    return counted
