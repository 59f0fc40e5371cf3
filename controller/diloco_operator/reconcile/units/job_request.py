"""What a job has and wants, by its records. The allotment between jobs and placement read it. Pure.

See docs/decisions/0271-judge-ask-plan.md.
See docs/decisions/0206-before-units-leave.md.
See docs/decisions/0171-delegated-units.md.
See docs/decisions/0207-allotment.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diloco_operator.api import names
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.spec import Capacity, Pool
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.occupancy import HostParts
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import named_hosts
from diloco_operator.placement import HeldUnit, JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements, with_accelerators
from diloco_operator.reconcile.children.claims import template_name
from diloco_operator.reconcile.children.home import certificate_missing
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.grantors.registry import chooser_of, grantor_of
from diloco_operator.reconcile.observe.object_size import MAX_UNITS
from diloco_operator.reconcile.observe.pod_answers import admits
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import stuck_at
from diloco_operator.reconcile.units.hosts import OtherSlices
from diloco_operator.reconcile.units.requirements import pool_requirements, pool_words
from diloco_operator.reconcile.units.revocations import troubled_pools, units_kept_until
from diloco_operator.reconcile.units.spares import with_spares
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.worth import may_move, pool_worth, worth_moving_to

_KEEP_ORDER = {
    UnitState.TRAINING: 0,
    UnitState.JOINING: 1,
    UnitState.STARTING: 2,
    UnitState.BACKING_OFF: 3,
    UnitState.PENDING: 4,
}
"""Order in which units keep their slices when a maximum shrinks: the further a unit has come, the more would be lost."""
_LEAVING_RANK = {UnitState.PENDING: 0, UnitState.BACKING_OFF: 1, UnitState.STARTING: 2, UnitState.JOINING: 3, UnitState.TRAINING: 4}
"""How much a job loses with a unit that leaves in this state."""
_ENDED = (UnitState.DRAINING, UnitState.COMPLETED)
"""Units that count against maxima and start no more."""


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What keeps the units of a job from starting."""

    blocked: str | None = None
    """Why no pod may be created yet."""
    may_start: bool = False
    """Nothing is known that would keep units from starting now or soon."""
    gives_back: bool = False
    """Units cannot start until a person acts, and other jobs may have the hardware meanwhile."""
    avoid: Mapping[str, float] = field(default_factory=dict)
    """Node that units use only if there is no other -> since when."""

    @property
    def frees_slices(self) -> bool:
        """Units without processes keep no slices, and want none."""
        return self.gives_back and self.blocked is not None


NO_LIMITS = StartLimits()


def job_request(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], limits: StartLimits = NO_LIMITS) -> JobRequest:
    """Return what the job has and wants. If a grantor chooses the places of its units, all their nodes count as occupied: only the grantor
    takes them back."""
    observed, spec = context.observed, context.spec
    records, chosen = without_places(context, records), chooser_of(spec) is not None
    ended = [record for record in records.values() if record.state in _ENDED]
    # Draining units do not count: a pod that does not end must not keep the units of a renamed pool from starting.
    gone = sum(record.pool not in context.pools and record.state is UnitState.COMPLETED for record in ended)
    pools = _pool_requests(context, records, limits, gone)
    # Units whose slices no other job can get yet.
    occupying = [record for record in ended if _keeps_its_place(record) or _is_stuck(context, record)]
    if chosen:
        occupying += [record for record in records.values() if record.state not in _ENDED]
    occupied, shared = _occupied(context, occupying)
    request = JobRequest(
        job=observed.job.key,
        priority=observed.priority,
        created=observed.job.created,
        min=spec.learners.min,
        max=spec.learners.max,
        pools=tuple(pools),
        draining_or_completed=gone,
        occupied=occupied,
        shared=shared,
        may_move=0 if chosen or context.spec_refused else may_move(context, records.values()),
        runs=any(record.attempt for record in records.values()),
        places_chosen=chosen,
    )
    return with_spares(context, request)


def without_places(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Mapping[str, UnitStatusRecord]:
    """Return the records. If a grantor chooses the places, units that do not run have no slice in them: they may start anywhere."""
    if chooser_of(context.spec) is None:
        return records
    return {name: record if record.running else record._replace(slice="") for name, record in records.items()}


# --- the units of each pool --------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _PoolUnits:
    """The units of one pool."""

    pool: Pool
    requirements: SliceRequirements
    held: list[HeldUnit] = field(default_factory=list)
    moving: int = 0
    """Units among `held` without processes that would leave their slices for others."""
    able: list[str] = field(default_factory=list)
    """Units without slices that could start if they had some, in the order in which they get some."""
    unable: list[str] = field(default_factory=list)
    """Units without slices that could not start even with some."""
    asked: int = 0
    """Units that wait for nodes."""
    ended: int = 0
    """Units that drain or have completed."""
    counted_for_min: int = 0
    """Units among `ended` that count towards minima."""
    failed: int = 0


def _pool_requests(
    context: ReconcileContext, records: Mapping[str, UnitStatusRecord], limits: StartLimits, gone: int
) -> Sequence[PoolRequest]:
    """Return what each pool has and wants. `gone`: units of pools that the job no longer has, which count against its maximum."""
    worth_by_pool, staying = pool_worth(context, records.values()), units_kept_until(context, records)
    most_new = _most_new(context, records)
    # Scavenged pools come last, as in the allotment: they take what no other job wants.
    pools = sorted(context.spec.pools, key=lambda pool: pool.capacity is Capacity.SCAVENGED)
    by_pool = [_pool_units(context, pool, records, limits, most_new, worth_by_pool[pool.name].leaving_cost, staying) for pool in pools]
    has_room = gone + sum(len(units.held) + units.ended for units in by_pool) < context.spec.learners.max
    goals, troubled = worth_moving_to(context, records.values()), troubled_pools(context, records.values())
    requests = []
    for units in by_pool:
        pool, requirements = units.pool, units.requirements
        most = max(0, pool.learners.max - units.failed)
        scavenged = pool.capacity is Capacity.SCAVENGED
        # While a unit waits for nodes, no other starts: kube-scheduler binds the waiting pods to any slice that becomes free.
        starts = 0 if units.asked or context.finishing or context.spec_refused else len(units.able)
        # A full job still wants slices in a pool that is worth moving to: one of its units would leave another slice for each.
        wanted = units.asked + (starts if has_room or pool.name in goals else 0)
        refused = not limits.may_start or context.refused_pods(pool.name) is not None
        admitted = limits.may_start and admits(context.observed.pod_answers.get(pool.name), context.observed.job.generation, context.now)
        requests.append(
            PoolRequest(
                name=pool.name,
                requirements=requirements,
                min=0 if scavenged else min(most, max(0, pool.learners.min - units.failed)),
                max=most,
                units=tuple(units.held),
                new=(*units.able, *units.unable),
                asked=units.asked,
                draining_or_completed=units.ended,
                counted_for_min=units.counted_for_min,
                wanted=wanted,
                preferred=requirements._replace(avoided=requirements.avoided.union(limits.avoid)) if limits.avoid else None,
                moving=units.moving,
                scavenged=scavenged,
                admitted=admitted and wanted > 0,
                refused=refused and wanted > 0,
                ready=limits.blocked is None and context.has_syncer,
                may_replace=pool.name not in troubled,
                values={requirements.shape.accelerator: worth_by_pool[pool.name].value},
                words=pool_words(context, pool, units.failed),
            )
        )
    return requests


def _pool_units(
    context: ReconcileContext,
    pool: Pool,
    records: Mapping[str, UnitStatusRecord],
    limits: StartLimits,
    most_new: int,
    leaving_cost: int,
    staying: Collection[str],
) -> _PoolUnits:
    """Sort the units of a pool. `staying`: units that must not leave their slices yet."""
    in_pool = [record for record in records.values() if record.pool == pool.name]
    requirements = pool_requirements(context, pool)
    units = _PoolUnits(pool, requirements)
    ended = [record for record in in_pool if record.state in _ENDED]
    failed = [record for record in in_pool if record.state is UnitState.FAILED]
    waiting = [record for record in in_pool if state_of(record) is State.WAITING_FOR_GRANTOR]
    if all(takes_slices(context, record) for record in waiting):
        waiting = []  # kube-scheduler has no pods that it could bind to a free slice, so placement may use it
    units.ended, units.failed, units.asked = len(ended), len(failed), len(waiting)
    units.counted_for_min = sum(map(_keeps_its_place, ended))
    asked_for = {record.name for record in waiting}
    candidates = [record for record in in_pool if record.state in _KEEP_ORDER and record.name not in asked_for]
    others = OtherSlices(context.observed.fleet, pool.name, requirements._replace(avoided=requirements.avoided.union(limits.avoid)))
    # By number within a state. In an order that changed with each reconcile, equal units would take turns in leaving.
    for record in sorted(candidates, key=lambda record: (_KEEP_ORDER[record.state], record.number)):
        if not record.running and (limits.frees_slices or unit_rejection(context, record) is not None):
            # A slice for it would be taken from others, and given back at the next refusal.
            units.unable.append(record.name)
        elif slice_ := _kept_slice(context, requirements, record, others):
            nodes = tuple(host.node for host in named_hosts(context.observed.fleet, requirements.shape, slice_))
            settling = record.name in staying or settled_at(context, record) is not None
            units.held.append(HeldUnit(record.name, nodes, _LEAVING_RANK[record.state], settling, leaving_cost, slice_))
            if not record.running and any(node in context.hosts.avoided or node in limits.avoid for node in nodes):
                units.moving += 1
        else:
            units.able.append(record.name)
    if not any(follows(record.reason, Follows.WOULD_REPEAT) for record in failed) and not context.finishing:
        used = {record.number for record in in_pool}
        most = max(0, pool.learners.max - len(failed)) - len(ended) - len(waiting)
        room = min(most, context.spec.learners.max) - len(candidates)
        numbers = (number for number in range(pool.learners.max) if number not in used)
        fresh = [names.unit_name(pool.name, number) for number in itertools.islice(numbers, max(0, min(room, most_new)))]
        if limits.frees_slices:
            units.unable.extend(fresh)
        else:
            units.able.extend(fresh)
    return units


def _kept_slice(context: ReconcileContext, requirements: SliceRequirements, record: UnitStatusRecord, others: OtherSlices) -> str:
    """Return the name of the slice that the unit keeps, or "" if it keeps none."""
    # A unit with processes keeps its slice, whatever shape its pool has now.
    if record.running or not record.slice:
        return record.slice
    # Without processes it keeps a slice that is usable and still fits the pool, which may have been edited. It leaves a slice with a bad
    # host or a given-up node if another is free.
    fleet = context.observed.fleet
    slices = fleet.resolve(requirements.shape, record.slice)
    possible = requirements._replace(avoided=frozenset())
    if slices is None or len(slices) != requirements.shape.slots:
        return ""
    if not all(fleet.usable(slice_) and possible.suits(slice_) for slice_ in slices):
        return ""
    if not requirements.near_enough(slices):
        return ""
    return "" if others.take_for(slices) else record.slice


def unit_rejection(context: ReconcileContext, record: UnitStatusRecord) -> Rejection | None:
    """Return why the pods of a unit, or the claim template that they use, must not be created now. None if they may."""
    rejection, pool = context.rejection((UNIT, record.name)) or certificate_missing(context, record), context.pools.get(record.pool)
    if rejection is not None or pool is None:
        return rejection
    return context.rejection((names.CLAIM_TEMPLATES.kind, template_name(context.observed.job, pool)))


def settled_at(context: ReconcileContext, record: UnitStatusRecord) -> float | None:
    """Return when a unit may first be asked to leave its slice. None if it may already, or does not run."""
    if not record.running or context.rejection((UNIT, record.name)) is not None:  # if its pods are refused, it cannot use the slice
        return None
    moment = context.observed.slices_since.get(record.name, context.now) + context.observed.config.minimum_hold
    return moment if context.now < moment else None


# --- slices that no other job can get yet ------------------------------------------------------------------------------
def _keeps_its_place(record: UnitStatusRecord) -> bool:
    """Return whether a unit that drains or has completed counts for minima: it comes back to its slice, or its work is done."""
    return record.state is UnitState.COMPLETED or not follows(record.reason, Follows.SLICE_LEFT)


def _is_stuck(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether a pod of the unit should have gone long ago, so that it is not known when its slice will be free."""
    return any(pod.stuck_from is not None and pod.stuck_from <= context.now for pod in context.learners.get(record.name, ()))


def _occupied(context: ReconcileContext, records: Iterable[UnitStatusRecord]) -> tuple[frozenset[str], HostParts]:
    """Return the nodes of these units' slices, and (node, unit) -> what the unit uses of a node that units share."""
    occupied: set[str] = set()
    shared: dict[tuple[str, str], Resources] = {}
    for record in records:
        if record.pool not in context.shapes:
            continue
        shape = context.shapes[record.pool]
        nodes = [host.node for host in named_hosts(context.observed.fleet, shape, record.slice)]
        occupied.update(nodes)
        if shape.divides and context.observed.job.derived is not None:
            needs = with_accelerators(context.observed.job.derived.needs[record.pool], shape)
            shared |= {(node, record.name): needs for node in nodes}
    return frozenset(occupied), shared


# --- how many units there may be ---------------------------------------------------------------------------------------
def room_on_record(records: Mapping[str, UnitStatusRecord]) -> int:
    """Return how many more units status has room for."""
    return max(0, MAX_UNITS - len(records))


def _most_new(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return how many new units one pool may have."""
    room = room_on_record(records)
    # At most learners.max of all pools' new units can start. If status may lack room for as many, each pool gets an equal share of it.
    return room if room >= context.spec.learners.max else room // len(context.pools)


def desired_units(context: ReconcileContext) -> int:
    """Return how many units the spec asks for, including those that were given up."""
    return min(context.spec.learners.max, sum(pool.learners.max for pool in context.spec.pools))


def possible_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return how many units could run if the fleet had room for them, at most learners.max. Units that were given up cannot."""
    able, most_new = 0, _most_new(context, records)
    for pool in context.spec.pools:
        in_pool = [record for record in records.values() if record.pool == pool.name]
        failed = [record for record in in_pool if record.state is UnitState.FAILED]
        grows = not any(follows(record.reason, Follows.WOULD_REPEAT) for record in failed)
        able += max(0, min(pool.learners.max, len(in_pool) + (most_new if grows else 0)) - len(failed))
    return min(context.spec.learners.max, able)


# --- units that wait for nodes and take a free slice instead -----------------------------------------------------------
# If a slice becomes free, kube-scheduler binds waiting pods to it by itself. It cannot once it has bound some of them to hosts beside which
# the others find no room.
def takes_slices(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Return whether placement may give this unit a slice although it waits for nodes. Never if its grantor chooses the place."""
    pool = context.pools.get(record.pool)
    grantor = grantor_of(context.spec, pool) if pool is not None else None
    if grantor is None or grantor.chooses or state_of(record) is not State.WAITING_FOR_GRANTOR:
        return False
    due = stuck_at(context, context.attempt_pods(record))
    return due is not None and context.now >= due
