"""Groups of hosts from several stocks, for units of several hosts. Pure.

The flow gives a unit of several hosts only hosts of one stock. But hosts are of two stocks as soon as another pool tells them apart, as by
a label. So the flow is asked again with some of them as one group: hosts that no other unit takes, and, for a minimum, those that other
jobs have beyond theirs.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import NamedTuple

from diloco_operator.allotment.flow import FlowPlan
from diloco_operator.allotment.flow.problem import FlowJob
from diloco_operator.allotment.flow_problem import NamedProblem
from diloco_operator.allotment.stocks import Stock
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.domains import DomainRooms

type Group = list[Location]


class _Host(NamedTuple):
    stock: Stock
    location: Location
    slice_: Slice


def left_together(problem: NamedProblem, plan: FlowPlan) -> Generator[None, object, list[Group]]:
    """Return groups of hosts that the plan gives to no unit, for units that still wait. It yields after each job."""
    hosts: dict[str, _Host] | None = None
    groups: list[Group] = []
    for job in sorted(problem.flow.jobs, key=lambda job: job.order):
        waiting = {pool.name: pool.wanted - sum(plan.pools[job.key, pool.name].taken.values()) for pool in job.pools}
        if _wants_groups(problem, job, waiting):
            hosts = _by_key(_free(problem, plan, _taken(problem, plan), leaving=False)) if hosts is None else hosts
            groups += _groups(problem, job, waiting, hosts)
            yield
    return groups


def for_minimum(problem: NamedProblem, plan: FlowPlan, job: FlowJob) -> list[Group]:
    """Return groups of hosts that no minimum needs, for the units that this job's minimum lacks. Free hosts are taken first."""
    lacks = plan.missing.get(job.key, 0) if job.key in plan.admitted else job.missing
    waiting = {pool.name: min(lacks, pool.wanted - sum(plan.pools[job.key, pool.name].taken.values())) for pool in job.firm}
    if not _wants_groups(problem, job, waiting):
        return []
    taken = _taken(problem, plan, minima=True)
    hosts = _by_key([*_free(problem, plan, taken, leaving=True, claimant=job.key), *_surplus(problem, job)])
    return list(_groups(problem, job, waiting, hosts))


def is_better(then: FlowPlan, now: FlowPlan) -> bool:
    """Whether more minima are met, and none lacks more units than before."""
    if not now.admitted <= then.admitted or any(then.missing.get(job, 0) > now.missing.get(job, 0) for job in now.admitted):
        return False
    return len(then.admitted) > len(now.admitted) or sum(then.missing.values()) < sum(now.missing.values())


def used(problem: NamedProblem, plan: FlowPlan, groups: Iterable[Group]) -> list[Group]:
    """Return the groups that the plan uses. The hosts of the others are free for small units again."""
    taken = {name for placed in plan.pools.values() for counts in (placed.taken, placed.moved_to) for name in counts}
    firsts = {stock.first for name, stock in problem.stocks.items() if stock.for_group and name in taken}
    return [group for group in groups if min(group) in firsts]


def _wants_groups(problem: NamedProblem, job: FlowJob, waiting: dict[str, int]) -> bool:
    demands = problem.applicants[job.key].request.pools
    return any(waiting.get(str(index), 0) > 0 and demand.requirements.shape.slots > 1 for index, demand in enumerate(demands))


def _groups(problem: NamedProblem, job: FlowJob, waiting: dict[str, int], hosts: dict[str, _Host]) -> Iterable[Group]:
    """Yield hosts for each waiting unit: of one domain, and as near to each other as possible."""
    applicant = problem.applicants[job.key]
    for index, (demand, number) in enumerate(zip(applicant.request.pools, applicant.numbers, strict=True)):
        slots, count = demand.requirements.shape.slots, waiting.get(str(index), 0)
        if slots == 1 or count <= 0:
            continue
        rooms = DomainRooms((host.slice_ for host in hosts.values() if host.stock.meets(number)), demand.requirements.locality)
        while count > 0 and (slices := rooms.take(slots)):
            count -= 1
            places = [hosts.pop(slice_.key) for slice_ in slices]
            # The flow itself can give the unit hosts of one stock.
            if len({host.stock.name for host in places}) > 1:
                yield [host.location for host in places]


# --- which hosts ------------------------------------------------------------------------------------------------------------------
def _taken(problem: NamedProblem, plan: FlowPlan, *, minima: bool = False) -> Counter[str]:
    """Return stock -> points that new units take of it. With `minima`, only units that a minimum lacks count, in the order of the pools."""
    taken: Counter[str] = Counter()
    for job in problem.flow.jobs:
        lacks = job.missing if job.key in plan.admitted else 0
        for pool in job.pools:
            placed = plan.pools[job.key, pool.name]
            number = problem.applicants[job.key].numbers[int(pool.name)]
            for counts in (placed.taken,) if minima else (placed.taken, placed.moved_to):
                for name, units in counts.items():
                    counted = units
                    if minima:
                        counted = 0 if pool.scavenged else min(units, lacks)
                        lacks -= counted
                    taken[name] += counted * problem.stocks[name].sizes[number]
    return taken


def _free(problem: NamedProblem, plan: FlowPlan, taken: Counter[str], *, leaving: bool, claimant: str = "") -> Iterable[_Host]:
    """Yield the free hosts that are left of each stock.

    Args:
        taken: points of each stock that are gone.
        leaving: also yield hosts that units are leaving.
        claimant: the job that asks. A stock in which another job keeps slices for its minimum gives it nothing.
    """
    kept_for_minimum = {name for job, classes in plan.kept_for_minimum.items() for name in classes if job != claimant}
    for name, stock in problem.stocks.items():
        if stock.host is None and name not in kept_for_minimum:
            places = [*stock.free, *(stock.leaving if leaving else ())]
            for location in places[-(-taken[name] // stock.points_per_slice) :]:
                yield _Host(stock, location, stock.slice_at(location))


def _surplus(problem: NamedProblem, claimant: FlowJob) -> Iterable[_Host]:
    """Yield hosts of units that other jobs have beyond their minima: in each stock as many as the job can give in all. The flow decides
    which of them leave."""
    for job in problem.flow.jobs:
        beyond = sum(pool.has for pool in job.pools) - job.staying if job.key != claimant.key else 0
        for pool in job.pools:
            spare = max(0, min(beyond, pool.has - (0 if pool.scavenged else pool.min)))
            for each in pool.held:
                stock = problem.stocks[each.class_]
                units = [unit for unit in problem.held[(job.key, pool.name), each.class_] if not unit.settling]
                for unit in units[:spare] if stock.host is None else ():
                    if len(places := problem.located(unit)) == 1:
                        yield from (_Host(stock, location, class_.members[location]) for class_, location in places)


def _by_key(hosts: Iterable[_Host]) -> dict[str, _Host]:
    return {host.slice_.key: host for host in hosts}
