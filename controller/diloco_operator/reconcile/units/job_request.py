"""The request of a job to placement: the units that may run, those that have a slice and those that wait for one. Pure.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from diloco_operator.api import names
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.spec import Capacity, Pool
from diloco_operator.api.status import UnitState
from diloco_operator.placement import JobRequest, PoolRequest, UnitRequest
from diloco_operator.placement.requirements import SliceRequirements, slice_requirements
from diloco_operator.reconcile.context import ReconcileContext
from diloco_operator.reconcile.grantors.registry import chooser_of, grantor_of
from diloco_operator.reconcile.observe.object_size import MAX_UNITS
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import stuck_at
from diloco_operator.reconcile.units.hosts import SpareSlices
from diloco_operator.reconcile.units.requirements import hardware_request
from diloco_operator.reconcile.units.states import State, state_of

_KEEP_ORDER = {
    UnitState.TRAINING: 0,
    UnitState.JOINING: 1,
    UnitState.STARTING: 2,
    UnitState.BACKING_OFF: 3,
    UnitState.PENDING: 4,
}
"""Who stays first when a maximum shrinks: the further a unit has come, the more would be lost."""


@dataclass(frozen=True, slots=True)
class _Occupancy:
    """Units of a pool that placement cannot move: those that have finished count, as do those that drain, unless the pool has gone."""

    taken: int
    failed: int
    grows: bool
    """False: a unit of the pool failed in a way that a new one would repeat."""


def job_request(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], avoid: Collection[str] = ()) -> JobRequest:
    """Return all units that may run, those that wait for nodes among them. `avoid`: nodes that units use only if there are no others."""
    by_pool: dict[str, list[UnitStatusRecord]] = {name: [] for name in context.pools}
    for record in records.values():
        by_pool.setdefault(record.pool, []).append(record)
    learners = context.spec.learners
    occupancy = {name: _occupancy(mine, removed=name not in context.pools) for name, mine in by_pool.items()}
    taken = sum(occupancy.taken for occupancy in occupancy.values())
    most_new = _most_new(context, records)
    # Scavenged pools come last, as in the allotment: they take what no other job wants.
    pools = sorted(context.spec.pools, key=lambda pool: pool.capacity is Capacity.SCAVENGED)
    return JobRequest(
        key=context.observed.job.key,
        min=learners.min,
        max=learners.max,
        reserved=taken,
        priority=context.observed.priority,
        pools=tuple(_pool_request(context, pool, by_pool[pool.name], occupancy[pool.name], most_new, avoid) for pool in pools),
    )


def without_places(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Mapping[str, UnitStatusRecord]:
    """Return the records, without slices of units of which nothing runs where a grantor chooses the places: they start again anywhere."""
    if chooser_of(context.spec) is None:
        return records
    return {name: record if record.running else record._replace(slice="") for name, record in records.items()}


def for_placement(context: ReconcileContext, request: JobRequest) -> JobRequest:
    """Return the request without what waits for nodes, and without what has no slice in a pool of which units wait: kube-scheduler gives
    each slice there that becomes free to the pods that wait. Where a grantor chooses the places, no slice is chosen here at all."""
    if chooser_of(context.spec) is not None:
        return replace(request, pools=tuple(replace(_with_slices(pool), asked=0) for pool in request.pools))
    return replace(request, pools=tuple(_with_slices(pool) if pool.asked else pool for pool in request.pools))


def _with_slices(pool: PoolRequest) -> PoolRequest:
    return replace(pool, units=tuple(unit for unit in pool.units if unit.slice))


def _occupancy(mine: list[UnitStatusRecord], *, removed: bool = False) -> _Occupancy:
    failed = [r for r in mine if r.state is UnitState.FAILED]
    return _Occupancy(
        taken=sum(r.state is UnitState.COMPLETED or (r.state is UnitState.DRAINING and not removed) for r in mine),
        failed=len(failed),
        grows=not any(follows(r.reason, Follows.WOULD_REPEAT) for r in failed),
    )


def room_on_record(records: Mapping[str, UnitStatusRecord]) -> int:
    """Return units that status can still take in. One that ran stays on record, because its attempts must not come twice."""
    return max(0, MAX_UNITS - len(records))


def _most_new(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return new units of one pool. The new ones of all pools, of which learners.max can start, must stay within the room."""
    room = room_on_record(records)
    return room if room >= context.spec.learners.max else room // len(context.pools)


def _pool_request(
    context: ReconcileContext, pool: Pool, mine: list[UnitStatusRecord], occupancy: _Occupancy, most_new: int, avoid: Collection[str]
) -> PoolRequest:
    waiting = [r for r in mine if state_of(r) is State.WAITING_FOR_GRANTOR]
    if all(takes_slices(context, r) for r in waiting):
        waiting = []  # kube-scheduler has no pods for what is free
    able = (r for r in mine if r.state in _KEEP_ORDER and r not in waiting)
    # By number within a state: in another order at each reconcile, equal units would take turns in leaving.
    candidates = sorted(able, key=lambda r: (_KEEP_ORDER[r.state], r.number))
    most = max(0, pool.learners.max - occupancy.failed)
    request = replace(
        hardware_request(context, pool),
        min=0 if pool.capacity is Capacity.SCAVENGED else min(most, max(0, pool.learners.min - occupancy.failed)),
        max=most,
        reserved=occupancy.taken,
        given_up=occupancy.failed,
        switched_off=pool.learners.max == 0,
        asked=len(waiting),
    )
    requirements = slice_requirements(request)
    spare = SpareSlices(context.observed.fleet, pool.name, requirements._replace(avoided=requirements.avoided.union(avoid)))
    units = [_unit_request(context, requirements, record, spare) for record in candidates]
    if occupancy.grows and not context.finishing:
        used = {record.number for record in mine}
        fresh = (i for i in range(pool.learners.max) if i not in used)
        new = max(0, min(most - occupancy.taken - len(waiting), context.spec.learners.max) - len(units))
        units += [UnitRequest(names.unit_name(pool.name, index)) for index, _ in zip(fresh, range(min(new, most_new)), strict=False)]
    return replace(request, units=tuple(units))


def _unit_request(context: ReconcileContext, requirements: SliceRequirements, record: UnitStatusRecord, spare: SpareSlices) -> UnitRequest:
    """Return the unit with the slice that it keeps. One with processes keeps its own, whatever shape its pool has now, and one that waits
    for nodes has none. One without processes keeps its slice as long as it is usable and fits the pool, which may have been edited, and no
    other can take the place of a bad host, or of a node that was given up."""
    if record.running or not record.slice:
        return UnitRequest(record.name, record.slice)
    fleet = context.observed.fleet
    slices = fleet.resolve(requirements.shape, record.slice)
    possible = requirements._replace(avoided=frozenset())
    if slices is None or len(slices) != requirements.shape.slots:
        return UnitRequest(record.name)
    if not all(fleet.usable(slice_) and possible.suits(slice_) for slice_ in slices):
        return UnitRequest(record.name)
    if not requirements.near_enough(slices) or spare.take_for(slices):
        return UnitRequest(record.name)
    return UnitRequest(record.name, record.slice)


def desired_units(context: ReconcileContext) -> int:
    """Return units that the spec asks for, those that were given up included."""
    return min(context.spec.learners.max, sum(pool.learners.max for pool in context.spec.pools))


def possible_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return units that could run if the fleet had room for them, at most learners.max. Those that were given up cannot."""
    able, most_new = 0, _most_new(context, records)
    for pool in context.spec.pools:
        mine = [r for r in records.values() if r.pool == pool.name]
        occupancy = _occupancy(mine)
        most = min(pool.learners.max, len(mine) + (most_new if occupancy.grows else 0))
        able += max(0, most - occupancy.failed)
    return min(context.spec.learners.max, able)


# --- Units that wait for nodes and would take a slice that is free meanwhile, in place of what they asked for ---------
# kube-scheduler binds pods that wait to a slice that becomes free by itself. It cannot do so once it has bound some of them to hosts
# beside which the others find no room.
def takes_slices(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether placement may give this unit a slice, although it waits for nodes. Not where its grantor chooses the place."""
    pool = context.pools.get(record.pool)
    grantor = grantor_of(context.spec, pool) if pool is not None else None
    if grantor is None or grantor.chooses or state_of(record) is not State.WAITING_FOR_GRANTOR:
        return False
    pods = [pod for pod in context.learners.get(record.name, ()) if pod.attempt == record.attempt]
    due = stuck_at(context, pods)
    return due is not None and context.now >= due
