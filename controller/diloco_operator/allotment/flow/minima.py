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

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
    waiting: dict[str, dict[str, int]] = field(default_factory=dict)
    """Jobs that do not fit, and keep what they have found from later minima -> class -> room that they keep beside it, too little for one
    of their units."""


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
        self._occupied: dict[int, int] = {}
        """Arc into the sink -> room, of classes that units of several sizes use, that units have which no minimum needs."""

    def run(self) -> Minima:
        network = self._network
        running = [arcs for arcs in self._model.jobs.values() if arcs.job.runs]
        lacking = Counter(hub for arcs in self._model.jobs.values() if arcs.job.missing for hub in _hubs(arcs.job))
        for arcs in running:
            self._keep(arcs, lacking - Counter(_hubs(arcs.job) if arcs.job.missing else ()))
        for (pool, class_), arc in self._model.kept.items():
            size = self._model.sizes[pool, class_]
            if network.shares(sink := self._model.sinks[class_, size]) and (units := network.upper[arc] - network.flow[arc]):
                self._occupied[sink] = self._occupied.get(sink, 0) + units * size
        for arcs in running:
            got = sum(units for _, units in self.fill(arcs))
            self._close(arcs, got)
            if missing := arcs.job.missing - got:
                self._minima.missing[arcs.job.key] = missing
        for arcs in self._model.jobs.values():
            if not arcs.job.runs:
                self._admit(arcs)
        return self._minima

    def _keep(self, arcs: JobArcs, lacking: Collection[str]) -> None:
        """Keep the units that the minimum needs, and those that are settling, beyond the minimum as surplus. `lacking`: hubs that minima of
        other jobs may need."""
        job, network = arcs.job, self._network
        # Room for new units is opened job by job, in the order of who comes first.
        network.upper[arcs.minimum] = job.protected
        mine = _of_minimum(job, {class_ for class_, hub in self._model.hubs.items() if hub in lacking})
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
        """Let so many units stay, along these arcs."""
        for way in ways if units else ():
            path = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, *way, *last) if arc is not None]
            here = min(units, self._network.room(path))
            if here:
                self._network.push(path, here)
                units -= here
        assert not units, "a unit that stays has its slice"

    def fill(self, arcs: JobArcs) -> list[tuple[Path, int]]:
        """Add new units for the minimum, as many as there are slices for. Where units of several sizes share hosts, no path exchanges a
        large unit for small ones, so several orders are tried; the first that meets the minimum counts, else that which comes nearest.
        Returns what was added to the flow: paths, and units on each."""
        best: list[tuple[Path, int]] = []
        for count, order in enumerate(self._orders(arcs)):
            found = self._fill(arcs, order)
            if sum(units for _, units in found) == arcs.job.missing:
                return found
            # The last first: a path may lead back over an arc that an earlier one has filled.
            for path, units in reversed(found):
                self._network.push(path, -units)
            if not count or sum(units for _, units in found) > sum(units for _, units in best):
                best = found
        for path, units in best:
            self._network.push(path, units)
        return best

    def _orders(self, arcs: JobArcs) -> Iterator[Sequence[str]]:
        """Orders of pools. Empty: wherever the shortest paths lead."""
        yield ()
        sizes = {pool.name: pool.largest for pool in arcs.job.firm}
        if len(set(sizes.values())) > 1:
            yield sorted(sizes, key=lambda name: -sizes[name])
            yield sorted(sizes, key=lambda name: sizes[name])

    def _fill(self, arcs: JobArcs, order: Sequence[str]) -> list[tuple[Path, int]]:
        """Add what the minima of its pools need, the largest units first, as small ones find room beside them; then the rest, in this
        order."""
        job, network = arcs.job, self._network
        wanted = job.missing
        network.upper[arcs.minimum] = job.protected + wanted
        closed = self._dead | {network.tails[arcs.minimum]} | ({arcs.firm} - {arcs.start})
        pushed: list[tuple[Path, int]] = []
        if arcs.rest is not None:
            # Else units of other pools would fill the minimum, and a pool's own minimum would find no room in it.
            network.upper[arcs.rest] = wanted - sum(pool.missing for pool in job.firm)
            largest = {pool.name: pool.largest for pool in job.firm}
            for _, arc in sorted(arcs.own.items(), key=lambda each: -largest[each[0]]):
                pushed += self._push(arcs, [arc], closed | {arcs.start, arcs.rest_node}, wanted, set())
        for name in order:
            first = [arc for arc in (arcs.rest, arcs.by_pool[name]) if arc is not None]
            left = wanted - sum(units for _, units in pushed)
            pushed += self._push(arcs, first, closed | {arcs.start, arcs.rest_node}, left, set())
        reached: set[int] = set()
        pushed += self._push(arcs, [], closed, wanted - sum(units for _, units in pushed), reached)
        if not pushed:
            self._dead |= reached
        return pushed

    def _push(self, arcs: JobArcs, first: list[int], closed: set[int], wanted: int, reached: set[int]) -> list[tuple[Path, int]]:
        """Send units along paths that begin with these arcs, behind the one of all new units. Returns the paths.

        Where units of several sizes share hosts, all take what is free, if that is enough, and leave alone what units have: no later step
        would exchange one for the other."""
        network = self._network
        begin = [Arc(arc, forward=True) for arc in (BACK, arcs.entry, arcs.minimum, arcs.new, *first) if arc is not None]
        start = network.heads[first[-1]] if first else arcs.start
        if self._occupied:
            network.keep_back(self._occupied)
            pushed = self._along(begin, start, closed, wanted, set())
            network.keep_back({arc: -room for arc, room in self._occupied.items()})
            if sum(units for _, units in pushed) == wanted:
                return pushed
            for path, units in reversed(pushed):
                network.push(path, -units)
        return self._along(begin, start, closed, wanted, reached)

    def _along(self, begin: Path, start: int, closed: set[int], wanted: int, reached: set[int]) -> list[tuple[Path, int]]:
        network = self._network
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
        # A minimum that no fleet of this size holds, or whose pods are refused, would keep slices from all others for ever.
        keeps = job.fits and job.can_start and all(pool.withholds for pool in job.firm)
        rest = self._keep_rest(arcs, job.missing - got) if keeps else {}
        if keeps and (got or rest):
            self._minima.waiting[job.key] = rest
            network.lower[arcs.minimum] = network.upper[arcs.minimum] = network.upper[arcs.entry] = got
            return
        for path, units in reversed(pushed):
            network.push(path, -units)
        # No surplus either: units below the minimum of a job that waits would train nothing.
        network.upper[arcs.entry] = 0

    def _keep_rest(self, arcs: JobArcs, units: int) -> dict[str, int]:
        """Keep from later minima what is left of classes in which the job lacks units, each larger than that. Small units would take it
        again and again, before there is enough. Returns class -> room."""
        network, found = self._network, dict[str, int]()
        for (job, name), hub, lane in self._model.taken:
            if job != arcs.job.key or not any(pool.name == name for pool in arcs.job.firm):
                continue
            for class_, arc in self._model.choices[hub, lane].items():
                sink = self._model.sinks[class_, lane[0]]
                room = min(network.room_shared(sink), network.room_shared(arc))
                if units > 0 and network.shares(sink) and 0 < room < lane[0]:
                    network.keep_back({sink: room})
                    found[class_] = found.get(class_, 0) + room
                    units -= 1
        return found


def _hubs(job: FlowJob) -> set[str]:
    return {hub for pool in job.firm if pool.wanted for hub in pool.values}


def _of_minimum(job: FlowJob, lacking: Collection[str]) -> dict[tuple[str, str], int]:
    """Return pool and class -> units of the minimum: of each pool those that its own minimum needs, then others. Those that are settling
    come first, as they stay anyway, then those of classes that no other minimum lacks, the smallest, so that large ones can make room, and
    of these the best."""
    found: dict[tuple[str, str], int] = {}
    own = {pool.name: min(pool.min, pool.has) for pool in job.firm}
    others = job.protected - sum(own.values())
    held = [
        (pool, each)
        for pool in sorted(job.firm, key=lambda pool: pool.largest)
        for each in sorted(pool.held, key=lambda each: (-each.value, each.class_))
    ]
    held.sort(key=lambda place: place[1].class_ in lacking)
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
