"""One decision over jobs that are connected through slices: the flow is asked, and its counts become slices. Pure.

Where hosts are in parts, or other pools tell apart the hosts that a unit of several hosts takes, the plan is not always the best one. A
unit may then leave for a plan that turns out to be worse once it has gone: it would come back, and leave again, for ever. So a decision by
which units leave is made twice more: for the fleet once they have gone, and as if all stayed. They leave only if the former yields more.

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
from diloco_operator.allotment.flow_problem import Applicant, NamedProblem, ProblemBuilder, new_value
from diloco_operator.allotment.host_groups import Group, for_minimum, is_better, left_together, used
from diloco_operator.allotment.hosts import how_many
from diloco_operator.allotment.outcome import carry_out
from diloco_operator.allotment.stocks import Stocks
from diloco_operator.allotment.supply import LaterSupply, Supply, staying, without
from diloco_operator.fleet.inventory import Location
from diloco_operator.placement.request import JobRequest
from diloco_operator.placement.requirements import SliceRequirements

TRIES = 3
"""For how many jobs whose minimum lacks hosts a decision tries groups of hosts of several stocks."""
type Steps[T] = Generator[FlowProblem | None, Answer | None, T]
"""Short steps. A step that yields a problem must be sent the answer; one that yields None is sent None."""


class Decided(NamedTuple):
    allotted: dict[str, Allotted]
    """Job -> what it gets and gives."""
    is_complete: bool
    """False if time ran out before it was known whether some minimum can be met."""
    is_approximate: bool
    yields: Yield

    @property
    def leaving(self) -> frozenset[tuple[str, str]]:
        """(job, unit) of all units that must leave."""
        return frozenset((job, unit) for job, allotted in self.allotted.items() for unit in allotted.revoked)


def decide(component: int, requests: Sequence[JobRequest], supply: Supply) -> Steps[Decided]:
    """Decide on the jobs of these requests. `component` has the bits of the requirements that connect them."""
    made = yield from _Decision(component, requests, supply).steps()
    if not made.leaving or not made.is_approximate:
        return made
    # The plan may be worse than it looks: see the module's docstring.
    gone = made.leaving
    if_all_stay = yield from _Decision(component, [staying(request) for request in requests], supply).steps()
    afterwards = yield from _unmoved(component, [without(request, gone) for request in requests], LaterSupply(supply, requests, gone))
    return made if afterwards.yields > if_all_stay.yields else if_all_stay


def _unmoved(component: int, requests: Sequence[JobRequest], supply: Supply) -> Steps[Decided]:
    """Return what is decided, or if units would leave again, what is decided as if all stayed."""
    made = yield from _Decision(component, requests, supply).steps()
    if made.leaving:
        made = yield from _Decision(component, [staying(request) for request in requests], supply).steps()
    return made


class _Decision:
    """One decision: make an object for each, and run `steps` once."""

    def __init__(self, component: int, requests: Sequence[JobRequest], supply: Supply) -> None:
        self._component = component
        self._requests = requests
        self._supply = supply
        self._wanted = self._telling_apart()
        self._barred: dict[Location, frozenset[int]] = {}
        """See `stocks.Barred`."""
        self._rooms: dict[int, int] = {}
        """The results of `_room_of`."""
        self._shared: dict[int, list[tuple[int, int]]] = {}
        """The results of `_shared_rooms`."""

    def _telling_apart(self) -> int:
        """Return the bits of the requirements that tell slices apart: of units that want slices now, and if some of these want several
        slices each, also of units that may be asked to leave."""
        # A unit that is asked to leave looks for other slices later. Hosts that make a group beside it must still make one then, or the
        # group would come and go.
        now = later = 0
        groups = False
        for request in self._requests:
            for pool in request.pools:
                mask = self._bit(pool.requirements) | self._bit(pool.preferred or pool.requirements)
                if pool.wanted or pool.moving or pool.spares:
                    now |= mask
                    groups = groups or pool.requirements.shape.slots > 1
                if pool.units and request.may_give:
                    later |= mask
        return now | later if groups else now

    def _bit(self, requirements: SliceRequirements) -> int:
        return 1 << self._supply.number(requirements)

    def steps(self) -> Steps[Decided]:
        """Decide. The flow is asked again with groups of hosts if these help, and as long as it puts units on hosts in parts where they do
        not fit after all."""
        groups: list[Group] = []
        problem, answer = yield from self._ask(groups)
        tries = TRIES
        for job in sorted(problem.flow.jobs, key=lambda job: job.order):
            new_groups = for_minimum(problem, answer[0], job) if tries else []
            yield None
            if new_groups:
                tries -= 1
                tried = [*groups, *new_groups]
                new_problem, new_answer = yield from self._ask(tried)
                if is_better(new_answer[0], answer[0]):
                    groups, problem, answer = used(new_problem, new_answer[0], tried), new_problem, new_answer
                    if len(groups) < len(tried):  # hosts of unused groups are for small units again
                        problem, answer = yield from self._ask(groups)
        if rest := (yield from left_together(problem, answer[0])):
            groups = [*groups, *rest]
            problem, answer = yield from self._ask(groups)
        while True:
            outcome = yield from carry_out(problem, *answer)
            if not outcome.barred:
                return Decided(outcome.allotted, not answer[0].undecided, is_approximate(problem), yield_of(problem, answer[0]))
            for location, numbers in outcome.barred.items():
                self._barred[location] = self._barred.get(location, frozenset()) | numbers
            problem, answer = yield from self._ask(groups)

    def _ask(self, groups: Sequence[Group]) -> Steps[tuple[NamedProblem, Answer]]:
        """Ask the flow, with these groups as stocks of their own. Returns the problem and the answer."""
        supply = self._supply
        located = [supply.located(group) for group in groups]
        stocks = Stocks(supply.within(self._component), supply.requirements, supply.host, self._barred, self._wanted, located)
        stocks.hosts(supply.hosts(self._component), supply.class_at)
        builder = ProblemBuilder(stocks, supply.slices_of)
        for request in self._requests:
            builder.add(self._applicant(request))
            yield None
        problem = yield from builder.build(self._component)
        answer = yield problem.flow
        assert answer is not None, "a problem is answered"
        return problem, answer

    def _applicant(self, request: JobRequest) -> Applicant:
        numbers = [self._supply.number(pool.requirements) for pool in request.pools]
        preferred = [self._supply.number(pool.preferred or pool.requirements) for pool in request.pools]
        return Applicant(request, numbers, preferred, request.runs or self._fits(request, numbers))

    def _fits(self, request: JobRequest, numbers: Sequence[int]) -> bool:
        """Whether the minimum of a job would fit if no other job had anything. One that is a little too large may seem to fit if two pools
        share only part of their slices, as when one of them asks for a zone."""
        firm = [(pool, number) for pool, number in zip(request.pools, numbers, strict=True) if not pool.scavenged]
        if any(pool.min > self._room_of(number) for pool, number in firm):
            return False
        most = 0
        for mask, room in self._shared_rooms(sum({1 << number for _, number in firm})):
            # Minima first, then the smallest units, so that as many units as possible fit.
            pools = [(pool.requirements.shape.smallest_units, pool, number) for pool, number in firm if mask >> number & 1]
            room_left = room - sum(size * pool.min for size, pool, _ in pools)
            if room_left < 0:
                return False
            most += sum(pool.min for _, pool, _ in pools)
            for size, pool, number in sorted(pools, key=itemgetter(0)):
                added = max(0, min(pool.max - pool.min, self._room_of(number) - pool.min, room_left // size))
                most += added
                room_left -= added * size
        return request.min <= most

    def _room_of(self, number: int) -> int:
        """Return how many units with these requirements the empty fleet could hold."""
        if number not in self._rooms:
            self._rooms[number] = _room_in(self._supply.within(1 << number), number, self._supply.requirements(number))
        return self._rooms[number]

    def _shared_rooms(self, numbers: int) -> list[tuple[int, int]]:
        """Group requirements whose slices are partly the same. Returns the bits of each group, and its room, in smallest units."""
        if numbers not in self._shared:
            groups: list[tuple[int, int]] = []
            for class_ in self._supply.within(numbers):
                mask, room = class_.mask & numbers, sum(slice_.kind.smallest_units for slice_ in class_.members.values())
                joined = [each for each in groups if each[0] & mask]
                groups = [each for each in groups if not each[0] & mask]
                for other, other_room in joined:
                    mask, room = mask | other, room + other_room
                groups.append((mask, room))
            self._shared[numbers] = groups
        return self._shared[numbers]


def _room_in(classes: Iterable[SliceClass], number: int, requirements: SliceRequirements) -> int:
    """Return how many units the classes can hold. The slices of one unit are of one domain."""
    slices: dict[Hashable, int] = {}
    shape = requirements.shape
    for class_ in classes:
        rooms = Counter(slice_.room for slice_ in class_.members.values()) if shape.divides else None
        places = sum(how_many(requirements.needs, room) * count for room, count in rooms.items()) if rooms else len(class_.members)
        domain = class_.domains.get(number, class_)
        slices[domain] = slices.get(domain, 0) + places
    return sum(places // shape.slots for places in slices.values())


# --- How much a decision yields, compared with another one of the same jobs -------------------------------------------
# The order is that of the flow: minima, by priority and age; then units beyond them, by priority; then what all are worth to their jobs,
# less what shares cost. It does not depend on the stocks, which differ between decisions.
class Yield(NamedTuple):
    """Greater is better."""

    minima: tuple[int, ...]
    """For each job, in the order of priority and age: units of its minimum that it has or gets."""
    beyond: int
    """The sum over units beyond minima: each unit's share, times the rank of its priority."""
    value: int
    """The value of all units, plus the cost of leaving of each that stays, less what the shares of jobs cost."""


def is_approximate(problem: NamedProblem) -> bool:
    """Whether the plan may not be the best one: a stock is a host in parts, or joins slices that are told apart."""
    # Else the plan is exact, and what is best with a bonus for held slices is best again once they are held.
    return any(stock.host is not None or stock.for_group or stock.is_spread for stock in problem.stocks.values())


def yield_of(problem: NamedProblem, plan: FlowPlan) -> Yield:
    jobs = sorted(problem.flow.jobs, key=lambda job: job.order)
    ranks = {priority: rank for rank, priority in enumerate(sorted({job.priority for job in jobs}), start=1)}
    minima = tuple(_secured(job, plan) for job in jobs)
    beyond = value = 0
    for job, met in zip(jobs, minima, strict=True):
        for pools in (job.firm, tuple(pool for pool in job.pools if pool.scavenged)):
            units = 0
            for pool in pools:
                placed = plan.pools[job.key, pool.name]
                kept, taken = sum(placed.staying.values()), sum(placed.taken.values())
                units += kept + taken
                beyond += 0 if pool.scavenged else (kept + taken) * ranks[job.priority] * pool.share
                value += sum(each.value * placed.staying.get(each.class_, 0) for each in pool.held)
                value += sum(new_value(problem, job.key, pool, name) * count for name, count in placed.taken.items())
            units_beyond = max(0, units - (0 if pools and pools[0].scavenged else met))
            for segment in segments(pools, units_beyond, job.share_before) if pools else ():
                value -= segment.units * segment.cost
    return Yield(minima, beyond, value)


def _secured(job: FlowJob, plan: FlowPlan) -> int:
    return job.protected + job.missing - plan.missing.get(job.key, 0) if job.key in plan.admitted else 0
