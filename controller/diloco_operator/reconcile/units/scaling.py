"""Which units run, and where: what the job wants, asked of placement, and what the answer does to every unit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diloco_operator.api import conditions, names
from diloco_operator.api.job import Capacity, Pool, UnitState
from diloco_operator.fleet.affinity import node_terms
from diloco_operator.fleet.node import Host, Toleration
from diloco_operator.kube.client import Obj
from diloco_operator.placement import JobRequest, PlacedUnit, Placement, PlacementRequest, PoolRequest, Solver, UnitRequest, UnplacedUnit
from diloco_operator.placement.matching import SliceRequirements, slice_requirements
from diloco_operator.reconcile.children.pods import learner_pods
from diloco_operator.reconcile.context import World
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitRecord
from diloco_operator.reconcile.units.preemption import fits, is_reclaimed

_LOST = (conditions.UNIT_DISRUPTED, conditions.UNIT_NODE_LOST, conditions.UNIT_POD_LOST)
"""Why an attempt ended that did not fail."""
_KEEP_ORDER = {
    UnitState.TRAINING: 0,
    UnitState.JOINING: 1,
    UnitState.STARTING: 2,
    UnitState.BACKING_OFF: 3,
    UnitState.PENDING: 4,
}
_WAITING = (UnitState.PENDING, UnitState.BACKING_OFF)
_PERMANENT = (conditions.UNIT_REFUSED_LAYOUT, conditions.UNIT_BAD_CONTRACT)


@dataclass(slots=True)
class Growth:
    """The units after placement."""

    records: dict[str, UnitRecord]
    creates: list[Obj] = field(default_factory=list)
    """Pods."""
    placement: Placement | None = None
    desired: int = 0
    """Units that would run if the fleet had room."""
    placed: int = 0
    """Units that have hardware."""
    refused: int = 0
    """Units that have a slice, but whose pods the API server refused to make."""
    demand: dict[SliceRequirements, int] = field(default_factory=dict)
    """Slices that units found none of, but for Scavenged pools."""
    hungry: bool = False
    """Some unit found no slice."""


@dataclass(frozen=True, slots=True)
class _Seats:
    """Seats of a pool that are not placement's to give: units that drain or have finished still sit there."""

    taken: int
    failed: int
    grows: bool
    """False: a unit of the pool failed in a way that a new one would repeat."""


def grow(world: World, records: Mapping[str, UnitRecord], solver: Solver, *, may_start: str) -> Growth:
    """Place, start and release units. `may_start`: "" or why no pod may be made yet."""
    request = _job_request(world, records)
    placement = solver(PlacementRequest((request,), world.snapshot.fleet))
    growth = Growth(dict(records), placement=placement)
    busy = _busy_nodes(world, records)
    draining = sum(r.state is UnitState.DRAINING for r in records.values())
    completed = sum(r.state is UnitState.COMPLETED for r in records.values())
    growth.placed = len(placement.assigned) + draining + completed
    growth.desired = possible_units(world, records)
    growth.demand = _demand(world, request, placement, growth.desired - growth.placed)
    for assignment in placement.assigned:
        growth.records[assignment.unit] = _seat(world, growth, assignment, busy, may_start)
    for left in placement.unplaced:
        if left.unit in records:
            growth.records[left.unit] = _unseat(world, records[left.unit], left)
        growth.hungry = growth.hungry or left.reason == conditions.UNIT_NO_CAPACITY
    _show_missing(world, growth, placement)
    _forget_unneeded(growth, placement)
    return growth


# --- asking -----------------------------------------------------------------------------------------------------------
def _job_request(world: World, records: Mapping[str, UnitRecord]) -> JobRequest:
    by_pool: dict[str, list[UnitRecord]] = {name: [] for name in world.pools}
    for record in records.values():
        by_pool.setdefault(record.pool, []).append(record)
    learners = world.spec.learners
    seats = {name: _seats(mine) for name, mine in by_pool.items()}
    taken = sum(seat.taken for seat in seats.values())
    return JobRequest(
        key=world.snapshot.job.key,
        min=learners.min,
        max=learners.max,
        reserved=taken,
        priority=world.snapshot.priority,
        pools=tuple(_pool_request(world, pool, by_pool[pool.name], seats[pool.name]) for pool in world.spec.pools),
    )


def _seats(mine: list[UnitRecord]) -> _Seats:
    failed = [r for r in mine if r.state is UnitState.FAILED]
    return _Seats(
        taken=sum(r.state in (UnitState.DRAINING, UnitState.COMPLETED) for r in mine),
        failed=len(failed),
        grows=not any(r.reason in _PERMANENT for r in failed),
    )


def _pool_request(world: World, pool: Pool, mine: list[UnitRecord], seats: _Seats) -> PoolRequest:
    candidates = sorted((r for r in mine if r.state in _KEEP_ORDER), key=lambda r: (_KEEP_ORDER[r.state], r.number))
    most = max(0, pool.learners.max - seats.failed)
    template = pool.template.spec
    request = PoolRequest(
        name=pool.name,
        shape=world.shapes[pool.name],
        min=min(most, max(0, pool.learners.min - seats.failed)),
        max=most,
        reserved=seats.taken,
        units=(),
        capacity="" if pool.capacity in (None, Capacity.SCAVENGED) else str(pool.capacity),
        node_selector=template.get("nodeSelector") or {},
        affinity=node_terms(template.get("affinity")),
        tolerations=tuple(_toleration(each) for each in template.get("tolerations") or ()),
    )
    requirements = slice_requirements(request)
    units = [_unit_request(world, requirements, record) for record in candidates]
    gives_way = is_reclaimed(world, pool)
    if gives_way:
        units = [unit for unit in units if unit.slice]
    if seats.grows and not world.finishing and not gives_way:
        used = {record.number for record in mine}
        fresh = (i for i in range(pool.learners.max) if i not in used)
        new = max(0, min(most - seats.taken, world.spec.learners.max) - len(units))
        units += [UnitRequest(names.unit_name(pool.name, index)) for index, _ in zip(fresh, range(new), strict=False)]
    return replace(request, units=tuple(units))


def _demand(world: World, job: JobRequest, placement: Placement, room: int) -> dict[SliceRequirements, int]:
    """`room`: units that the job may still get."""
    found: dict[SliceRequirements, int] = {}
    for pool in job.pools:
        missing = sum(left.pool == pool.name and left.reason == conditions.UNIT_NO_CAPACITY for left in placement.unplaced)
        if (count := min(missing, room)) > 0 and world.pools[pool.name].capacity is not Capacity.SCAVENGED:
            requirements = slice_requirements(pool)
            found[requirements] = found.get(requirements, 0) + count * pool.shape.slots
    return found


def _unit_request(world: World, requirements: SliceRequirements, record: UnitRecord) -> UnitRequest:
    """A unit with processes stays; one without keeps its slice as long as it can be used, and is what the pool asks for: it may have
    been edited since."""
    if record.running or not record.slice:
        return UnitRequest(record.name, record.slice)
    fleet = world.snapshot.fleet
    slices = fleet.resolve(requirements.shape, record.slice)
    if slices is None or not all(fleet.usable(slice_) and fits(requirements, slice_) for slice_ in slices):
        return UnitRequest(record.name)
    return UnitRequest(record.name, record.slice)


def _toleration(raw: Mapping[str, Any]) -> Toleration:
    return Toleration(raw.get("key", ""), raw.get("operator", "Equal"), raw.get("value", ""), raw.get("effect", ""))


def possible_units(world: World, records: Mapping[str, UnitRecord]) -> int:
    """Units that could run if the fleet had room for them, learners.max included."""
    able = 0
    for pool in world.spec.pools:
        mine = [r for r in records.values() if r.pool == pool.name]
        seats = _seats(mine)
        able += pool.learners.max - seats.failed if seats.grows else len(mine) - seats.failed
    return min(world.spec.learners.max, able)


# --- answering --------------------------------------------------------------------------------------------------------
def _busy_nodes(world: World, records: Mapping[str, UnitRecord]) -> dict[str, str]:
    """Node -> a pod on it that has not ended, of an attempt that is over: nobody may start beside it."""
    busy: dict[str, str] = {}
    for unit, pods in world.learners.items():
        record = records[unit]
        for pod in pods:
            if not pod.ended and pod.node and not (record.running and pod.attempt == record.attempt):
                busy[pod.node] = pod.name
    return busy


def _seat(world: World, growth: Growth, assignment: PlacedUnit, busy: Mapping[str, str], may_start: str) -> UnitRecord:
    record = growth.records.get(assignment.unit) or UnitRecord(assignment.unit, assignment.pool, since=world.now)
    if record.running:
        return record
    record = record._replace(slice=assignment.slice)
    if record.not_before is not None and world.now < record.not_before:
        world.deadlines.append(record.not_before)
        return record
    blocker = next((busy[host.node] for host in assignment.hosts if host.node in busy), "")
    if may_start or blocker or world.finishing:
        why = may_start or (_with_cause(record, f"waits until the pod {blocker} has gone") if blocker else "the job is about to end")
        reason = conditions.UNIT_SCHEDULING if blocker else conditions.UNIT_WAITING_FOR_SYNCER
        return _set(record, UnitState.PENDING, reason, why, world.now)
    if refused := world.refusal((UNIT, record.name)):
        growth.refused += 1
        growth.placed -= 1
        # The slice is free for others until the next try.
        return _set(record._replace(slice=""), UnitState.PENDING, conditions.UNIT_PODS_REFUSED, refused, world.now)
    return _start(world, growth, record, assignment.hosts)


def _with_cause(record: UnitRecord, waits: str) -> str:
    """Why a unit waits, with the cause of the last attempt's end in front: it is what people ask for first."""
    if record.message.endswith(waits):
        return record.message
    ended = record.state is UnitState.BACKING_OFF or record.reason in _LOST
    return f"{record.message}; {waits}" if ended and record.message else waits


def _start(world: World, growth: Growth, record: UnitRecord, hosts: tuple[Host, ...]) -> UnitRecord:
    attempt = max(record.attempt, record.ended_attempt) + 1
    template_hash = world.hashes[record.pool]
    growth.creates += pods_for(world, record, attempt, hosts, template_hash)
    started = record._replace(attempt=attempt, template_hash=template_hash, not_before=None)
    return _set(started, UnitState.STARTING, conditions.UNIT_SCHEDULING, "its pods have been made", world.now)


def pods_for(world: World, record: UnitRecord, attempt: int, hosts: tuple[Host, ...], template_hash: str) -> list[Obj]:
    return learner_pods(
        world.mould(record.pool),
        unit=record.name,
        attempt=attempt,
        slice_name=record.slice,
        hosts=hosts,
        template_hash=template_hash,
    )


def _unseat(world: World, record: UnitRecord, left: UnplacedUnit) -> UnitRecord:
    if record.running:
        return _set(record, UnitState.DRAINING, left.reason, left.message, world.now)
    if record.not_before is not None and world.now < record.not_before and left.reason == conditions.UNIT_NO_CAPACITY:
        world.deadlines.append(record.not_before)
        return record._replace(slice="")
    why = _with_cause(record, left.message) if left.reason == conditions.UNIT_NO_CAPACITY else left.message
    return _set(record._replace(slice="", not_before=None), UnitState.PENDING, left.reason, why, world.now)


def _set(record: UnitRecord, state: UnitState, reason: str, message: str, now: float) -> UnitRecord:
    since = record.since if state is record.state and record.since is not None else now
    return record._replace(state=state, reason=reason, message=message, since=since)


def _show_missing(world: World, growth: Growth, placement: Placement) -> None:
    """Units that the minima ask for stand in status even if they never had hardware, each with its reason."""
    learners = world.spec.learners
    short = learners.min - growth.placed - sum(r.state in _WAITING and not r.slice for r in growth.records.values())
    seated = {name: sum(r.pool == name and r.state is not UnitState.FAILED for r in growth.records.values()) for name in world.pools}
    for left in placement.unplaced:
        if left.unit in growth.records:
            continue
        pool = world.pools[left.pool]
        if left.reason == conditions.UNIT_NO_CAPACITY and (short > 0 or seated[left.pool] < pool.learners.min):
            growth.records[left.unit] = UnitRecord(
                left.unit, left.pool, UnitState.PENDING, reason=left.reason, message=left.message, since=world.now
            )
            seated[left.pool] += 1
            short -= 1


def _forget_unneeded(growth: Growth, placement: Placement) -> None:
    """A unit that never ran and that nobody waits for leaves status; one that ran stays, for its attempt must not come twice."""
    for left in placement.unplaced:
        record = growth.records.get(left.unit)
        if record is not None and record.attempt == 0 and left.reason == conditions.UNIT_SCALED_DOWN:
            del growth.records[left.unit]
