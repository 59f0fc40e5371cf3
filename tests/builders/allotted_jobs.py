"""Jobs that only take and leave slices: all that the allotment sees of a job.

`World(*nodes).job("a", a_pool(min=1, max=4)).settle()`: every job takes what it is granted and leaves what is revoked, until nothing
changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from builders.jobs import Obj
from builders.nodes import an_inventory
from builders.slice_requests import a_pool_request
from diloco_operator.allotment import Allotment
from diloco_operator.allotment.decision import Steps
from diloco_operator.allotment.flow import answer
from diloco_operator.api.spec import Locality
from diloco_operator.fleet import Shape, Slice
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import group_name
from diloco_operator.placement import HeldUnit, JobRequest, PoolRequest, place
from diloco_operator.placement.requirements import with_accelerators

V5P = Shape("tpu-v5p", "2x2x1", 4)


@dataclass(frozen=True)
class SimplePool:
    shape: Shape = V5P
    min: int = 0
    max: int = 4
    capacity: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    scavenged: bool = False
    needs: Resources = Resources()  # noqa: RUF009 -- immutable
    admitted: bool = True
    ready: bool = True
    locality: Locality = Locality.ANY
    spares: int = 0
    """Wanted once it has all its units."""


@dataclass
class SimpleJob:
    name: str
    pools: tuple[SimplePool, ...]
    min: int
    max: int
    priority: int
    created: float
    units: dict[str, tuple[Slice, ...]] = field(default_factory=dict)
    """Those that run: "<index of the pool>-<number>"."""
    leaving: dict[str, tuple[Slice, ...]] = field(default_factory=dict)

    def request(self) -> JobRequest:
        pools = tuple(self._pool_request(index, pool) for index, pool in self._ordered())
        return JobRequest(self.name, self.priority, self.created, self.min, self.max, pools)

    def _ordered(self) -> list[tuple[int, SimplePool]]:
        """Scavenged pools last, as reconcile asks."""
        return sorted(enumerate(self.pools), key=lambda each: each[1].scavenged)

    def _pool_request(self, index: int, pool: SimplePool) -> PoolRequest:
        names = [f"{index}-{number}" for number in range(pool.max)]
        has = {name: self.units[name] for name in names if name in self.units}
        held = tuple(
            HeldUnit(name, tuple(h.node for s in slices for h in s.hosts), slice=group_name(slices)) for name, slices in has.items()
        )
        new = tuple(name for name in names if name not in self.units and name not in self.leaving)
        return a_pool_request(
            str(index),
            pool.shape,
            0,
            min=0 if pool.scavenged else pool.min,
            max=pool.max,
            capacity=pool.capacity,
            node_selector=dict(pool.selector),
            locality=pool.locality,
            needs=pool.needs,
            units=held,
            new=new,
            wanted=len(new),
            draining_or_completed=sum(name in self.leaving for name in names),
            scavenged=pool.scavenged,
            admitted=pool.admitted,
            ready=pool.ready,
            spares=pool.spares if len(has) == pool.max else 0,
        )

    def nodes(self) -> frozenset[str]:
        return frozenset(h.node for s in (*self.units.values(), *self.leaving.values()) for each in s for h in each.hosts)

    @property
    def minimum(self) -> int:
        """Return the minimum of the job: its own, or the sum of its pools'."""
        return max(self.min, sum(pool.min for pool in self.pools if not pool.scavenged))

    @property
    def waits(self) -> bool:
        """Whether it has nothing of its minimum yet."""
        return self.minimum > 0 and all(self.pools[int(unit[0])].scavenged for unit in (*self.units, *self.leaving))

    def parts(self) -> dict[tuple[str, str], Resources]:
        """The parts of hosts that its units have."""
        found: dict[tuple[str, str], Resources] = {}
        for unit, slices in (*self.units.items(), *self.leaving.items()):
            pool = self.pools[int(unit.partition("-")[0])]
            if pool.shape.divides:
                found |= {(h.node, unit): with_accelerators(pool.needs, pool.shape) for each in slices for h in each.hosts}
        return found


class World:
    def __init__(self, *nodes: Obj) -> None:
        self.fleet = an_inventory(*nodes)
        self.allotment = Allotment(self.fleet)
        self.jobs: dict[str, SimpleJob] = {}
        self.made = 0
        """Jobs that ever were."""
        self.woken: list[str] = []
        self.left = 0
        """Units that had to leave."""

    def job(self, name: str, *pools: SimplePool, min: int = 1, max: int | None = None, priority: int = 0) -> Self:
        """A new job, younger than all others. It has registered and got nothing yet."""
        most = max if max is not None else sum(pool.max for pool in pools)
        self.jobs[name] = SimpleJob(name, pools, min, most, priority, created=float(self.made))
        self.made += 1
        self.allotment.update(self.jobs[name].request())
        return self

    def delete(self, name: str) -> None:
        """Its pods end at once."""
        del self.jobs[name]
        self.allotment.remove(name)
        self.fleet.set_reservations(name, ())

    def act(self, name: str) -> bool:
        """One reconcile: take what is granted, leave what is revoked. True if anything changed."""
        job = self.jobs[name]
        before = (dict(job.units), dict(job.leaving))
        for unit in self.allotment.of(name).revoked:
            if unit in job.units:
                job.leaving[unit] = job.units.pop(unit)
                self.left += 1
        placement = place(job.request(), self.allotment.view(name))
        for each in placement.assigned:
            assert each.unit not in job.units or group_name(job.units[each.unit]) == each.slice, "a unit moved"
            job.units[each.unit] = each.slices
        assert len(job.units) + len(job.leaving) <= job.max
        self.fleet.set_reservations(name, job.nodes(), job.parts())
        self.allotment.update(job.request())
        self.woken += sorted(self.allotment.refresh())
        return before != (job.units, job.leaving)

    def units_end(self) -> bool:
        """The units that leave have gone. True if there were any."""
        ended = False
        for job in self.jobs.values():
            if job.leaving:
                ended = True
                job.leaving.clear()
                self.fleet.set_reservations(job.name, job.nodes(), job.parts())
                self.allotment.update(job.request())
        self.woken += sorted(self.allotment.refresh())
        return ended

    def settle(self, rounds: int = 60) -> Self:
        """Jobs act, and units end, until nothing changes."""
        self.allotment.refresh()
        for _ in range(rounds):
            acted = [self.act(name) for name in list(self.jobs)]
            if not any(acted) and not self.units_end():
                return self
        raise AssertionError(f"no fixed point after {rounds} rounds: {self.counts()}")

    def may_be_passed_over(self, job: SimpleJob) -> bool:
        """Whether the job may wait beside slices that it could use: it gets all of its minimum or waits, and what the first that waits
        keeps_for_minimum goes to no other minimum."""
        order = (-job.priority, job.created)
        before = (each for each in self.jobs.values() if each.waits and (-each.priority, each.created) <= order)
        return job.waits and any(each.minimum > 1 or any(pool.min for pool in each.pools) for each in before)

    def counts(self) -> dict[str, int]:
        """Job -> its units that run."""
        return {name: len(job.units) for name, job in self.jobs.items()}

    def restarted(self) -> Allotment:
        """The allotment of an operator that has just started."""
        found = Allotment(self.fleet)
        for job in reversed(self.jobs.values()):
            found.update(job.request())
        found.refresh()
        return found


def a_pool(min: int = 0, max: int = 4, **fields: object) -> SimplePool:
    return replace(SimplePool(min=min, max=max), **fields)  # type: ignore[arg-type]


def result_of(steps: Steps[set[str]]) -> set[str]:
    return ended(steps)[0]


def ended(steps: Steps[set[str]]) -> tuple[set[str], int]:
    """The result, and the number of steps."""
    found, count = None, 0
    while True:
        try:
            problem = steps.send(found)
        except StopIteration as end:
            return set(end.value or ()), count
        count += 1
        found = answer(problem) if problem is not None else None
