"""What a job has and wants, for the allotment between jobs. Pure.

See docs/decisions/0207-allotment.md. See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diloco_operator.allotment import AllotmentRequest, HeldUnit, PoolDemand
from diloco_operator.api import names
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import follows
from diloco_operator.api.spec import Capacity
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.resources import Resources
from diloco_operator.fleet.slices import Shape
from diloco_operator.placement import JobRequest, PoolRequest
from diloco_operator.placement.requirements import slice_requirements, with_accelerators
from diloco_operator.reconcile.children.claims import template_name
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.grantors.registry import chooser_of
from diloco_operator.reconcile.observe.pod_answers import admits
from diloco_operator.reconcile.observe.rejected_writes import UNIT
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units.job_request import for_placement, job_request, without_places
from diloco_operator.reconcile.units.revocations import stay_for_now, unquiet
from diloco_operator.reconcile.units.spares import with_spares
from diloco_operator.reconcile.units.worth import PoolWorth, may_move, pool_worth, worth_moving_to
from diloco_operator.timeouts import RECONCILE

_LOSS = {UnitState.PENDING: 0, UnitState.BACKING_OFF: 1, UnitState.STARTING: 2, UnitState.JOINING: 3, UnitState.TRAINING: 4}
"""How much a job loses with a unit that leaves in this state."""


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


def wanted(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], may: StartLimits = StartLimits()) -> AllotmentRequest:
    """Return what the job has and wants.

    Units whose places a grantor chooses stay where they are: only the grantor takes them back."""
    records = without_places(context, records)
    job = for_placement(context, job_request(context, records, may.avoid))
    chosen = chooser_of(context.spec) is not None
    job_now = _JobNow.of(context, job, records, may)
    occupied: set[str] = set()
    shared: dict[tuple[str, str], Resources] = {}
    for record in (*(job_now.staying if chosen else ()), *job_now.occupying):
        _occupy(context, record, occupied, shared)
    # What has completed in pools that the spec no longer has counts too.
    most = job.max - sum(count for pool, count in job_now.draining_or_completed.items() if pool not in context.pools)
    pools = []
    for pool in () if chosen else job.pools:
        demand = job_now.demand(pool)
        refused = not may.may_start or context.refused_pods(pool.name) is not None
        admitted = may.may_start and admits(context.observed.pod_answers.get(pool.name), context.observed.job.generation, context.now)
        wants, ready = demand.wanted > 0, may.blocked is None and context.syncer is not None
        pools.append(replace(demand, refused=refused and wants, admitted=admitted and wants, ready=ready))
    spares, pools = with_spares(context, pools, most)
    return AllotmentRequest(
        job=job.key,
        priority=context.observed.priority,
        created=context.observed.job.created,
        min=job.min,
        max=most + spares,
        pools=tuple(pools),
        occupied=frozenset(occupied),
        shared=shared,
        may_move=0 if chosen or context.spec_refused else may_move(context, records.values()),
        runs=any(record.attempt for record in records.values()),
    )


@dataclass(frozen=True, slots=True)
class _JobNow:
    """The units of a job, as far as the request of each pool needs all of them."""

    context: ReconcileContext
    records: Mapping[str, UnitStatusRecord]
    may: StartLimits
    has_room: bool
    """Whether it may have more units."""
    goals: Collection[str]
    """Pools that it wants units of although it has no room: one of the others would leave for each."""
    staying: Sequence[UnitStatusRecord]
    """Those that neither drain nor have completed."""
    occupying: Sequence[UnitStatusRecord]
    """Those that drain or have completed, and whose slices no other job can get yet."""
    draining_or_completed: Mapping[str, int]
    """By pool, those that count against its maximum."""
    counted_for_min: Mapping[str, int]
    worth: Mapping[str, PoolWorth]
    stay_for_now: Collection[str]
    restless: Collection[str]
    """Pools of which a unit has failed or gone lately."""

    @classmethod
    def of(cls, context: ReconcileContext, job: JobRequest, records: Mapping[str, UnitStatusRecord], may: StartLimits) -> _JobNow:
        out = [record for record in records.values() if record.state in (UnitState.DRAINING, UnitState.COMPLETED)]
        return cls(
            context=context,
            records=records,
            may=may,
            has_room=sum(bool(unit.slice) for pool in job.pools for unit in pool.units) + job.reserved < job.max,
            goals=worth_moving_to(context, records.values()),
            staying=[record for record in records.values() if record.state not in (UnitState.DRAINING, UnitState.COMPLETED)],
            occupying=[record for record in out if _keeps_its_place(record) or _is_stuck(context, record)],
            # A pod that does not end must not keep the units of a renamed pool from starting.
            draining_or_completed=Counter(
                record.pool for record in out if record.pool in context.pools or record.state is UnitState.COMPLETED
            ),
            counted_for_min=Counter(record.pool for record in out if _keeps_its_place(record)),
            worth=pool_worth(context, records.values()),
            stay_for_now=stay_for_now(context, records),
            restless=unquiet(context, records.values()),
        )

    def demand(self, pool: PoolRequest) -> PoolDemand:
        context, worth, avoid = self.context, self.worth[pool.name], self.may.avoid
        units: list[HeldUnit] = []
        starting = moving = 0
        for unit in pool.units:
            record = self.records.get(unit.name)
            if record is not None and not record.running and unit_rejection(context, record) is not None:
                continue  # a slice for it would be taken from others, and given back at the next refusal
            if (record is None or not record.running) and self.may.frees_slices:
                continue
            if record is not None and unit.slice:
                settling = unit.name in self.stay_for_now or settled_at(context, record) is not None
                nodes = _nodes(context, pool.shape, unit.slice)
                units.append(HeldUnit(unit.name, nodes, _LOSS[record.state], settling, worth.leaving_cost))
                moving += not record.running and any(node in pool.avoided or node in avoid for node in nodes)
            elif not (context.finishing or context.spec_refused):
                starting += 1
        # A slice that becomes free is kept for a unit that waits for nodes: kube-scheduler binds its pods there.
        wanted = pool.asked + (starting if self.has_room or pool.name in self.goals else 0)
        requirements = slice_requirements(pool)
        return PoolDemand(
            requirements=requirements,
            min=pool.min,
            max=pool.max,
            wanted=wanted,
            preferred=requirements._replace(avoided=requirements.avoided.union(avoid)) if avoid else None,
            moving=moving,
            scavenged=context.pools[pool.name].capacity is Capacity.SCAVENGED,
            units=tuple(units),
            draining_or_completed=self.draining_or_completed.get(pool.name, 0),
            counted_for_min=self.counted_for_min.get(pool.name, 0),
            name=pool.name,
            may_replace=pool.name not in self.restless,
            values={requirements.shape.accelerator: worth.value},
        )


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


def _keeps_its_place(record: UnitStatusRecord) -> bool:
    """Say of a unit that drains or has completed whether it comes back to its slice, or its work is done."""
    return record.state is UnitState.COMPLETED or not follows(record.reason, Follows.SLICE_LEFT)


def _is_stuck(context: ReconcileContext, record: UnitStatusRecord) -> bool:
    """Say whether a pod of the unit should have gone long ago: it is not known when its slice will be free."""
    latest = context.now - RECONCILE.stuck_deletion
    return any(pod.deletion is not None and pod.deletion < latest and not pod.ended for pod in context.learners.get(record.name, ()))


def _occupy(context: ReconcileContext, record: UnitStatusRecord, occupied: set[str], shared: dict[tuple[str, str], Resources]) -> None:
    """Add the nodes of the unit's slice to those that no other job can get."""
    if not record.slice or record.pool not in context.shapes:
        return
    shape = context.shapes[record.pool]
    occupied.update(nodes := _nodes(context, shape, record.slice))
    if shape.divides and context.observed.job.derived is not None:
        needs = with_accelerators(context.observed.job.derived.needs[record.pool], shape)
        shared |= {(node, record.name): needs for node in nodes}


def _nodes(context: ReconcileContext, shape: Shape, slice_: str) -> tuple[str, ...]:
    slices = context.observed.fleet.resolve(shape, slice_) or ()
    return tuple(host.node for slice_ in slices for host in slice_.hosts)
