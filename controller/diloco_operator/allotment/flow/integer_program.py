"""The problem in whole numbers: a variable for the units of each job, pool and class or hub, and rows for what any plan keeps. Pure.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from diloco_operator.allotment.flow.integers import Integers, TimeLimit, added
from diloco_operator.allotment.flow.model import Lane, Size
from diloco_operator.allotment.flow.objective import Bonuses, segments, share_of
from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowPool, unheld

type HubLane = tuple[str, Lane]
"""A hub, and the lane of new units that enter it. All classes of the hub are the same to them."""


@dataclass(slots=True)
class JobVariables:
    """The variables of one job."""

    staying: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> class -> units that stay."""
    new: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> hub -> new units."""
    moved_to: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> hub -> slices for units that would leave theirs."""
    value: dict[int, int] = field(default_factory=dict)
    """Variable of units -> the value of one of them."""
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    """Segments of its shares: (variable, bonus of a unit, cost of a unit)."""
    least: int = -1
    """The row that keeps the units of its minimum."""
    newcomers: int = -1
    """The row that keeps the new units of its minimum."""
    pool_minimum: dict[str, int] = field(default_factory=dict)
    """Pool -> the row that keeps the new units of the pool's own minimum."""


class IntegerProgram:
    def __init__(self, jobs: Sequence[FlowJob], classes: Sequence[FlowClass], bonus: Bonuses, time_limit: TimeLimit) -> None:
        self.jobs = jobs
        """In the order in which they are served."""
        self.classes = classes
        self.by_key = {job.key: job for job in jobs}
        self.hubs = {class_.name: class_.hub for class_ in classes}
        self.sizes = sizes_by_class(jobs, classes)
        self.solver = Integers(time_limit)
        self.lanes: dict[HubLane, dict[str, int]] = {}
        """Hub and lane -> class -> variable of the new units that take slices of it."""
        self._bonus = bonus
        self._takes: dict[str, dict[int, int]] = {class_.name: {} for class_ in classes}
        """Class -> variable of units -> what one of them takes of its room."""
        self._entering: dict[HubLane, list[int]] = {}
        """Hub and lane -> variables of the new units that enter it, one for each pool."""
        self.variables = {job.key: self._count(job) for job in jobs}
        self.rooms = self._bound_rooms()
        """Class -> the row that keeps its room."""
        self.worths: dict[int, int] = {}
        """Variable -> what a unit adds to the value of all, without bonuses."""
        bonuses: dict[int, int] = {}
        for counts in self.variables.values():
            self.worths |= counts.value
            for units, bonus_of_unit, cost in counts.beyond:
                if bonus_of_unit:
                    bonuses[units] = bonus_of_unit
                if cost:
                    self.worths[units] = -cost
        divisor = math.gcd(*bonuses.values())
        self.bonuses = {units: each // divisor for units, each in bonuses.items()}
        """Variable of a segment -> a unit's bonus for priority, as a small number, because HiGHS counts in floating point."""
        self.bonus_row = self.solver.row(self.bonuses) if self.bonuses else -1

    def _count(self, job: FlowJob) -> JobVariables:
        counts, solver = JobVariables(), self.solver
        for pool in job.pools:
            staying = counts.staying[pool.name] = {}
            for each in sorted(pool.held, key=lambda each: each.class_):
                unit = staying[each.class_] = solver.variable(each.units, each.settling)
                counts.value[unit] = each.value
                self._takes[each.class_][unit] = pool.size_in(self.hubs[each.class_])
            new = counts.new[pool.name] = self._enter(pool, pool.values, pool.wanted, displaces=pool.displaces)
            counts.value |= {unit: pool.values[hub] for hub, unit in new.items()}
            better = pool.values if pool.better is None else [hub for hub in pool.values if hub in pool.better]
            moved = counts.moved_to[pool.name] = self._enter(pool, better, min(pool.moving, pool.has), displaces=True)
            # Least of all values: a unit gets a better slice only if that costs no other unit anything.
            counts.value |= dict.fromkeys(moved.values(), 1)
            if staying and not pool.scavenged:
                solver.row(added(staying.values()), least=min(pool.min, pool.has))
        firm, scavenging = job.firm, [pool for pool in job.pools if pool.scavenged]
        solver.row(self.units(counts, job.pools), most=max(job.max, job.staying))
        if job.has:
            solver.row(self.staying(counts, firm), least=job.protected - job.replaceable)
            if job.most_new is not None:
                solver.row(self.new(counts, firm), most=job.most_new)
        counts.newcomers = solver.row(self.new(counts, firm))
        counts.pool_minimum = {pool.name: solver.row(self.new(counts, (pool,))) for pool in firm if pool.missing}
        counts.least = self._share(job, counts, firm, scavenged=False)
        if scavenging:
            self._share(job, counts, scavenging, scavenged=True)
        return counts

    def _enter(self, pool: FlowPool, hubs: Iterable[str], most: int, *, displaces: bool) -> dict[str, int]:
        """Return hub -> variable of the units of the pool that take slices of its classes, at most `most` in all."""
        known_hubs = set(self.hubs.values())
        entering: dict[str, int] = {}
        for hub in sorted(hubs) if most else ():
            if hub in known_hubs:
                entering[hub] = self.solver.variable(most)
                self._entering.setdefault((hub, (pool.size_in(hub), displaces)), []).append(entering[hub])
        if len(entering) > 1:
            self.solver.row(added(entering.values()), most=most)
        return entering

    def _share(self, job: FlowJob, counts: JobVariables, pools: Sequence[FlowPool], *, scavenged: bool) -> int:
        """Divide the units beyond the minimum into the segments of a share. Returns the row whose bounds are the units of the minimum."""
        most = min(max(job.max, job.staying), sum(pool.has + pool.wanted for pool in pools))
        units = self.units(counts, pools)
        share = share_of(pools)
        for segment in segments(pools, most, job.share_before):
            beyond = self.solver.variable(segment.units)
            units[beyond] = -1
            counts.beyond.append((beyond, self._bonus.of(job, share, scavenged=scavenged), segment.cost))
        return self.solver.row(units, least=0, most=0)

    def _bound_rooms(self) -> dict[str, int]:
        """Make the rows that keep the room of each class. Returns class -> the row."""
        free = unheld(self.jobs, self.classes, successors=True)
        not_displacing: dict[str, dict[int, int]] = {}
        for lane, entering in self._entering.items():
            hub, (size, displaces) = lane
            classes = self.lanes[lane] = {}
            for class_ in self.classes:
                if class_.hub == hub:
                    most = class_.room if displaces else free[class_.name]
                    units = classes[class_.name] = self.solver.variable(max(0, most // size))
                    self._takes[class_.name][units] = size
                    if not displaces:
                        not_displacing.setdefault(class_.name, {})[units] = size
            self.solver.row(added(entering) | dict.fromkeys(classes.values(), -1), least=0, most=0)
        rooms = {class_.name: self.solver.row(self._takes[class_.name], most=class_.room) for class_ in self.classes}
        for name, terms in not_displacing.items():
            self.solver.row(terms, most=free[name])
        return rooms

    def staying(self, counts: JobVariables, pools: Iterable[FlowPool]) -> dict[int, int]:
        return added(*(counts.staying[pool.name].values() for pool in pools))

    def new(self, counts: JobVariables, pools: Iterable[FlowPool]) -> dict[int, int]:
        return added(*(counts.new[pool.name].values() for pool in pools))

    def units(self, counts: JobVariables, pools: Sequence[FlowPool]) -> dict[int, int]:
        return self.staying(counts, pools) | self.new(counts, pools)


def sizes_by_class(jobs: Iterable[FlowJob], classes: Iterable[FlowClass]) -> dict[str, set[Size]]:
    """Return class -> the sizes of units that have or could take room of it."""
    sizes: dict[str, set[Size]] = {class_.name: set() for class_ in classes}
    of_hub: dict[str, list[str]] = {}
    hubs = {class_.name: class_.hub for class_ in classes}
    for name, hub in hubs.items():
        of_hub.setdefault(hub, []).append(name)
    for job in jobs:
        for pool in job.pools:
            for hub in pool.values:
                for name in of_hub.get(hub, ()):
                    sizes[name].add(pool.size_in(hub))
            for each in pool.held:
                sizes[each.class_].add(pool.size_in(hubs[each.class_]))
    return sizes
