"""The network of a problem: source, jobs, pools, hubs, classes, sink. Pure.

    source -> job -> (minimum, or one of the segments of its share) -> units that it has -> pool -> class -> sink
                                                                    -> new units         -> pool -> hub -> class -> sink

Hubs keep the network small: it has an arc for each pool and hub, and for each hub and class, instead of one for each pool and class.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diloco_operator.allotment.flow.objective import Bonuses, segments, share_of
from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowPool, PoolKey, unheld
from diloco_operator.allotment.flow.residual import PLENTY, SINK, SOURCE, Network

type Size = int
type Lane = tuple[Size, bool]
"""The size of units, and whether other units may be asked to leave for them."""
MOVING = -1
"""The cost of a slice for a unit that would leave its own: so little that it gets one only if that costs no unit anything."""


@dataclass(slots=True)
class JobArcs:
    job: FlowJob
    entry: int
    """The arc from the source."""
    minimum: int
    """The arc for the units of its minimum. Its cost takes back the bonus, which only units beyond the minimum have."""
    surplus: list[list[int]] = field(default_factory=list)
    """The segments of a share: for units beyond the minimum, and for units of scavenged pools."""
    held: int | None = None
    """The arc for units that the job has. None if it has none."""
    new: int | None = None
    """The arc for new units. None if the job has no units, so that all are new."""
    firm: int = 0
    """The node through which all units of pools that are not scavenged go."""
    start: int = 0
    """The node from which new units of these pools go."""
    pool_minimum: dict[str, int] = field(default_factory=dict)
    """Pool -> the arc for new units that its own minimum needs."""
    rest: int | None = None
    """The arc for new units that no pool's minimum needs. None if no pool's minimum needs any."""
    by_pool: dict[str, int] = field(default_factory=dict)
    """Pool -> the arc for its new units that its own minimum does not need."""
    rest_node: int = 0
    """The node from which these go."""
    arcs: range = range(0)


class Model:
    def __init__(self, jobs: Iterable[FlowJob], classes: Iterable[FlowClass], bonus: Bonuses) -> None:
        self.network = Network()
        self.jobs: dict[str, JobArcs] = {}
        """In the order in which they are served."""
        self.staying: dict[tuple[PoolKey, str], int] = {}
        """(pool, class) -> the arc for units that stay."""
        self.sizes: dict[tuple[PoolKey, str], int] = {}
        """(pool, class) -> what one of these units takes of the room of the class."""
        self.staying_of_pool: dict[PoolKey, int] = {}
        """Pool -> the arc for all its units that stay."""
        self.taken: dict[tuple[PoolKey, str, Lane], int] = {}
        """(pool, hub, lane) -> the arc for new units."""
        self.moved_to: dict[tuple[PoolKey, str, Lane], int] = {}
        """(pool, hub, lane) -> the arc for units that would leave their slices."""
        self.choices: dict[tuple[str, Lane], dict[str, int]] = {}
        """(hub, lane) -> class -> the arc between them."""
        self.sinks: dict[tuple[str, Size], int] = {}
        """(class, size) -> the arc into the sink."""
        self._bonuses: dict[PoolKey, int] = {}
        self._nodes: dict[tuple[str, Size], int] = {}
        """(class, size) -> its node."""
        self._hubs: dict[tuple[str, Lane], int] = {}
        """(hub, lane) -> its node."""
        self.classes = sorted(classes, key=lambda class_: class_.name)
        self.hubs = {class_.name: class_.hub for class_ in self.classes}
        """Class -> its hub."""
        ordered = sorted(jobs, key=lambda job: job.order)
        self._add_classes(ordered)
        for job in ordered:
            self._add_job(job, bonus)

    def _add_classes(self, jobs: Sequence[FlowJob]) -> None:
        lanes: dict[str, set[Lane]] = {}
        held: dict[str, set[Size]] = {}
        for job in jobs:
            for pool in job.pools:
                for hub in pool.values:
                    lanes.setdefault(hub, set()).add((pool.size_in(hub), pool.displaces))
                    if pool.moving:
                        lanes[hub].add((pool.size_in(hub), True))
                for each in pool.held:
                    held.setdefault(each.class_, set()).add(pool.size_in(self.hubs[each.class_]))
        free = unheld(jobs, self.classes, successors=True)
        for class_ in self.classes:
            class_lanes = sorted(lanes.get(class_.hub, ()))
            for size in sorted({size for size, _ in class_lanes} | held.get(class_.name, set())):
                node = self._nodes[class_.name, size] = self.network.node()
                self.sinks[class_.name, size] = self.network.arc(node, SINK, class_.room // size)
            for lane in class_lanes:
                size, displaces = lane
                if (class_.hub, lane) not in self._hubs:
                    self._hubs[class_.hub, lane] = self.network.node()
                most = class_.room if displaces else free[class_.name]
                arc = self.network.arc(self._hubs[class_.hub, lane], self._nodes[class_.name, size], most // size)
                self.choices.setdefault((class_.hub, lane), {})[class_.name] = arc

    def _add_job(self, job: FlowJob, bonus: Bonuses) -> None:
        network, node, first = self.network, self.network.node(), len(self.network.tails)
        firm = network.node()
        for pool in job.pools:
            self._bonuses[job.key, pool.name] = bonus.of(job, pool.share, scavenged=pool.scavenged)
        room = max(job.max, job.staying)
        # `staying` is more than the maximum if that was lowered: no unit leaves at once for it.
        entry = network.arc(SOURCE, node, room)
        minimum = network.arc(node, firm, 0, bonus.of(job, share_of(job.firm), scavenged=False) if job.firm else 0)
        arcs = self.jobs[job.key] = JobArcs(job, entry, minimum)
        scavenging = tuple(pool for pool in job.pools if pool.scavenged)
        for pools, end, scavenged in ((job.firm, firm, False), (scavenging, network.node() if scavenging else firm, True)):
            if pools:
                most = min(room, sum(pool.has + pool.wanted for pool in pools))
                arcs.surplus.append([network.arc(node, end, units, cost) for units, cost in segments(pools, most, job.share_before)])
            if scavenged:
                for pool in pools:
                    self._add_held(job, pool, end)
                    self._add_new(job, pool, end, pool.wanted)
        self._add_firm(arcs, firm)
        for pool in job.pools:
            self._add_moving(job, pool)
        arcs.arcs = range(first, len(network.tails))

    def _add_firm(self, arcs: JobArcs, firm: int) -> None:
        network, job = self.network, arcs.job
        arcs.firm = arcs.start = firm
        if job.has:
            held = network.node()
            arcs.held = network.arc(firm, held, job.has)
            for pool in job.firm:
                self._add_held(job, pool, held)
            arcs.start = network.node()
            arcs.new = network.arc(firm, arcs.start, PLENTY if job.most_new is None else job.most_new)
        arcs.rest_node = arcs.start
        if any(pool.missing for pool in job.firm):
            arcs.rest_node = network.node()
            arcs.rest = network.arc(arcs.start, arcs.rest_node, PLENTY)
        for pool in job.firm:
            for_minimum = min(pool.missing, pool.wanted)
            node = network.node()
            if for_minimum:
                arcs.pool_minimum[pool.name] = network.arc(arcs.start, node, for_minimum)
            arcs.by_pool[pool.name] = network.arc(arcs.rest_node, node, pool.wanted - for_minimum)
            self._add_new(job, pool, node, pool.wanted)

    def _add_held(self, job: FlowJob, pool: FlowPool, start: int) -> None:
        if not pool.held:
            return
        node = self.network.node()
        lower = 0 if pool.scavenged else min(pool.min, pool.has)
        self.staying_of_pool[job.key, pool.name] = self.network.arc(start, node, pool.has, lower=lower)
        for each in sorted(pool.held, key=lambda each: each.class_):
            size = self.sizes[(job.key, pool.name), each.class_] = pool.size_in(self.hubs[each.class_])
            end = self._nodes[each.class_, size]
            self.staying[(job.key, pool.name), each.class_] = self.network.arc(
                node, end, each.units, -each.value - self._bonuses[job.key, pool.name], each.settling
            )

    def _add_new(self, job: FlowJob, pool: FlowPool, start: int, most: int) -> None:
        """Add arcs from the node `start` to the hubs of the pool."""
        lanes = {hub: (pool.size_in(hub), pool.displaces) for hub in pool.values}
        hubs = [(hub, value) for hub, value in sorted(pool.values.items()) if (hub, lanes[hub]) in self.choices]
        if not hubs:
            return
        key, node = (job.key, pool.name), start
        if len(hubs) > 1:
            node = self.network.node()
            self.network.arc(start, node, most)
        for hub, value in hubs:
            self.taken[key, hub, lanes[hub]] = self.network.arc(node, self._hubs[hub, lanes[hub]], most, -value - self._bonuses[key])

    def _add_moving(self, job: FlowJob, pool: FlowPool) -> None:
        # The lanes may displace, but no unit leaves for `MOVING`: any unit is worth more.
        lanes = {hub: (pool.size_in(hub), True) for hub in pool.values}
        better = pool.values if pool.better is None else pool.better
        hubs = [hub for hub in sorted(pool.values) if hub in better and (hub, lanes[hub]) in self.choices]
        if not pool.moving or not hubs:
            return
        node = self.network.node()
        self.network.arc(SOURCE, node, min(pool.moving, pool.has))
        for hub in hubs:
            arc = self.network.arc(node, self._hubs[hub, lanes[hub]], pool.moving, MOVING)
            self.moved_to[(job.key, pool.name), hub, lanes[hub]] = arc

    def chosen(self) -> dict[tuple[str, Lane], dict[str, int]]:
        """Return (hub, lane) -> class -> new units that take slices of it."""
        return {key: {name: self.network.flow[arc] for name, arc in classes.items()} for key, classes in self.choices.items()}
