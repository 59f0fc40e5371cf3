"""Minima first: who gets its minimum, by augmenting paths. Pure.

1. Units that the minimum of their job needs keep their slices, but for those that may have successors.
2. Jobs that run get what is missing, unit by unit, in the order of priority and age.
3. Jobs that wait get their minimum as a whole or not at all, in the same order. One that does not fit keeps what it found from the minima
   that come later, so that it starts as soon as enough has become free; else small jobs would pass it for ever. One whose minimum is more
   than there is at all keeps nothing, and neither does one whose pods are refused.

What a job has beyond its minimum plays no part here: it gives way to any minimum.

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
    """The minima that are met. The model's flow meets them together."""

    met: dict[str, int] = field(default_factory=dict)
    """Admitted job -> units of its minimum that have slices."""
    missing: dict[str, int] = field(default_factory=dict)
    """Admitted job -> units of its minimum that have none."""
    waiting: list[str] = field(default_factory=list)
    """Jobs that do not fit, and keep what they have found from later minima."""


def meet_minima(model: Model) -> Minima:
    """Leave in the model the flow of the minima alone, and bounds that keep it."""
    return _Admission(model).run()


class _Admission:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._network = model.network
        self._dead: set[int] = {SOURCE}
        """Nodes from which no path leads to the sink, and none will: flow is only added."""
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
        """Keep the units that the minimum needs, and those that are settling, beyond the minimum as surplus."""
        job, network = arcs.job, self._network
        # Room for new units is opened job by job, in the order of who comes first.
        network.upper[arcs.minimum] = job.protected
        mine = _of_minimum(job)
        for pool in job.pools:
            for each in pool.held:
                key = (job.key, pool.name)
                size = self._model.sizes[key, each.class_]
                last = [self._model.stays[key], self._model.kept[key, each.class_], self._model.sinks[each.class_, size]]
                surplus = [[arc, None if pool.scavenged else arcs.held] for arc in arcs.surplus[-1 if pool.scavenged else 0]]
                units = mine.get((pool.name, each.class_), 0)
                self._stay(arcs, [[arcs.minimum, arcs.held]], last, units)
                self._stay(arcs, surplus, last, max(0, each.settling - units))
        if arcs.held is not None:
            # So many may leave for successors; without a bound for the others the flow could trade them for values.
            network.lower[arcs.held] = job.protected - job.replaceable

    def _stay(self, arcs: JobArcs, ways: Sequence[Sequence[int | None]], last: list[int], units: int) -> None:
        """Keep this many units, along these arcs."""
        for way in ways if units else ():
            path = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, *way, *last) if arc is not None]
            here = min(units, self._network.room(path))
            if here:
                self._network.push(path, here)
                units -= here
        assert not units, "a unit that stays has its slice"

    def fill(self, arcs: JobArcs) -> list[tuple[Path, int]]:
        """Add new units for the minimum, as many as there are slices for: those that its pools ask for first. Returns what was added to the
        flow: paths, and units on each."""
        job, network = arcs.job, self._network
        wanted = job.missing
        network.upper[arcs.minimum] = job.protected + wanted
        closed = self._dead | {network.tails[arcs.minimum]} | ({arcs.firm} - {arcs.start})
        pushed: list[tuple[Path, int]] = []
        if arcs.rest is not None:
            # Else units of other pools would fill the minimum, and a pool's own minimum would find no room in it.
            network.upper[arcs.rest] = wanted - sum(pool.missing for pool in job.firm)
            for arc in arcs.own.values():
                pushed += self._push(arcs, [arc], closed | {arcs.start, arcs.rest_node}, wanted, set())
        reached: set[int] = set()
        pushed += self._push(arcs, [], closed, wanted - sum(units for _, units in pushed), reached)
        if not pushed:
            self._dead |= reached
        return pushed

    def _push(self, arcs: JobArcs, first: list[int], closed: set[int], wanted: int, reached: set[int]) -> list[tuple[Path, int]]:
        """Send units along paths that begin with these arcs, behind the one of all new units. Returns the paths."""
        network = self._network
        begin = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, arcs.minimum, arcs.new, *first) if arc is not None]
        start = network.heads[first[-1]] if first else arcs.start
        pushed: list[tuple[Path, int]] = []
        while wanted > 0 and network.room(begin) > 0 and (found := network.shortest(start, SINK, closed, reached)) is not None:
            path = [*begin, *found]
            units = min(wanted, network.room(path))
            network.push(path, units)
            pushed.append((path, units))
            wanted -= units
        return pushed

    def _close(self, arcs: JobArcs, got: int) -> None:
        """Let the job keep what its minimum has got."""
        network, met = self._network, arcs.job.protected + got
        network.lower[arcs.minimum] = network.upper[arcs.minimum] = met
        # Without lower bounds the surplus of others could take this away when the whole is solved.
        if arcs.new is not None:
            network.lower[arcs.new] = got
        for arc in arcs.own.values():
            network.lower[arc] = network.flow[arc]
        self._minima.met[arcs.job.key] = met

    def _admit(self, arcs: JobArcs) -> None:
        """Admit a job that waits: all of its minimum, or nothing. One that does not fit keeps what it has found."""
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
        # No surplus either: units below the minimum of a job that waits would train nothing.
        network.upper[arcs.entry] = 0


def _of_minimum(job: FlowJob) -> dict[tuple[str, str], int]:
    """Return pool and class -> units of the minimum: of each pool those that its own minimum needs, then others. Those that are settling
    come first, as they stay anyway, then the best."""
    found: dict[tuple[str, str], int] = {}
    own = {pool.name: min(pool.min, pool.has) for pool in job.firm}
    others = job.protected - sum(own.values())
    held = sorted(((pool, each) for pool in job.firm for each in pool.held), key=lambda place: (-place[1].value, place[1].class_))
    for settles in (True, False):
        for pool, each in held:
            place = (pool.name, each.class_)
            units = min((each.settling if settles else each.units) - found.get(place, 0), own[pool.name])
            found[place] = found.get(place, 0) + max(0, units)
            own[pool.name] -= max(0, units)
    for settles in (True, False):
        for pool, each in held:
            place = (pool.name, each.class_)
            units = max(0, min((each.settling if settles else each.units) - found[place], others))
            found[place] += units
            others -= units
    return found
