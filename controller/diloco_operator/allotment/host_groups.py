"""Groups of hosts for units of several, beyond those that one stock has. Pure.

A unit of several hosts takes them from one stock, and hosts that a wish of another pool tells apart, as by a label that it asks for, are
of two. So the flow is asked again with some of them as one group: what no other unit takes, and, for a minimum, what others have beyond
theirs.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import NamedTuple

from diloco_operator.allotment.flow import FlowPlan
from diloco_operator.allotment.flow.problem import FlowJob
from diloco_operator.allotment.flow_problem import Question
from diloco_operator.allotment.stocks import Stock
from diloco_operator.fleet.inventory import Location
from diloco_operator.fleet.slices import Slice
from diloco_operator.placement.domains import DomainRooms

type Group = list[Location]


class _Host(NamedTuple):
    stock: Stock
    location: Location
    slice_: Slice


def left_together(question: Question, plan: FlowPlan) -> Generator[None, object, list[Group]]:
    """Find hosts that no unit takes for units that still wait. In steps of one job."""
    hosts: dict[str, _Host] | None = None
    found: list[Group] = []
    for job in sorted(question.problem.jobs, key=lambda job: job.order):
        waiting = {pool.name: pool.wanted - sum(plan.pools[job.key, pool.name].taken.values()) for pool in job.pools}
        if _wants_groups(question, job, waiting):
            hosts = _by_key(_free(question, plan, _taken(question, plan), leaving=False)) if hosts is None else hosts
            found += _groups(question, job, waiting, hosts)
            yield
    return found


def for_minimum(question: Question, plan: FlowPlan, job: FlowJob) -> list[Group]:
    """Find hosts that no minimum needs for those of this job's units that its minimum lacks: those that are free first."""
    lacks = plan.missing.get(job.key, 0) if job.key in plan.admitted else job.missing
    waiting = {pool.name: min(lacks, pool.wanted - sum(plan.pools[job.key, pool.name].taken.values())) for pool in job.firm}
    if not _wants_groups(question, job, waiting):
        return []
    taken = _taken(question, plan, minima=True)
    hosts = _by_key([*_free(question, plan, taken, leaving=True, claimant=job.key), *_surplus(question, job)])
    return list(_groups(question, job, waiting, hosts))


def is_better(then: FlowPlan, now: FlowPlan) -> bool:
    """Return whether more minima are met, and none of those less that were met before."""
    if not now.admitted <= then.admitted or any(then.missing.get(job, 0) > now.missing.get(job, 0) for job in now.admitted):
        return False
    return len(then.admitted) > len(now.admitted) or sum(then.missing.values()) < sum(now.missing.values())


def used(question: Question, plan: FlowPlan, groups: Iterable[Group]) -> list[Group]:
    """Leave out groups that no unit takes after all: small ones may have those hosts."""
    taken = {name for placed in plan.pools.values() for counts in (placed.taken, placed.replaced) for name in counts}
    firsts = {stock.first for name, stock in question.stocks.items() if stock.for_group and name in taken}
    return [group for group in groups if min(group) in firsts]


def _wants_groups(question: Question, job: FlowJob, waiting: dict[str, int]) -> bool:
    demands = question.applicants[job.key].request.pools
    return any(waiting.get(str(index), 0) > 0 and demand.requirements.shape.slots > 1 for index, demand in enumerate(demands))


def _groups(question: Question, job: FlowJob, waiting: dict[str, int], hosts: dict[str, _Host]) -> Iterable[Group]:
    """Yield for each unit as many as it needs, of one domain, as near to each other as there are; of one stock the flow can give them
    itself."""
    applicant = question.applicants[job.key]
    for index, (demand, number) in enumerate(zip(applicant.request.pools, applicant.numbers, strict=True)):
        slots, count = demand.requirements.shape.slots, waiting.get(str(index), 0)
        if slots == 1 or count <= 0:
            continue
        rooms = DomainRooms((host.slice_ for host in hosts.values() if host.stock.meets(number)), demand.requirements.locality)
        while count > 0 and (slices := rooms.take(slots)):
            count -= 1
            places = [hosts.pop(slice_.key) for slice_ in slices]
            if len({host.stock.name for host in places}) > 1:
                yield [host.location for host in places]


# --- which hosts ------------------------------------------------------------------------------------------------------------------
def _taken(question: Question, plan: FlowPlan, *, minima: bool = False) -> Counter[str]:
    """Return points of each stock that new units take. `minima`: only those that a minimum lacks, its pools in order."""
    found: Counter[str] = Counter()
    for job in question.problem.jobs:
        lacks = job.missing if job.key in plan.admitted else 0
        for pool in job.pools:
            placed = plan.pools[job.key, pool.name]
            number = question.applicants[job.key].numbers[int(pool.name)]
            for counts in (placed.taken,) if minima else (placed.taken, placed.replaced):
                for name, units in counts.items():
                    here = min(units, lacks if not pool.scavenged else 0) if minima else units
                    lacks -= here
                    found[name] += here * question.stocks[name].sizes[number]
    return found


def _free(question: Question, plan: FlowPlan, taken: Counter[str], *, leaving: bool, claimant: str = "") -> Iterable[_Host]:
    """Return what is left of free slices, and, with `leaving`, of those that units are leaving; nothing of a stock that the minimum of
    another job than `claimant` keeps for its minimum."""
    kept_for_minimum = {name for job, classes in plan.kept_for_minimum.items() for name in classes if job != claimant}
    for name, stock in question.stocks.items():
        if stock.host is None and name not in kept_for_minimum:
            places = [*stock.free, *(stock.leaving if leaving else ())]
            for location in places[-(-taken[name] // stock.each) :]:
                yield _Host(stock, location, stock.slice_at(location))


def _surplus(question: Question, claimant: FlowJob) -> Iterable[_Host]:
    """Return hosts of units that others have beyond their minima: of each stock as many as these can give in all. Which of them leave is
    for the flow to say."""
    for job in question.problem.jobs:
        beyond = sum(pool.has for pool in job.pools) - job.staying if job.key != claimant.key else 0
        for pool in job.pools:
            spare = max(0, min(beyond, pool.has - (0 if pool.scavenged else pool.min)))
            for each in pool.held:
                stock = question.stocks[each.class_]
                units = [unit for unit in question.held[(job.key, pool.name), each.class_] if not unit.settling]
                for unit in units[:spare] if stock.host is None else ():
                    if len(places := question.located(unit)) == 1:
                        yield from (_Host(stock, location, class_.members[location]) for class_, location in places)


def _by_key(hosts: Iterable[_Host]) -> dict[str, _Host]:
    return {host.slice_.key: host for host in hosts}
