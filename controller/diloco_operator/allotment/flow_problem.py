"""The problem for the flow: what jobs want, and which stocks there are. Pure.

The value of a unit is made of what a slice of its kind is worth to the job, which weighs most, then the place of its pool in the job, then
whether the pool prefers the slices, then how tightly the unit fits.

See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.allotment.classes import Located
from diloco_operator.allotment.flow.problem import MEAN, FlowClass, FlowHeld, FlowJob, FlowPool, FlowProblem, PoolKey
from diloco_operator.allotment.stocks import Stock, Stocks
from diloco_operator.fleet.slices import is_divisible
from diloco_operator.placement.request import HeldUnit, JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements

EARLIER_POOL, POOLS = 16, 4
"""`EARLIER_POOL` is the difference in value between a pool and the next one of its job. From the fifth pool on there is none."""
PREFERRED = 10
"""What is added for slices that the pool prefers."""
FIT = 6
"""What is added for a unit that fits exactly."""
FEW = 3
"""What is added for slices that few other requirements could use."""
STAY = 120
"""What leaving a slice costs at least. It is more than all of the above together, so no unit moves for them, and less than a segment of a
share, so equal jobs come to equal shares."""
SPARE = 60
"""What is added for a spare: of equal jobs, one keeps its spare unless another has a smaller share."""
RANK_STEP = 1
"""What one more `HeldUnit.leaving_rank` adds to the cost of leaving: of equal units, those leave with which their job loses least."""

type SlicesOf = Callable[[HeldUnit], list[Located]]
"""Returns the usable slices of a unit."""


class Applicant(NamedTuple):
    request: JobRequest
    numbers: Sequence[int]
    """For each pool, the number of its requirements."""
    preferred: Sequence[int]
    """For each pool, the number of the requirements that it prefers, or that of `numbers`."""
    fits: bool
    """Its minimum would fit if no other job had anything."""


@dataclass(slots=True)
class NamedProblem:
    """A problem, and what the names in it stand for."""

    applicants: dict[str, Applicant]
    """`FlowJob.key` -> whose it is. The spares of a job are a `FlowJob` of their own, with some of its pools."""
    flow: FlowProblem
    stocks: dict[str, Stock]
    held: dict[tuple[PoolKey, str], list[HeldUnit]]
    """Pool and stock -> the units there."""
    located: SlicesOf


class ProblemBuilder:
    """Makes one problem: `add` each job, then `build`."""

    def __init__(self, stocks: Stocks, slices_of: SlicesOf) -> None:
        self._stocks = stocks
        self._slices_of = slices_of
        self._applicants: dict[str, Applicant] = {}
        self._held: dict[tuple[PoolKey, Stock], list[HeldUnit]] = {}
        self._stocks_of: dict[PoolKey, dict[Stock, None]] = {}
        self._fixed: dict[PoolKey, int] = {}
        """Pool -> how many of its units are on slices that no other pool can use. They stay."""

    def add(self, applicant: Applicant) -> None:
        """Add a job, and what its units hold to the stocks."""
        request = applicant.request
        self._applicants[request.job] = applicant
        for index, (demand, number) in enumerate(zip(request.pools, applicant.numbers, strict=True)):
            key = (request.job, str(index))
            for unit in demand.units:
                stock = self._stock_of(request.job, demand, unit)
                if stock is None:
                    self._fixed[key] = self._fixed.get(key, 0) + 1
                    continue
                stock.held += stock.note(number, demand.requirements)
                self._held.setdefault((key, stock), []).append(unit)
                self._stocks_of.setdefault(key, {})[stock] = None

    def _stock_of(self, job: str, demand: PoolRequest, unit: HeldUnit) -> Stock | None:
        """Return the stock that a unit's slices are from. None if others cannot use what it has."""
        slices = self._slices_of(unit)
        if len(slices) != demand.requirements.shape.slots:
            return None
        stocks = {stock: None for class_, location in slices if (stock := self._stocks.at(class_, location))}
        if len(stocks) == 1:
            stock = next(iter(stocks))
            if stock.host is not None and (job, unit.name) not in stock.host.units:
                return None  # the host is in parts, and the unit has none of them
            return stock
        return self._stocks.spread(slices)

    def build(self, component: int) -> Generator[None, object, NamedProblem]:
        """Return the problem of all jobs and of the stocks with these requirements. After each yield the caller may do anything that
        changes no argument."""
        stocks = self._stocks.finish(component)
        by_requirements: dict[int, list[Stock]] = {}
        for stock in stocks:
            for number in stock.sizes:
                if stock.meets(number):
                    by_requirements.setdefault(number, []).append(stock)
        yield
        jobs: list[FlowJob] = []
        for applicant in [*self._applicants.values()]:
            jobs.append(self._job(applicant, by_requirements))
            if (spares := _spares(applicant, jobs[-1])) is not None:
                self._applicants[spares.key] = applicant
                jobs.append(spares)
            yield
        classes = tuple(FlowClass(stock.name, stock.hub, stock.room // stock.points_per_room) for stock in stocks)
        held = {(key, stock.name): units for (key, stock), units in self._held.items()}
        return NamedProblem(
            self._applicants, FlowProblem(classes, tuple(jobs)), {stock.name: stock for stock in stocks}, held, self._slices_of
        )

    def _job(self, applicant: Applicant, stocks: dict[int, list[Stock]]) -> FlowJob:
        request = applicant.request
        fixed = [self._fixed.get((request.job, str(index)), 0) for index in range(len(request.pools))]
        room = max(0, request.room)
        most_new = room + (request.may_move if request.room >= 0 else 0)
        pools = tuple(self._pool(request, index, applicant, stocks, fixed[index], most_new) for index in range(len(request.pools)))
        least = request.min - sum(
            demand.counted_for_min + units for demand, units in zip(request.pools, fixed, strict=True) if not demand.scavenged
        )
        has = sum(pool.has for pool in pools)
        most = has + room
        attainable = sum(pool.has + pool.wanted for pool in pools if not pool.scavenged)
        return FlowJob(
            request.job,
            max(0, min(least, attainable, most)),
            most,
            pools,
            request.priority,
            request.created,
            admitted=request.runs or any(fixed),
            most_new=most_new,
            fits=applicant.fits,
            successors=request.may_move,
        )

    def _pool(
        self, request: JobRequest, index: int, applicant: Applicant, stocks: dict[int, list[Stock]], fixed: int, most_new: int
    ) -> FlowPool:
        demand, number, preferred = request.pools[index], applicant.numbers[index], applicant.preferred[index]
        key = (request.job, str(index))
        share = round(demand.requirements.shape.size * MEAN)
        values: dict[str, int] = {}
        better: set[str] = set()
        for stock in stocks.get(number, ()):
            if stock.hub not in values:
                is_better = stock.meets(preferred)
                slice_value = _base(demand, stock, index) + _fit(stock, number, demand.requirements) + (PREFERRED if is_better else 0)
                values[stock.hub] = _value(slice_value, share)
                if is_better:
                    better.add(stock.hub)
        held = []
        sizes = {stock.hub: stock.sizes[number] // stock.points_per_room for stock in stocks.get(number, ())}
        for stock in self._stocks_of.get(key, ()):
            units = self._held[key, stock]
            leaving = max(STAY, *(unit.leaving_cost for unit in units)) if request.may_move else STAY
            leaving += RANK_STEP * min(unit.leaving_rank for unit in units)
            value = _value(_base(demand, stock, index) + leaving, share)
            held.append(FlowHeld(stock.name, len(units), value, sum(unit.settling for unit in units)))
            sizes[stock.hub] = stock.sizes[number] // stock.points_per_room
        has = sum(each.units for each in held)
        wanted = max(0, min(demand.wanted, demand.max - len(demand.units) - demand.draining_or_completed, most_new))
        least = 0 if demand.scavenged else min(demand.min - demand.counted_for_min - fixed, has + wanted)
        return FlowPool(
            str(index),
            values,
            wanted,
            max(0, least),
            sizes=sizes,
            share=share,
            held=tuple(held),
            scavenged=demand.scavenged,
            moving=min(demand.moving, has),
            better=frozenset(better or values),
            displaces=demand.admitted and demand.ready,
            keeps_for_minimum=not demand.refused,
            may_replace=demand.may_replace,
            prepares=demand.admitted and not demand.ready,
        )


def _spares(applicant: Applicant, job: FlowJob) -> FlowJob | None:
    """Return the spares of this job, which are no units: they are no part of its minimum and maximum. None if it wants none."""
    pools = []
    for pool, demand in zip(job.pools, applicant.request.pools, strict=True):
        if demand.spares:
            values = {hub: value + _value(SPARE, pool.share) for hub, value in pool.values.items()}
            pools.append(FlowPool(pool.name, values, demand.spares, sizes=pool.sizes, share=pool.share, displaces=False, asks=False))
    if not pools:
        return None
    key, most = f"{job.key} spares", sum(pool.wanted for pool in pools)
    return FlowJob(key, 0, most, tuple(pools), job.priority, job.created, share_before=max(0, job.has - job.minimum))


def new_value(problem: NamedProblem, job: str, pool: FlowPool, stock: str) -> int:
    """Return what a new unit of the pool is worth in this stock, without what the fit adds."""
    demand = problem.applicants[job].request.pools[int(pool.name)]
    return _value(_base(demand, problem.stocks[stock], int(pool.name)), pool.share)


def _value(slice_value: int, share: int) -> int:
    """Return the value of a unit, given that of a whole slice. `share` is what the unit counts as, in thousandths of a slice."""
    return max(2, slice_value * share // MEAN)


def _base(demand: PoolRequest, stock: Stock, index: int) -> int:
    """Return what a slice of this stock is worth to a unit of a pool. `index` is the pool's place in its job."""
    return demand.values.get(stock.kind.accelerator, MEAN) - EARLIER_POOL * min(index, POOLS)


def _fit(stock: Stock, number: int, requirements: SliceRequirements) -> int:
    """Return what is added for slices that fit: little of a host would be left over, and few others could use them."""
    few = max(0, FEW + 1 - stock.mask.bit_count())
    if not is_divisible(stock.kind.accelerator) or requirements.shape.slots > 1:
        return few + FIT
    chips, has = requirements.shape.chips_per_host, stock.kind.chips_per_host
    return few + FIT * max(0, has - abs(stock.accelerators_left - chips)) // max(1, has)
