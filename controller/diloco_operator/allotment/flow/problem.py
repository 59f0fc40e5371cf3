"""What the flow is asked, and what it answers, in counts: which job may have how many units in which class of slices. Pure data.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

type PoolKey = tuple[str, str]
"""Job, and the place of its pool as text."""
MEAN = 1000
"""The value of a unit on a slice of average speed for its job."""


@dataclass(frozen=True, slots=True)
class FlowClass:
    """Slices that no unit tells apart: one kind, one capacity type, one failure domain, met by the same requirements."""

    name: str
    hub: str
    """Classes with one hub differ in nothing but their domain: a new unit may take any of them."""
    room: int
    """Slices or hosts that are free, that units are leaving, and that the units of the problem hold."""


@dataclass(frozen=True, slots=True)
class FlowHeld:
    """Units of one pool that have slices of one class, and may be asked to leave them."""

    class_: str
    units: int
    value: int
    """The value of each, as in `FlowPool.values`: what it trains there, and what leaving would cost."""
    settling: int = 0
    """Units of these that have just come, and that no other job may have leave yet."""


@dataclass(frozen=True, slots=True)
class FlowPool:
    """What one pool has and wants. Counts are units."""

    name: str
    values: Mapping[str, int]
    """Hub of which a new unit may take slices -> what a unit is worth there, at least 2. `MEAN` is average for the job."""
    wanted: int
    """New units that could start now and for which the pool has room."""
    min: int = 0
    """At least so many units, as a part of the job's minimum."""
    size: int = 1
    """What one unit takes of the room of a class."""
    held: tuple[FlowHeld, ...] = ()
    scavenged: bool = False
    """It takes what no other pool wants, and is no part of any minimum."""
    moving: int = 0
    """Held units that would leave their slices for others if some are left over."""
    displaces: bool = True
    """Units may be asked to leave for its new ones. False: nothing says yet that its pods would be admitted, so they take what is free, or
    is being left."""
    keeps_for_minimum: bool = True
    """Slices may stay free for its new ones, until there are enough for the minimum of the job. False: its pods are known to be refused."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """What one unit takes of the room of the classes of a hub, where that is not `size`."""
    share: int = MEAN
    """What one unit counts in the share of its job, in thousandths of a slice."""
    better: frozenset[str] | None = None
    """Hubs for which units would leave their slices; None: all of `values`."""
    may_replace: bool = True
    """Its new units may be successors, for which others of a minimum leave."""
    asks: bool = True
    """If it must not displace units, a dry run is asked for where it would."""
    prepares: bool = False
    """It must not displace units yet, only because what the units of its job share is not there."""

    def size_in(self, hub: str) -> int:
        """Return what one unit takes of the room of a class of this hub."""
        return self.sizes.get(hub, self.size)

    @property
    def all_values(self) -> Iterator[int]:
        """Yield the values of new units and of those that it has."""
        yield from self.values.values()
        yield from (each.value for each in self.held)

    @property
    def has(self) -> int:
        """Units that it has."""
        return sum(each.units for each in self.held)

    @property
    def missing(self) -> int:
        """New units that its own minimum needs."""
        return 0 if self.scavenged else max(0, self.min - self.has)


@dataclass(frozen=True, slots=True)
class FlowJob:
    """What one job has and wants. Counts are units."""

    key: str
    min: int
    """Units over all pools that are not scavenged, from those that are held and new ones."""
    max: int
    """Units over all pools, from those that are held and new ones."""
    pools: tuple[FlowPool, ...]
    """In order of preference."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: of jobs with equal priority the oldest comes first."""
    admitted: bool = False
    """It runs: its minimum keeps what it has, and what is missing is filled unit by unit."""
    most_new: int | None = None
    """New units of its pools that are not scavenged, at most; None: no more than the maximum. Less than what the maximum leaves once some
    have left: units that leave count until they have gone."""

    fits: bool = True
    """Its minimum would fit if no other job had anything."""
    successors: int = 0
    """Units of its minimum that may leave at most, each once another one trains in its place, which takes a slice that no unit has."""

    @property
    def order(self) -> tuple[int, float, str]:
        """The highest priority first, among equals the oldest."""
        return (-self.priority, self.created, self.key)

    @property
    def firm(self) -> tuple[FlowPool, ...]:
        """The pools that are not scavenged."""
        return tuple(pool for pool in self.pools if not pool.scavenged)

    @property
    def has(self) -> int:
        """Units that count towards its minimum."""
        return sum(pool.has for pool in self.firm)

    @property
    def runs(self) -> bool:
        """Its minimum keeps what it has."""
        return self.admitted or any(pool.held for pool in self.pools)

    @property
    def protected(self) -> int:
        """Held units that its minimum needs: they stay, whatever other jobs want."""
        return max(min(self.minimum, self.has), sum(min(pool.min, pool.has) for pool in self.firm))

    @property
    def replaceable(self) -> int:
        """Units of its minimum that may have successors: these come while the others are there, so within the maximum."""
        return max(0, min(self.successors, self.max - sum(pool.has for pool in self.pools), self.protected))

    @property
    def staying(self) -> int:
        """Held units that stay in any case, at most: those of the minimum, and those that are settling."""
        settling = sum(each.settling for pool in self.pools for each in pool.held)
        return min(self.protected + settling, sum(pool.has for pool in self.pools))

    @property
    def minimum(self) -> int:
        """Return the minimum of the job, with those of its pools."""
        return max(self.min, sum(pool.min for pool in self.firm))

    @property
    def missing(self) -> int:
        """New units that its minimum and those of its pools need."""
        return max(self.min - self.has, sum(pool.missing for pool in self.firm))

    @property
    def keeps(self) -> bool:
        """Whether slices stay free for its minimum until there are enough. A minimum that no fleet of this size holds, or whose pods are
        refused, would keep slices from all others for ever."""
        return self.fits and self.can_start and all(pool.keeps_for_minimum for pool in self.firm)

    @property
    def can_start(self) -> bool:
        """Whether all units of its minimum could start now if they had slices."""
        return self.missing <= sum(pool.wanted for pool in self.firm) and all(pool.missing <= pool.wanted for pool in self.firm)


@dataclass(frozen=True, slots=True)
class FlowProblem:
    """All jobs and all classes. The order of either does not matter."""

    classes: tuple[FlowClass, ...]
    jobs: tuple[FlowJob, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that the flow cannot count with."""
        names = {class_.name for class_ in self.classes}
        if len(names) < len(self.classes) or len({job.key for job in self.jobs}) < len(self.jobs):
            raise ValueError("two classes, or two jobs, have one name")
        used = dict.fromkeys(names, 0)
        hubs = {class_.name: class_.hub for class_ in self.classes}
        for job in self.jobs:
            for pool in job.pools:
                counts = (job.min, job.max, pool.min, pool.wanted, pool.moving, job.most_new or 0, *pool.values.values())
                if not all(type(count) is int for count in (*counts, *(each.value for each in pool.held))):
                    raise ValueError(f"{job.key}, pool {pool.name}: counts and values must be integers")
                least = min((pool.size, pool.share, *pool.sizes.values()))
                if least < 1 or min(counts) < 0 or any(not 0 <= each.settling <= each.units or each.units < 1 for each in pool.held):
                    raise ValueError(f"{job.key}, pool {pool.name}: counts must not be negative, sizes and held units be 1 or more")
                if min(pool.all_values, default=2) < 2:
                    raise ValueError(f"{job.key}, pool {pool.name}: values must be 2 or more")
                for each in pool.held:
                    if each.class_ not in used:
                        raise ValueError(f"{job.key}, pool {pool.name}: no class is named {each.class_}")
                    used[each.class_] += each.units * pool.size_in(hubs[each.class_])
        for class_ in self.classes:
            if used[class_.name] > class_.room:
                raise ValueError(f"class {class_.name}: units hold {used[class_.name]} of {class_.room}")


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Units of one pool, by class."""

    kept: Mapping[str, int] = field(default_factory=dict)
    """Units that stay. Those that are not here leave."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """New units."""
    replaced: Mapping[str, int] = field(default_factory=dict)
    """Slices for units that would leave theirs."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What each job gets and keeps."""

    pools: Mapping[tuple[str, str], PoolPlan]
    """Job and pool -> its units."""
    admitted: frozenset[str]
    """Jobs that have their minimum, with what they get here, or had it."""
    missing: Mapping[str, int]
    """Admitted job -> units of its minimum for which there is nothing left."""
    kept_for_minimum: Mapping[str, Mapping[str, int]]
    """Job that waits for its minimum -> class -> room that no later minimum may take."""
    objective: int
    """What the flow made as large as it can be: it comes without what slices that are kept for minima are lent for."""
    lent: int
    """What these are lent for, in the same units."""
    gap: float = 0.0
    """How far the plan may be from the best one, as a share of what that is worth; 0: it is the best."""


def unheld(jobs: Iterable[FlowJob], classes: Iterable[FlowClass], *, successors: bool) -> dict[str, int]:
    """Return class -> room that no unit has. `successors`: or that units of a minimum would leave for others, so that their jobs lose
    nothing."""
    hubs = {class_.name: class_.hub for class_ in classes}
    free = {class_.name: class_.room for class_ in classes}
    for job in jobs:
        for pool in job.pools:
            for each in pool.held:
                leaving = min(each.units, job.replaceable) if successors and not pool.scavenged else 0
                free[each.class_] -= (each.units - leaving) * pool.size_in(hubs[each.class_])
    return free
