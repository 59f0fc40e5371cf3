"""From counts to slices: which units leave, and which slices jobs get. Pure.

Minima come first: they get the free slices, and other units wait for those that are being left. Of units that are equal to the flow, those
leave with which their job loses least.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from diloco_operator.allotment.allotted import Allotted
from diloco_operator.allotment.flow import FlowPlan, units_with_successors
from diloco_operator.allotment.flow.problem import PoolKey
from diloco_operator.allotment.flow_problem import NamedProblem
from diloco_operator.allotment.stocks import Stock
from diloco_operator.api.spec import Locality
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.resources import Resources, left
from diloco_operator.fleet.slices import Shape, Slice
from diloco_operator.placement.domains import DomainRooms
from diloco_operator.placement.request import HeldUnit, PoolRequest

_UNITS = 100
"""How many units get slices in one step."""


@dataclass(slots=True)
class Outcome:
    allotted: dict[str, Allotted]
    """Job -> what it gets and gives."""
    barred: dict[Location, set[int]]
    """Host in parts -> requirements of units that do not fit on it after all. If there are any, ask the flow again."""


class _Taker(NamedTuple):
    """One unit, or one spare, that takes part of a stock."""

    job: str
    key: PoolKey
    number: int
    demand: PoolRequest
    size: int
    serial: int
    """A number of its own among the units of its pool in this stock."""

    @property
    def shape(self) -> Shape:
        return self.demand.requirements.shape


class _Leaver(NamedTuple):
    job: str
    unit: HeldUnit


@dataclass(slots=True)
class _Job:
    granted: dict[str, list[Slice]] = field(default_factory=dict)
    revoked: dict[str, str] = field(default_factory=dict)
    checks: set[str] = field(default_factory=set)
    prepares: bool = False
    kept_for_minimum: set[str] = field(default_factory=set)

    def grant(self, pool: str, slice_: Slice) -> None:
        self.granted.setdefault(pool, []).append(slice_)


def carry_out(
    problem: NamedProblem, plan: FlowPlan, checks: frozenset[PoolKey], prepares: frozenset[str]
) -> Generator[None, object, Outcome]:
    """Carry the plan out. After each yield the caller may do anything that changes no argument.

    Args:
        checks: pools that should ask for a dry run.
        prepares: jobs that should create what their units share.
    """
    jobs = {each.request.job: _Job(prepares=each.request.job in prepares) for each in problem.applicants.values()}
    for job, index in sorted(checks):
        jobs[job].checks.add(problem.applicants[job].request.pools[int(index)].name)
    leavers = _leavers(problem, plan)
    takers = _takers(problem, plan)
    kept_for_minimum: dict[str, list[tuple[str, int]]] = {}
    for job, classes in plan.kept_for_minimum.items():
        for name, room in classes.items():
            kept_for_minimum.setdefault(name, []).append((job, room))
    yield
    barred: dict[Location, set[int]] = {}
    for name, stock in problem.stocks.items():
        taking, leaving = takers.get(name, []), leavers.get(name, [])
        if not taking and not leaving and name not in kept_for_minimum:
            continue
        if stock.host is None:
            winners = yield from _take_whole(jobs, stock, taking, kept_for_minimum.get(name, ()))
        else:
            winners = _share_host(jobs, stock, taking, leaving, barred)
        for place, leaver in enumerate(leaving):
            # No job waits if units move to better slices.
            winner = winners[min(place, len(winners) - 1)] if winners else leaver.job
            jobs[leaver.job].revoked[leaver.unit.name] = winner
        yield
    allotted = {
        key: Allotted(
            {pool: tuple(slices) for pool, slices in job.granted.items()},
            job.revoked,
            frozenset(job.checks),
            job.prepares,
            frozenset(job.kept_for_minimum),
        )
        for key, job in jobs.items()
        if job.granted or job.revoked or job.checks or job.prepares or job.kept_for_minimum
    }
    return Outcome(allotted, barred)


# --- who leaves, and who takes -----------------------------------------------------------------------------------------------
def _leavers(problem: NamedProblem, plan: FlowPlan) -> dict[str, list[_Leaver]]:
    """Return stock -> units that leave it: those with which their job loses least, and among these the last."""
    leavers: dict[str, list[_Leaver]] = {}
    for (key, name), units in problem.held.items():
        count = len(units) - plan.pools[key].staying.get(name, 0)
        if count:
            # Units that settle cannot be asked to leave yet. The flow knows that, and has counted them among the kept.
            movable = sorted((unit for unit in reversed(units) if not unit.settling), key=lambda unit: unit.leaving_rank)
            leavers.setdefault(name, []).extend(_Leaver(key[0], unit) for unit in movable[:count])
    return leavers


def _takers(problem: NamedProblem, plan: FlowPlan) -> dict[str, list[_Taker]]:
    """Return stock -> the units that take from it, in order.

    First come successors, for which units of a minimum wait before they leave; then new units of a minimum, other new units, and at last
    units that would leave their slices. Within each group, jobs come in their order.
    """
    successors: dict[str, list[_Taker]] = {}
    firsts: dict[str, list[_Taker]] = {}
    others: dict[str, list[_Taker]] = {}
    lasts: dict[str, list[_Taker]] = {}
    jobs = {job.key: job for job in problem.flow.jobs}
    for job in sorted(jobs.values(), key=lambda job: job.order):
        (request, numbers, *_), missing, replaces = problem.applicants[job.key], job.missing, units_with_successors(job, plan) > 0
        for pool in job.pools:
            key, index = (job.key, pool.name), int(pool.name)
            demand, number, placed = request.pools[index], numbers[index], plan.pools[key]
            for counts, is_new in ((placed.taken, True), (placed.moved_to, False)):
                for name, count in sorted(counts.items()):
                    size = problem.stocks[name].sizes[number]
                    for serial in range(count):
                        taker = _Taker(request.job, key, number, demand, size, serial + (0 if is_new else placed.taken.get(name, 0)))
                        may_be_of_minimum = is_new and not demand.scavenged
                        is_of_minimum = may_be_of_minimum and missing > 0
                        if is_of_minimum:
                            missing -= 1
                        if may_be_of_minimum and replaces:
                            group = successors
                        elif is_of_minimum:
                            group = firsts
                        elif is_new:
                            group = others
                        else:
                            group = lasts
                        group.setdefault(name, []).append(taker)
    groups = (successors, firsts, others, lasts)
    return {name: [taker for group in groups for taker in group.get(name, ())] for name in dict.fromkeys(chain(*groups))}


# --- whole slices -------------------------------------------------------------------------------------------------------------
class _OpenHosts:
    """Hosts that this plan divides between units. Two on which the same is left are interchangeable."""

    def __init__(self) -> None:
        self._hosts: dict[Resources, deque[Slice | None]] = {}
        """What is left -> hosts. None stands for a host that units are leaving: it is divided once they have gone."""

    def take(self, needs: Resources) -> tuple[Slice | None, Resources] | None:
        """Take out the fullest host with room for these needs, and return it with what is left on it. None if no host has room."""
        fitting = (rest for rest in self._hosts if needs.fits(rest))
        rest = min(fitting, key=lambda rest: tuple(amount for _, amount in rest.devices), default=None)
        if rest is None:
            return None
        hosts = self._hosts[rest]
        host = hosts.popleft()
        if not hosts:
            del self._hosts[rest]
        return host, rest

    def put(self, host: Slice | None, rest: Resources) -> None:
        self._hosts.setdefault(rest, deque()).append(host)


def _take_whole(
    jobs: dict[str, _Job], stock: Stock, takers: list[_Taker], kept_for_minimum: Sequence[tuple[str, int]]
) -> Generator[None, object, list[str]]:
    """Give out the slices of a stock, free ones first. Returns, for each slice that a unit must leave now, the job that waits for it.

    Args:
        kept_for_minimum: jobs that wait for their minimum, and how much room of the stock each keeps.
    """
    free, leaving = _FreeSlices(stock), len(stock.leaving)
    waiting: list[str] = []
    open_ = _OpenHosts()

    def later(job: str) -> None:
        """Let the job wait for a slice that is being left already, or else for one that a unit must leave."""
        nonlocal leaving
        if leaving > 0:
            leaving -= 1
        else:
            waiting.append(job)

    # The largest first, because small units would break up hosts that are near to each other, or empty. Equal ones keep their order.
    for count, taker in enumerate(sorted(takers, key=lambda taker: -taker.size), start=1):
        if count % _UNITS == 0:
            yield
        slots = min(taker.size // stock.points_per_slice, taker.shape.slots)
        if slots:
            for slice_ in free.near(slots):
                jobs[taker.job].grant(taker.demand.name, slice_)
                slots -= 1
            for _ in range(slots):
                later(taker.job)
            continue
        needs = taker.demand.requirements.needs
        if (opened := open_.take(needs)) is not None:
            host, rest = opened
        elif (host := free.next()) is not None:
            rest = host.room
        else:
            rest = stock.room_of_each
            later(taker.job)
        open_.put(host, left(rest, (needs,)))
        if host is not None:
            jobs[taker.job].grant(taker.demand.name, _part(host, taker))
    for job, room in kept_for_minimum:
        for _ in range(-(-room * stock.points_per_room // stock.points_per_slice)):
            if (kept := free.next()) is not None:
                jobs[job].kept_for_minimum.add(kept.key)
    return waiting


class _FreeSlices:
    """The free slices of a stock, in the order in which the inventory offers them."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._ordered = deque(stock.free)
        self._taken: set[str] = set()
        self._rooms: DomainRooms | None = None

    def next(self) -> Slice | None:
        """Take the next free slice. None if no slice is left."""
        while self._ordered:
            slice_ = self._stock.slice_at(self._ordered.popleft())
            if slice_.key not in self._taken:
                if self._rooms is not None:
                    # Else `near` would give it to another unit as well.
                    self._rooms.discard(slice_)
                return slice_
        return None

    def near(self, count: int) -> list[Slice]:
        """Take `count` slices that are as near to each other as possible, or fewer if no more are left."""
        if count > 1:
            if self._rooms is None:
                self._rooms = DomainRooms(map(self._stock.slice_at, self._ordered), Locality.ANY)
            if slices := self._rooms.take(count):
                self._taken.update(slice_.key for slice_ in slices)
                return slices
        return [slice_ for _ in range(count) if (slice_ := self.next()) is not None]


# --- parts of a host ------------------------------------------------------------------------------------------------------------
def _share_host(
    jobs: dict[str, _Job], stock: Stock, takers: list[_Taker], leave: list[_Leaver], barred: dict[Location, set[int]]
) -> list[str]:
    """Give out one host in parts. Returns the jobs that wait for what units must leave or are leaving."""
    host = stock.host
    assert host is not None
    gone = {(leaver.job, leaver.unit.name) for leaver in leave}
    stay = [needs for key, needs in host.units.items() if key not in gone]
    rest, now = left(host.whole.room, stay), host.now
    waiting: list[str] = []
    is_empty = not stay
    for taker in takers:
        needs = taker.demand.requirements.needs if taker.shape.divides else host.whole.room
        if not needs.fits(rest) or (not taker.shape.divides and not is_empty):
            # Its points fit, but the unit does not. The next problem must leave this pair out, or the flow gives the same answer again.
            barred.setdefault(host.location, set()).add(taker.number)
            continue
        rest, is_empty = left(rest, (needs,)), False
        if needs.fits(now):
            now = left(now, (needs,))
            jobs[taker.job].grant(taker.demand.name, _part(host.whole, taker) if taker.shape.divides else host.whole)
        else:
            waiting.append(taker.job)
    return waiting


def _part(whole: Slice, taker: _Taker) -> Slice:
    """Return the part of a host that a unit takes, as a slice of a smaller host."""
    kind = whole.kind._replace(chips_per_host=min(whole.kind.chips_per_host, taker.shape.chips_per_host))
    name = f"{'/'.join(taker.key)}#{taker.serial}"
    return replace(whole, kind=kind, room=taker.demand.requirements.needs, part=name, in_part=True)
