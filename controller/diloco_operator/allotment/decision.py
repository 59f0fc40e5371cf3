"""One decision over jobs that are connected through slices: the flow is asked, and its counts become slices. Pure.

Where hosts are in parts, or units of several hosts take some that wishes of others tell apart, a plan of counts is not always the best
there is, and what is found while a unit is there may be less than what is found once it has gone. Such units would leave, come back and
leave for ever. So a decision by which units leave is made once more as it will be then, and as if all stayed; they leave only if the first
yields more.

See docs/decisions/0210-units-of-several-sizes.md.
See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from diloco_operator.allotment.allotted import Allotted
from diloco_operator.allotment.classes import SliceClass
from diloco_operator.allotment.flow import Answer, FlowJob, FlowPlan, FlowProblem
from diloco_operator.allotment.flow.objective import segments
from diloco_operator.allotment.flow_problem import Applicant, Question, Questions, new_value
from diloco_operator.allotment.host_groups import Group, for_minimum, is_better, left_together, used
from diloco_operator.allotment.hosts import how_many
from diloco_operator.allotment.outcome import carry_out
from diloco_operator.allotment.stocks import Stocks
from diloco_operator.allotment.supply import LaterSupply, Supply, staying, without
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import Slice, is_divisible
from diloco_operator.placement.request import JobRequest
from diloco_operator.placement.requirements import SliceRequirements

TRIES = 3
"""For so many jobs whose minimum lacks a group of hosts it is tried whether hosts that are told apart would make one."""
type Steps[T] = Generator[FlowProblem | None, Answer | None, T]
"""Each step is short. One that yields a problem goes on when it is sent the answer; others are sent None."""


class _Made(NamedTuple):
    """What was decided."""

    allotted: dict[str, Allotted]
    is_approximate: bool
    yields: Yield

    @property
    def leaving(self) -> frozenset[tuple[str, str]]:
        """Job and unit."""
        return frozenset((job, unit) for job, found in self.allotted.items() for unit in found.revoked)


def decide(component: int, requests: Sequence[JobRequest], supply: Supply) -> Steps[dict[str, Allotted]]:
    """Who gets and gives what. `component`: the bits of the requirements by which the jobs are connected."""
    made = yield from _Decision(component, requests, supply).steps()
    if not made.leaving or not made.is_approximate:
        return made.allotted
    gone = made.leaving
    stay = yield from _Decision(component, [staying(request) for request in requests], supply).steps()
    then = yield from _unmoved(component, [without(request, gone) for request in requests], LaterSupply(supply, requests, gone))
    return made.allotted if then.yields > stay.yields else stay.allotted


def _unmoved(component: int, requests: Sequence[JobRequest], supply: Supply) -> Steps[_Made]:
    """Return what would be decided if no unit could be asked to leave."""
    made = yield from _Decision(component, requests, supply).steps()
    if made.leaving:
        made = yield from _Decision(component, [staying(request) for request in requests], supply).steps()
    return made


class _Decision:
    """Made once, in `steps`."""

    def __init__(self, component: int, requests: Sequence[JobRequest], supply: Supply) -> None:
        self._component = component
        self._requests = requests
        self._supply = supply
        self._wanted = self._telling_apart()
        self._barred: dict[Location, frozenset[int]] = {}
        """See `stocks.Barred`."""
        self._rooms: dict[int, int] = {}
        """See `_room_of`."""
        self._shared: dict[int, list[tuple[int, int]]] = {}
        """See `_shared_rooms`."""

    def _telling_apart(self) -> int:
        """Return the bits of the requirements that tell slices apart: with which units look for some now. Where units of several slices do,
        also those of units that may be asked to leave, because they will look for others: hosts that make a group beside them must still
        make one without them, or the group would come and go."""
        now = later = 0
        groups = False
        for request in self._requests:
            for pool in request.pools:
                mask = self._bit(pool.requirements) | self._bit(pool.preferred or pool.requirements)
                if pool.wanted or pool.moving:
                    now |= mask
                    groups = groups or pool.requirements.shape.slots > 1
                if pool.units and request.may_give:
                    later |= mask
        return now | later if groups else now

    def _bit(self, requirements: SliceRequirements) -> int:
        return 1 << self._supply.number(requirements)

    def steps(self) -> Steps[_Made]:
        """Ask again with groups of hosts, if these help, and as long as a unit gets part of a host on which it has no room after all."""
        groups: list[Group] = []
        question, found = yield from self._ask(groups)
        tries = TRIES
        for job in sorted(question.problem.jobs, key=lambda job: job.order):
            more = for_minimum(question, found[0], job) if tries else []
            yield None
            if more:
                tries -= 1
                asked = [*groups, *more]
                other, then = yield from self._ask(asked)
                if is_better(then[0], found[0]):
                    groups, question, found = used(other, then[0], asked), other, then
                    if len(groups) < len(asked):
                        question, found = yield from self._ask(groups)
        if rest := (yield from left_together(question, found[0])):
            groups = [*groups, *rest]
            question, found = yield from self._ask(groups)
        while True:
            outcome = yield from carry_out(question, *found)
            if not outcome.barred:
                return _Made(outcome.allotted, is_approximate(question), yield_of(question, found[0]))
            for location, numbers in outcome.barred.items():
                self._barred[location] = self._barred.get(location, frozenset()) | numbers
            question, found = yield from self._ask(groups)

    def _ask(self, groups: Sequence[Group]) -> Steps[tuple[Question, Answer]]:
        """Return what the flow says, with these groups as stocks of their own."""
        supply = self._supply
        located = [supply.located(group) for group in groups]
        stocks = Stocks(supply.within(self._component), supply.requirements, supply.host, self._barred, self._wanted, located)
        stocks.hosts(supply.hosts(self._component), supply.class_at)
        questions = Questions(stocks, supply.slices_of)
        for request in self._requests:
            questions.add(self._applicant(request))
            yield None
        question = yield from questions.ask(self._component)
        found = yield question.problem
        assert found is not None, "a problem is answered"
        return question, found

    def _applicant(self, request: JobRequest) -> Applicant:
        numbers = [self._supply.number(pool.requirements) for pool in request.pools]
        preferred = [self._supply.number(pool.preferred or pool.requirements) for pool in request.pools]
        return Applicant(request, numbers, preferred, request.runs or self._fits(request, numbers))

    def _fits(self, request: JobRequest, numbers: Sequence[int]) -> bool:
        """Return whether the minimum of a job would fit if no other job had anything. Where slices that two pools share differ, as by the
        zone that one of them asks for, one that is a little too large may seem to fit."""
        firm = [(pool, number) for pool, number in zip(request.pools, numbers, strict=True) if not pool.scavenged]
        if any(pool.min > self._room_of(number) for pool, number in firm):
            return False
        most = 0
        for mask, room in self._shared_rooms(sum({1 << number for _, number in firm})):
            # Minima first, then the smallest units: so most of them find room.
            pools = [(_size(pool.requirements), pool, number) for pool, number in firm if mask >> number & 1]
            left = room - sum(size * pool.min for size, pool, _ in pools)
            if left < 0:
                return False
            most += sum(pool.min for _, pool, _ in pools)
            for size, pool, number in sorted(pools, key=itemgetter(0)):
                more = max(0, min(pool.max - pool.min, self._room_of(number) - pool.min, left // size))
                most += more
                left -= more * size
        return request.min <= most

    def _room_of(self, number: int) -> int:
        """Return for how many units with these requirements alone the whole fleet has room."""
        if number not in self._rooms:
            self._rooms[number] = _room_in(self._supply.within(1 << number), number, self._supply.requirements(number))
        return self._rooms[number]

    def _shared_rooms(self, numbers: int) -> list[tuple[int, int]]:
        """Group requirements, by their bits, whose slices are partly the same; and what there is for each group, as `_size` counts."""
        if numbers not in self._shared:
            found: list[tuple[int, int]] = []
            for class_ in self._supply.within(numbers):
                mask, room = class_.mask & numbers, sum(map(_accelerators, class_.members.values()))
                joined = [each for each in found if each[0] & mask]
                found = [each for each in found if not each[0] & mask]
                for other, more in joined:
                    mask, room = mask | other, room + more
                found.append((mask, room))
            self._shared[numbers] = found
        return self._shared[numbers]


def _room_in(classes: Iterable[SliceClass], number: int, requirements: SliceRequirements) -> int:
    """Count the units that find room in the classes, those of several slices within a domain."""
    found: dict[Hashable, int] = {}
    shape = requirements.shape
    for class_ in classes:
        rooms = Counter(slice_.room for slice_ in class_.members.values()) if shape.divides else None
        places = sum(how_many(requirements.needs, room) * count for room, count in rooms.items()) if rooms else len(class_.members)
        place = class_.domains.get(number, class_)
        found[place] = found.get(place, 0) + places
    return sum(places // shape.slots for places in found.values())


def _size(requirements: SliceRequirements) -> int:
    """Return what a unit takes at least: accelerators, and where hosts are never divided slices."""
    shape = requirements.shape
    return max(1, shape.hosts * shape.chips_per_host) if is_divisible(shape.accelerator) else shape.slots


def _accelerators(slice_: Slice) -> int:
    """Return what a slice has, as `_size` counts."""
    return max(1, slice_.kind.chips_per_host) if is_divisible(slice_.kind.accelerator) else 1


# --- How much a decision yields, compared with another one of the same jobs -------------------------------------------
# The order is that of the flow: minima, by priority and age; then units beyond them, by priority; then what they are worth to their
# jobs, less what shares cost. It does not depend on how slices are put into classes, which differs between decisions.
class Yield(NamedTuple):
    """Greater is better."""

    minima: tuple[int, ...]
    """Units of its minimum that each job has or gets, in the order of priority and age."""
    beyond: int
    """Shares of units beyond minima, times the rank of their priority."""
    value: int
    """The value of all units, with what it costs to leave for those that stay, less what the shares of jobs cost."""


def is_approximate(question: Question) -> bool:
    """Whether a stock is a host in parts, or slices that wishes tell apart. Else the plan is exact, and what is best with a bonus for what
    is held is best again once it is held."""
    return any(stock.host is not None or stock.for_group or stock.is_spread for stock in question.stocks.values())


def yield_of(question: Question, plan: FlowPlan) -> Yield:
    """Weigh what the plan says."""
    jobs = sorted(question.problem.jobs, key=lambda job: job.order)
    ranks = {priority: rank for rank, priority in enumerate(sorted({job.priority for job in jobs}), start=1)}
    minima = tuple(_secured(job, plan) for job in jobs)
    beyond = value = 0
    for job, met in zip(jobs, minima, strict=True):
        for pools in (job.firm, tuple(pool for pool in job.pools if pool.scavenged)):
            units = 0
            for pool in pools:
                placed = plan.pools[job.key, pool.name]
                kept, taken = sum(placed.kept.values()), sum(placed.taken.values())
                units += kept + taken
                beyond += 0 if pool.scavenged else (kept + taken) * ranks[job.priority] * pool.share
                value += sum(each.value * placed.kept.get(each.class_, 0) for each in pool.held)
                value += sum(new_value(question, job.key, pool, name) * count for name, count in placed.taken.items())
            left = max(0, units - (0 if pools and pools[0].scavenged else met))
            for segment in segments(pools, left) if pools else ():
                value -= segment.units * segment.cost
    return Yield(minima, beyond, value)


def _secured(job: FlowJob, plan: FlowPlan) -> int:
    return job.protected + job.missing - plan.missing.get(job.key, 0) if job.key in plan.admitted else 0
