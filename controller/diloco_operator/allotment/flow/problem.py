"""The question to the flow and its answer, in counts: how many units each job has, wants and gets in each class of slices. Pure data.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

type PoolKey = tuple[str, str]
"""Job, and the name of its pool, which is the pool's place in the job as text."""
MEAN = 1000
"""The value of a unit on a slice of average speed for its job."""


@dataclass(frozen=True, slots=True)
class FlowClass:
    """Slices that are the same to all units: of one kind, and met by the same requirements."""

    name: str
    hub: str
    """New units may take any class of a hub: they are the same to them."""
    room: int
    """What is free, what is being left, and what the units of the problem hold. A unit takes `FlowPool.size_in` of it."""


@dataclass(frozen=True, slots=True)
class FlowHeld:
    """Units of one pool that have slices of one class, and may be asked to leave them."""

    class_: str
    units: int
    value: int
    """The value of each unit, as in `FlowPool.values`, with what leaving would cost."""
    settling: int = 0
    """How many of them have just come, so that they cannot be asked to leave yet."""


@dataclass(frozen=True, slots=True)
class FlowPool:
    """What one pool has and wants. Counts are units."""

    name: str
    values: Mapping[str, int]
    """Hub whose slices new units may take -> how much a unit is worth there, at least 2; `MEAN` is the job's average."""
    wanted: int
    """New units that could start now and for which the pool has room."""
    min: int = 0
    """The pool's own minimum, a part of the job's."""
    size: int = 1
    """What one unit takes of the room of a class."""
    held: tuple[FlowHeld, ...] = ()
    scavenged: bool = False
    """The pool takes only what no other pool wants, and is no part of any minimum."""
    moving: int = 0
    """Held units that would leave their slices for others if some are left over."""
    displaces: bool = True
    """Units may be asked to leave for its new ones. If False, because it is not known yet whether its pods are admitted, new ones take only
    what is free or being left."""
    keeps_for_minimum: bool = True
    """Slices may stay free for its new units until there are enough for the job's minimum. False if its pods are known to be refused."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Hub -> what one unit takes of the room of its classes, if that is not `size`."""
    share: int = MEAN
    """What one unit counts in the share of its job, in thousandths of a slice."""
    better: frozenset[str] | None = None
    """Hubs for which units would leave their slices. None if that is so for all of `values`."""
    may_replace: bool = True
    """Its new units may be successors, for which units of a minimum leave."""
    asks: bool = True
    """If it does not displace units now but would get more if it did, it should ask for a dry run."""
    prepares: bool = False
    """It does not displace units yet, for the only reason that what the units of its job share is not there."""

    def size_in(self, hub: str) -> int:
        """Return what one unit takes of the room of a class of this hub."""
        return self.sizes.get(hub, self.size)

    @property
    def all_values(self) -> Iterator[int]:
        """The values of new units and of held ones."""
        yield from self.values.values()
        yield from (each.value for each in self.held)

    @property
    def has(self) -> int:
        return sum(each.units for each in self.held)

    @property
    def missing(self) -> int:
        """How many new units its own minimum needs."""
        return 0 if self.scavenged else max(0, self.min - self.has)


@dataclass(frozen=True, slots=True)
class FlowJob:
    """What one job has and wants. Counts are units."""

    key: str
    min: int
    """Units that the job must have, held and new ones, in all pools that are not scavenged."""
    max: int
    """Units that the job may have, held and new ones, in all pools."""
    pools: tuple[FlowPool, ...]
    """In order of preference."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch: of jobs with equal priority the oldest comes first."""
    admitted: bool = False
    """The job runs: its minimum keeps what it has, and missing units are added one by one."""
    most_new: int | None = None
    """The most new units that it may get in pools that are not scavenged. None if only the maximum limits them. A unit that leaves counts
    towards the maximum until it has gone."""

    fits: bool = True
    """Its minimum would fit if no other job had anything."""
    successors: int = 0
    """How many units of its minimum may leave, each once a successor trains, which takes a slice that no unit has."""
    share_before: int = 0
    """Units of another `FlowJob` that count in its share before its own."""

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
        """How many units it has that count towards its minimum."""
        return sum(pool.has for pool in self.firm)

    @property
    def runs(self) -> bool:
        """Whether the job runs, so that its minimum keeps what it has."""
        return self.admitted or any(pool.held for pool in self.pools)

    @property
    def protected(self) -> int:
        """How many held units its minimum needs. They stay, whatever other jobs want."""
        return max(min(self.minimum, self.has), sum(min(pool.min, pool.has) for pool in self.firm))

    @property
    def replaceable(self) -> int:
        """How many units of its minimum may have successors."""
        # A successor comes while the other unit is still there, so both count towards the maximum.
        return max(0, min(self.successors, self.max - sum(pool.has for pool in self.pools), self.protected))

    @property
    def staying(self) -> int:
        """How many held units stay at most, whatever happens: the minimum, and the units that are settling."""
        settling = sum(each.settling for pool in self.pools for each in pool.held)
        return min(self.protected + settling, sum(pool.has for pool in self.pools))

    @property
    def minimum(self) -> int:
        """The minimum of the job, or the sum of its pools' minima if that is more."""
        return max(self.min, sum(pool.min for pool in self.firm))

    @property
    def missing(self) -> int:
        """How many new units its minimum and its pools' minima need."""
        return max(self.min - self.has, sum(pool.missing for pool in self.firm))

    @property
    def keeps(self) -> bool:
        """Whether slices stay free for its minimum until there are enough."""
        # A minimum that is larger than the fleet, or whose pods are refused, would keep slices from all others for ever.
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
        """Raise ValueError for names and numbers with which the flow cannot work."""
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

    staying: Mapping[str, int] = field(default_factory=dict)
    """Held units that stay. All others leave."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """New units."""
    moved_to: Mapping[str, int] = field(default_factory=dict)
    """Slices for units that would leave theirs."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What each job gets and keeps."""

    pools: Mapping[tuple[str, str], PoolPlan]
    """(job, pool) -> its units."""
    admitted: frozenset[str]
    """Jobs that run, and jobs that now get all of their minimum."""
    missing: Mapping[str, int]
    """Admitted job -> units of its minimum for which there is nothing left."""
    kept_for_minimum: Mapping[str, Mapping[str, int]]
    """Job that waits for its minimum -> class -> room that no later minimum may take."""
    objective: int
    """The value of the plan, which no other exceeds, without units on slices that are lent."""
    lent: int
    """The value of units on slices that are kept for a minimum, and meanwhile lent to others."""
    gap: float = 0.0
    """How far the plan may be from the best one, as a share of the value of that. 0 if it is the best; 1 if time ran out, so that a part of
    it is unknown."""
    undecided: frozenset[str] = frozenset()
    """Jobs that lack units of their minimum, but might get them: time ran out before that was known."""


def unheld(jobs: Iterable[FlowJob], classes: Iterable[FlowClass], *, successors: bool) -> dict[str, int]:
    """Return class -> room that no unit has. With `successors`, room that units of a minimum may leave for successors counts too."""
    hubs = {class_.name: class_.hub for class_ in classes}
    free = {class_.name: class_.room for class_ in classes}
    for job in jobs:
        for pool in job.pools:
            for each in pool.held:
                leaving = min(each.units, job.replaceable) if successors and not pool.scavenged else 0
                free[each.class_] -= (each.units - leaving) * pool.size_in(hubs[each.class_])
    return free
