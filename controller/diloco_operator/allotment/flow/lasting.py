"""No unit leaves a place to which it would come back: plans for hosts that units of several sizes share, checked one step ahead. Pure.

Such plans are not always the best there are, so what is found while a unit is there may be worth less than what is found once it has gone.
It would come, leave and come for ever. So the problem is solved again as it will be then; units that would return stay, and so do those
that would only make room for others of a job whose moves are limited.

See docs/decisions/0210-units-of-several-sizes.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diloco_operator.allotment.flow.objective import Bonuses
from diloco_operator.allotment.flow.problem import FlowClass, FlowHeld, FlowJob, FlowPlan, FlowPool, PoolKey
from diloco_operator.allotment.flow.solution import Solution

TRIES = 3
"""So often the units that would return are looked for; then all that would leave such hosts stay."""
type Place = tuple[PoolKey, str]
"""Pool and class."""


def lasting(jobs: Iterable[FlowJob], classes: Iterable[FlowClass], bonus: Bonuses) -> FlowPlan:
    """Solve for jobs that compete. Cost: one simplex, and some more where units leave hosts that units of several sizes share."""
    jobs, classes = list(jobs), list(classes)
    solution = Solution.of(jobs, classes, bonus)
    plan = solution.plan()
    mixed = {class_.name for class_, _ in solution.model.mixed()}
    for attempt in range(TRIES + 1):
        leaving = {place: units for place, units in _leaving(jobs, plan).items() if place[1] in mixed}
        if not leaving:
            break
        returning = set(leaving)
        if attempt < TRIES:
            then = Solution.of([_gone(job, plan) for job in jobs], classes, bonus).plan()
            limited = {job.key for job in jobs if job.most_new is not None}
            returning = {place for place in leaving if _new(then, place) > _new(plan, place)}
            returning |= {place for place in leaving if place[0][0] in limited and _is_for_itself(plan, place)}
        if not returning:
            break
        jobs = [_staying(job, returning) for job in jobs]
        other = Solution.of(jobs, classes, bonus).plan()
        if (other.admitted, other.missing) != (plan.admitted, plan.missing):
            break  # a minimum comes before rest
        plan = other
    return plan


def _leaving(jobs: Iterable[FlowJob], plan: FlowPlan) -> dict[Place, int]:
    places = ((job, pool, each) for job in jobs for pool in job.pools for each in pool.held)
    found = {((job.key, pool.name), each.class_): each.units - _kept(plan, (job.key, pool.name), each) for job, pool, each in places}
    return {place: units for place, units in found.items() if units}


def _kept(plan: FlowPlan, pool: PoolKey, held: FlowHeld) -> int:
    return plan.pools[pool].kept.get(held.class_, 0)


def _new(plan: FlowPlan, place: Place) -> int:
    return plan.pools[place[0]].taken.get(place[1], 0)


def _is_for_itself(plan: FlowPlan, place: Place) -> bool:
    """Return whether other units of its job take what a unit leaves."""
    (job, _), class_ = place
    return any(key[0] == job and class_ in placed.taken for key, placed in plan.pools.items())


def _gone(job: FlowJob, plan: FlowPlan) -> FlowJob:
    """Return the job once all units that leave have gone; they want other slices."""
    pools = tuple(_without_leavers(job, pool, plan) for pool in job.pools)
    left = job.has - sum(pool.has for pool in pools if not pool.scavenged)
    return replace(job, pools=pools, admitted=job.runs, most_new=None if job.most_new is None else job.most_new + left)


def _without_leavers(job: FlowJob, pool: FlowPool, plan: FlowPlan) -> FlowPool:
    kept = ((each, _kept(plan, (job.key, pool.name), each)) for each in pool.held)
    held = tuple(replace(each, units=units, settling=min(each.settling, units)) for each, units in kept if units)
    has = sum(each.units for each in held)
    return replace(pool, held=held, wanted=pool.wanted + pool.has - has, moving=min(pool.moving, has))


def _staying(job: FlowJob, places: set[Place]) -> FlowJob:
    """Return the job as if no unit might be asked to leave these places."""

    def stays(pool: FlowPool, each: FlowHeld) -> FlowHeld:
        return replace(each, settling=each.units) if ((job.key, pool.name), each.class_) in places else each

    pools = (replace(pool, held=tuple(stays(pool, each) for each in pool.held)) for pool in job.pools)
    return replace(job, pools=tuple(pools))
