"""What a job has and wants, by its records: for the allotment between jobs, and for placement. Pure.

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
from diloco_operator.fleet.occupancy import Shares
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import Shape
from diloco_operator.placement import HeldUnit, JobRequest, PoolRequest
from diloco_operator.placement.requirements import SliceRequirements, with_accelerators
from diloco_operator.reconcile.children.claims import template_name
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.grantors.registry import chooser_of, grantor_of
from diloco_operator.reconcile.observe.object_size import MAX_UNITS
from diloco_operator.reconcile.observe.pod_answers import admits
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.delegation import stuck_at
from diloco_operator.reconcile.units.hosts import SpareSlices
from diloco_operator.reconcile.units.requirements import pool_requirements, pool_words
from diloco_operator.reconcile.units.revocations import stay_for_now, unquiet
from diloco_operator.reconcile.units.spares import with_spares
from diloco_operator.reconcile.units.states import State, state_of
from diloco_operator.reconcile.units.worth import may_move, pool_worth, worth_moving_to
from diloco_operator.timeouts import RECONCILE

_KEEP_ORDER = {
    UnitState.TRAINING: 0,
    UnitState.JOINING: 1,
    UnitState.STARTING: 2,
    UnitState.BACKING_OFF: 3,
    UnitState.PENDING: 4,
}
"""Who stays first when a maximum shrinks: the further a unit has come, the more would be lost."""
_LOSS = {UnitState.PENDING: 0, UnitState.BACKING_OFF: 1, UnitState.STARTING: 2, UnitState.JOINING: 3, UnitState.TRAINING: 4}
"""How much a job loses with a unit that leaves in this state."""
_ENDED = (UnitState.DRAINING, UnitState.COMPLETED)
"""Units that count against maxima and start no more."""


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What keeps the units of a job from starting."""

    blocked: str | None = None
    """Why no pod may be created yet."""
    may_start: bool = False
    """Nothing is known that would keep it so."""
    gives_back: bool = False
    """It stays so until a person acts, and others may have the hardware."""
    avoid: Mapping[str, float] = field(default_factory=dict)
    """Nodes that units use only if there are no others -> since when."""

    @property
    def frees_slices(self) -> bool:
        """Whether units without processes keep no slices, and want none."""
        return self.gives_back and self.blocked is not None


NO_LIMITS = StartLimits()


def job_request(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], limits: StartLimits = NO_LIMITS) -> JobRequest:
    """Return what the job has and wants.

    Units whose places a grantor chooses stay where they are: only the grantor takes them back."""
    observed, spec = context.observed, context.spec
    records, chosen = without_places(context, records), chooser_of(spec) is not None
    ended = [record for record in records.values() if record.state in _ENDED]
    # Those that drain do not count: a pod that does not end must not keep the units of a renamed pool from starting.
    gone = sum(record.pool not in context.pools and record.state is UnitState.COMPLETED for record in ended)
    pools = _pool_requests(context, records, limits, gone)
    spares = 0
    if not chosen:
        spares, pools = with_spares(context, pools, spec.learners.max - gone)
    # Those of which no other job can get the slices yet.
    occupying = [record for record in ended if _keeps_its_place(record) or _is_stuck(context, record)]
    if chosen:
        occupying += [record for record in records.values() if record.state not in _ENDED]
    occupied, shared = _occupied(context, occupying)
    return JobRequest(
        job=observed.job.key,
        priority=observed.priority,
        created=observed.job.created,
        min=spec.learners.min,
        max=spec.learners.max,
        pools=tuple(pools),
        draining_or_completed=gone,
        spares=spares,
        occupied=occupied,
        shared=shared,
        may_move=0 if chosen or context.spec_refused else may_move(context, records.values()),
        runs=any(record.attempt for record in records.values()),
        places_chosen=chosen,
    )


def without_places(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Mapping[str, UnitStatusRecord]:
    """Return the records, without slices of units of which nothing runs where a grantor chooses the places: they start again anywhere."""
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
    """Those among `held` without processes that would leave their slices for others."""
    able: list[str] = field(default_factory=list)
    """Units without slices that could start if they had some, in order."""
    unable: list[str] = field(default_factory=list)
    """Units without slices that could not."""
    asked: int = 0
    """Units that wait for nodes."""
    ended: int = 0
    """Units that drain or have completed."""
    counted_for_min: int = 0
    """Those among `ended` that count towards minima."""
    failed: int = 0


def _pool_requests(
    context: ReconcileContext, records: Mapping[str, UnitStatusRecord], limits: StartLimits, gone: int
) -> Sequence[PoolRequest]:
    """Return those of all pools. `gone`: units that count against the maximum, of pools that the job no longer has."""
    worth, staying = pool_worth(context, records.values()), stay_for_now(context, records)
    most_new = _most_new(context, records)
    # Scavenged pools come last, as in the allotment: they take what no other job wants.
    pools = sorted(context.spec.pools, key=lambda pool: pool.capacity is Capacity.SCAVENGED)
    found = [_pool_units(context, pool, records, limits, most_new, worth[pool.name].leaving_cost, staying) for pool in pools]
    has_room = gone + sum(len(units.held) + units.ended for units in found) < context.spec.learners.max
    goals, restless = worth_moving_to(context, records.values()), unquiet(context, records.values())
    requests = []
    for units in found:
        pool, requirements = units.pool, units.requirements
        most = max(0, pool.learners.max - units.failed)
        scavenged = pool.capacity is Capacity.SCAVENGED
        # A slice that becomes free is kept for a unit that waits for nodes: kube-scheduler binds its pods there.
        starts = 0 if units.asked or context.finishing or context.spec_refused else len(units.able)
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
                ready=limits.blocked is None and context.syncer is not None,
                may_replace=pool.name not in restless,
                values={requirements.shape.accelerator: worth[pool.name].value},
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
    """`staying`: units that are not to leave their slices yet."""
    mine = [record for record in records.values() if record.pool == pool.name]
    requirements = pool_requirements(context, pool)
    units = _PoolUnits(pool, requirements)
    ended = [record for record in mine if record.state in _ENDED]
    failed = [record for record in mine if record.state is UnitState.FAILED]
    waiting = [record for record in mine if state_of(record) is State.WAITING_FOR_GRANTOR]
    if all(takes_slices(context, record) for record in waiting):
        waiting = []  # kube-scheduler has no pods for what is free
    units.ended, units.failed, units.asked = len(ended), len(failed), len(waiting)
    units.counted_for_min = sum(map(_keeps_its_place, ended))
    asked_for = {record.name for record in waiting}
    candidates = [record for record in mine if record.state in _KEEP_ORDER and record.name not in asked_for]
    spare = SpareSlices(context.observed.fleet, pool.name, requirements._replace(avoided=requirements.avoided.union(limits.avoid)))
    # By number within a state: in another order at each reconcile, equal units would take turns in leaving.
    for record in sorted(candidates, key=lambda record: (_KEEP_ORDER[record.state], record.number)):
        if not record.running and (limits.frees_slices or unit_rejection(context, record) is not None):
            units.unable.append(record.name)  # a slice for it would be taken from others, and given back at the next refusal
        elif slice_ := _kept_slice(context, requirements, record, spare):
            nodes = _nodes(context, requirements.shape, slice_)
            settling = record.name in staying or settled_at(context, record) is not None
            units.held.append(HeldUnit(record.name, nodes, _LOSS[record.state], settling, leaving_cost, slice_))
            units.moving += not record.running and any(node in context.hosts.avoided or node in limits.avoid for node in nodes)
        else:
            units.able.append(record.name)
    if not any(follows(record.reason, Follows.WOULD_REPEAT) for record in failed) and not context.finishing:
        used = {record.number for record in mine}
        most = max(0, pool.learners.max - len(failed)) - len(ended) - len(waiting)
        room = min(most, context.spec.learners.max) - len(candidates)
        numbers = (number for number in range(pool.learners.max) if number not in used)
        fresh = [names.unit_name(pool.name, number) for number in itertools.islice(numbers, max(0, min(room, most_new)))]
        (units.unable if limits.frees_slices else units.able).extend(fresh)
    return units


def _kept_slice(context: ReconcileContext, requirements: SliceRequirements, record: UnitStatusRecord, spare: SpareSlices) -> str:
    """Return the name of the slice that the unit keeps; "": none. One with processes keeps its own, whatever shape its pool has now, and
    one that waits for nodes has none. One without processes keeps its slice as long as it is usable and fits the pool, which may have been
    edited, and no other can take the place of a bad host, or of a node that was given up."""
    if record.running or not record.slice:
        return record.slice
    fleet = context.observed.fleet
    slices = fleet.resolve(requirements.shape, record.slice)
    possible = requirements._replace(avoided=frozenset())
    if slices is None or len(slices) != requirements.shape.slots:
        return ""
    if not all(fleet.usable(slice_) and possible.suits(slice_) for slice_ in slices):
        return ""
    if not requirements.near_enough(slices) or spare.take_for(slices):
        return ""
    return record.slice


def unit_rejection(context: ReconcileContext, record: UnitStatusRecord) -> Rejection | None:
    """Return why the pods of a unit, or what they claim, must not be created now."""
    rejection, pool = context.rejection((UNIT, record.name)), context.pools.get(record.pool)
    if rejection is not None or pool is None:
        return rejection
    return context.rejection((names.CLAIM_TEMPLATES.kind, template_name(context.observed.job, pool)))


def settled_at(context: ReconcileContext, record: UnitStatusRecord) -> float | None:
    """Return when a unit that runs may be asked to leave its slice, if that is later than now. One whose pods are refused cannot use it."""
    if not record.running or context.rejection((UNIT, record.name)) is not None:
        return None
    moment = context.observed.slices_since.get(record.name, context.now) + context.observed.config.minimum_hold
    return moment if context.now < moment else None


# --- slices that no other job can get yet ------------------------------------------------------------------------------
def _keeps_its_place(record: UnitStatusRecord) -> bool:
    """Say of a unit that drains or has completed whether it comes back to its slice, or its work is done."""
    return record.state is UnitState.COMPLETED or not follows(record.reason, Follows.SLICE_LEFT)


def _is_stuck(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Say whether a pod of the unit should have gone long ago: it is not known when its slice will be free."""
    latest = context.now - RECONCILE.stuck_deletion
    return any(pod.deletion is not None and pod.deletion < latest and not pod.ended for pod in context.learners.get(record.name, ()))


def _occupied(context: ReconcileContext, records: Iterable[UnitStatusRecord]) -> tuple[frozenset[str], Shares]:
    """Return the nodes of the slices of these units, and what they use of those that units share."""
    occupied: set[str] = set()
    shared: dict[tuple[str, str], Resources] = {}
    for record in records:
        if not record.slice or record.pool not in context.shapes:
            continue
        shape = context.shapes[record.pool]
        occupied.update(nodes := _nodes(context, shape, record.slice))
        if shape.divides and context.observed.job.derived is not None:
            needs = with_accelerators(context.observed.job.derived.needs[record.pool], shape)
            shared |= {(node, record.name): needs for node in nodes}
    return frozenset(occupied), shared


def _nodes(context: ReconcileContext, shape: Shape, slice_: str) -> tuple[str, ...]:
    slices = context.observed.fleet.resolve(shape, slice_) or ()
    return tuple(host.node for slice_ in slices for host in slice_.hosts)


# --- how many units there may be ---------------------------------------------------------------------------------------
def room_on_record(records: Mapping[str, UnitStatusRecord]) -> int:
    """Return units that status can still take in. One that ran stays on record, because its attempts must not come twice."""
    return max(0, MAX_UNITS - len(records))


def _most_new(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return new units of one pool. The new ones of all pools, of which learners.max can start, must stay within the room."""
    room = room_on_record(records)
    return room if room >= context.spec.learners.max else room // len(context.pools)


def desired_units(context: ReconcileContext) -> int:
    """Return units that the spec asks for, those that were given up included."""
    return min(context.spec.learners.max, sum(pool.learners.max for pool in context.spec.pools))


def possible_units(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> int:
    """Return units that could run if the fleet had room for them, at most learners.max. Those that were given up cannot."""
    able, most_new = 0, _most_new(context, records)
    for pool in context.spec.pools:
        mine = [record for record in records.values() if record.pool == pool.name]
        failed = [record for record in mine if record.state is UnitState.FAILED]
        grows = not any(follows(record.reason, Follows.WOULD_REPEAT) for record in failed)
        able += max(0, min(pool.learners.max, len(mine) + (most_new if grows else 0)) - len(failed))
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
