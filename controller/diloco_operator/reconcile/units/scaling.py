"""Which units run, and where: asks placement, and carries its answer out for every unit. Pure.

See docs/decisions/0206-before-units-leave.md.
See docs/decisions/0231-states-reasons-words.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Unpack

from diloco_operator.api import names
from diloco_operator.api.consequences import Follows
from diloco_operator.api.reasons import UnitReason, follows
from diloco_operator.api.status import UnitState
from diloco_operator.fleet.node import Host
from diloco_operator.fleet.slices import Shape
from diloco_operator.placement import JobRequest, PlacedUnit, Placement, UnplacedUnit, place
from diloco_operator.placement.explain import cannot_start, pods_refused
from diloco_operator.placement.request import PoolOutcome
from diloco_operator.plan import Create, PodCheck
from diloco_operator.reconcile.children.learners import LearnerPods
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.grantors.registry import grantor_of
from diloco_operator.reconcile.observe.pod_answers import admits, ask_at
from diloco_operator.reconcile.observe.unit_status import UnitStatusRecord
from diloco_operator.reconcile.units import departure_words, end_words, wait_words
from diloco_operator.reconcile.units.delegation import delegate, not_needed, with_waiting
from diloco_operator.reconcile.units.job_request import (
    StartLimits,
    desired_units,
    job_request,
    possible_units,
    room_on_record,
    settled_at,
    unit_rejection,
    without_places,
)
from diloco_operator.reconcile.units.revocations import troubled_pools, units_kept_until
from diloco_operator.reconcile.units.roll_out import leaving
from diloco_operator.reconcile.units.states import IDLE, State, state_of
from diloco_operator.reconcile.units.transitions import Changes, UnitEvent, new_unit, transition


@dataclass(slots=True)
class Scaling:
    """The units after placement."""

    records: dict[str, UnitStatusRecord]
    creates: list[Create] = field(default_factory=list)
    """Learner pods."""
    placement: Placement | None = None
    desired: int = 0
    """See `desired_units`."""
    possible: int = 0
    """See `possible_units`."""
    placed: int = 0
    """Units that have hardware, including those that drain or have completed."""
    rejected: int = 0
    """Units that have a slice, but whose pods the API server rejected."""
    given_back: bool = False
    """Others may take the slices of units without pods, because the job cannot start until a person acts."""
    barred: int = 0
    """Units without a slice for which no other unit leaves its own, because a dry run of their pods was refused."""
    pod_checks: list[PodCheck] = field(default_factory=list)
    request: JobRequest | None = None
    """What the job has and wants now. None: it keeps what it has."""
    deadlines: list[float] = field(default_factory=list)
    avoid: Mapping[str, float] = field(default_factory=dict)
    """Node that units avoid, because no scheduler bound a pod there lately -> since when."""
    asks_later: bool = False
    """A unit needs nodes or quota, which are asked for once the job's shared objects exist."""


def scale(
    context: ReconcileContext, records: Mapping[str, UnitStatusRecord], request: JobRequest, pods: LearnerPods, limits: StartLimits
) -> Scaling:
    """Place, start and release units. `request`: what the job has and wants according to these records."""
    blocked = limits.blocked
    records = without_places(context, records)
    placement = place(request, context.observed.fleet, limits.avoid)
    scaling = Scaling(dict(records), avoid=limits.avoid, given_back=limits.frees_slices)
    busy = _busy_nodes(context, records)
    draining = sum(r.state is UnitState.DRAINING for r in records.values())
    completed = sum(r.state is UnitState.COMPLETED for r in records.values())
    scaling.placed = len(placement.assigned) + draining + completed
    scaling.desired = desired_units(context)
    scaling.possible = possible_units(context, records)
    for assignment in placement.assigned:
        scaling.records[assignment.unit] = _assign(context, scaling, pods, assignment, busy, blocked)
    for unplaced in placement.unplaced:
        # Placement also leaves out units that wait for a grantor, because they have no slice. `_delegate` judges those.
        if unplaced.unit in records and state_of(records[unplaced.unit]) is not State.WAITING_FOR_GRANTOR:
            scaling.records[unplaced.unit] = _unassign(context, scaling, records[unplaced.unit], unplaced, blocked)
    _delegate(context, scaling, request, placement, pods, blocked)
    refused = [
        unit
        for unit, record in scaling.records.items()
        if state_of(record) is State.PODS_REFUSED and unit_rejection(context, record) is not None
    ]
    outcomes = _pool_outcomes(scaling, with_waiting(context, placement.pools, scaling.records), refused)
    scaling.placement = replace(placement, pools=tuple(outcomes))
    if any(unplaced.waits for unplaced in placement.unplaced):
        scaling.deadlines.append(context.now + context.observed.config.placement_retry)
    after = request if scaling.records == records else job_request(context, scaling.records, limits)
    scaling.request = after.for_allotment()
    if scaling.request.may_give:
        scaling.deadlines += [at for record in scaling.records.values() if (at := settled_at(context, record)) is not None]
        scaling.deadlines += [at for at in units_kept_until(context, scaling.records).values() if at < math.inf]
    if scaling.request.may_move:
        scaling.deadlines += troubled_pools(context, scaling.records.values()).values()
    _show_missing(context, scaling, placement, blocked)
    _forget_unneeded(scaling, placement)
    _check_pods(context, scaling, placement, pods)
    return scaling


def _check_pods(context: ReconcileContext, scaling: Scaling, placement: Placement, pods: LearnerPods) -> None:
    """Ask the API server, by dry runs, whether it admits pods for which other units would leave: units of other jobs, or of an earlier
    template."""
    observed = context.observed
    rolled_out = {record.pool: record for record in leaving(context, scaling.records)}
    for pool in context.pools:
        answer = observed.pod_answers.get(pool)
        # The syncer's pod is created now and may take what a quota has left, so an answer from before counts no more.
        again = observed.allotted.prepares and not context.has_syncer and admits(answer, observed.job.generation, context.now)
        if not again and pool not in observed.allotted.checks and pool not in rolled_out:
            continue
        due = context.now if again else ask_at(answer, observed.job.generation, observed.config)
        waiting = [unplaced.unit for unplaced in placement.unplaced if unplaced.pool == pool]
        in_pool = (record for record in scaling.records.values() if record.pool == pool)
        waiting += [record.name for record in in_pool if state_of(record) is State.WAITING_FOR_GRANTOR]
        if pool in rolled_out:
            waiting.append(rolled_out[pool].name)
        hosts = _any_hosts(context, context.shapes[pool])
        if context.now < due:
            scaling.deadlines.append(due)
        elif waiting and hosts:
            record = scaling.records.get(waiting[0]) or new_unit(waiting[0], pool, context.now)
            creates = pods.of_attempt(_next_attempt(context, record), hosts)
            # One pod stands for all of a unit: in dry runs a quota does not add them up.
            scaling.pod_checks.append(PodCheck(pool, next(create.obj for create in creates if create.resource == names.PODS)))


def _any_hosts(context: ReconcileContext, shape: Shape) -> list[Host]:
    """Return as many hosts as a unit of this shape has, free or not. Empty if the fleet has too few."""
    hosts = [host for slice_ in itertools.islice(context.observed.fleet.slices(shape), shape.slots) for host in slice_.hosts]
    return hosts if len(hosts) == shape.hosts else []


# --- the answer --------------------------------------------------------------------------------------------------------
def _busy_nodes(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> dict[str, dict[str, str]]:
    """Return node -> unit -> a pod there that has not ended although its attempt is over. No other pod may start beside it."""
    busy: dict[str, dict[str, str]] = {}
    for unit, pods in context.learners.items():
        record = records[unit]
        for pod in pods:
            if not pod.ended and pod.node and not (record.running and pod.attempt == record.attempt):
                busy.setdefault(pod.node, {})[unit] = pod.name
    return busy


def _assign(
    context: ReconcileContext,
    scaling: Scaling,
    pods: LearnerPods,
    assignment: PlacedUnit,
    busy: Mapping[str, Mapping[str, str]],
    blocked: str | None,
) -> UnitStatusRecord:
    record = scaling.records.get(assignment.unit) or new_unit(assignment.unit, assignment.pool, context.now)
    if state_of(record) is State.WAITING_FOR_GRANTOR:  # a slice became free before the nodes came that it asked for
        record = transition(record, UnitEvent.NEVER_RAN, context.now, UnitReason.SCHEDULING, end_words.TOOK_FREE_SLICE)
    if record.running:
        return record
    # A unit that cools down pauses before it asks a grantor again. It need not ask for this slice, so it starts at once.
    not_before = None if state_of(record) is State.COOLING_DOWN else record.not_before
    record = _still(record, UnitEvent.PLACED, context.now, slice=assignment.slice, not_before=not_before)
    if blocked is not None and scaling.given_back:
        scaling.placed -= 1
        why = wait_words.slice_is_free(blocked)
        return transition(record, UnitEvent.HELD, context.now, UnitReason.WAITING_FOR_SYNCER, why, slice="")
    if record.not_before is not None and context.now < record.not_before:
        scaling.deadlines.append(record.not_before)
        return record
    # Where units share hosts, the fleet offers only what the other units do not use. So only the unit's own last attempt can be in its way.
    in_the_way = (record.name,) if context.shapes[record.pool].divides else context.learners
    blockers = (pod for host in assignment.hosts for unit, pod in busy.get(host.node, {}).items() if unit in in_the_way)
    blocker = next(blockers, "")
    if blocked is not None or blocker or context.finishing:
        if blocker and blocked is None:
            return _waits_on(record, UnitEvent.HELD, UnitReason.SCHEDULING, wait_words.waits_for_pod(blocker, ended=False), context.now)
        why = blocked if blocked is not None else wait_words.JOB_ENDS_SOON
        return transition(record, UnitEvent.HELD, context.now, UnitReason.WAITING_FOR_SYNCER, why)
    if (rejection := unit_rejection(context, record)) is not None:
        scaling.placed -= 1
        # Without its slice, which other units may have until the next try.
        return _refused(context, scaling, record, UnitEvent.HELD, rejection, slice="")
    started = _started(context, record)
    scaling.creates += pods.of_attempt(started, assignment.hosts)
    return started


def _delegate(
    context: ReconcileContext, scaling: Scaling, request: JobRequest, placement: Placement, pods: LearnerPods, blocked: str | None
) -> None:
    """Ask grantors for nodes for units without a free slice, and take back what was asked for units that are not needed any more."""
    delegation = delegate(context, request, placement, scaling.records)
    scaling.deadlines += delegation.deadlines
    for unit in delegation.unneeded:
        record = scaling.records[unit]
        event = UnitEvent.ASKED_TO_LEAVE if record.running else UnitEvent.NOT_WANTED
        why, grantor_said = not_needed(record, departure_words.NODES_NOT_NEEDED)
        scaling.records[unit] = transition(record, event, context.now, UnitReason.SCALED_DOWN, why, grantor_said=grantor_said)
    for pool, unit in delegation.asked:
        known = scaling.records.get(unit)
        if known is None and not room_on_record(scaling.records):
            continue
        record = known or new_unit(unit, pool, context.now)
        scaling.records[unit] = _ask(context, scaling, pods, _still(record, UnitEvent.UNPLACED, context.now), blocked)


def _ask(context: ReconcileContext, scaling: Scaling, pods: LearnerPods, record: UnitStatusRecord, blocked: str | None) -> UnitStatusRecord:
    grantor = grantor_of(context.spec, context.pools[record.pool])
    assert grantor is not None, "only units of pools with a grantor are asked for"
    if missing := grantor.missing(context.observed.unreadable):
        return transition(record, UnitEvent.HELD, context.now, grantor.gives.unit, missing)
    if blocked is not None:
        scaling.asks_later = True
        return transition(record, UnitEvent.HELD, context.now, UnitReason.WAITING_FOR_SYNCER, blocked)
    if blocker := grantor.blocker(context, record):
        return _waits_on(record, UnitEvent.HELD, UnitReason.SCHEDULING, wait_words.waits_for_pod(blocker, ended=True), context.now)
    if (rejection := unit_rejection(context, record)) is not None:
        return _refused(context, scaling, record, UnitEvent.HELD, rejection)
    what = grantor.was_asked(context.now)
    following = _next_attempt(context, record)
    asked = transition(following, UnitEvent.ASKED, context.now, grantor.gives.unit, what, shown=UnitState.STARTING)
    scaling.creates += pods.of_delegated(asked, grantor)
    return asked


def _waits_on(record: UnitStatusRecord, event: UnitEvent, reason: UnitReason, wait: str, now: float) -> UnitStatusRecord:
    """Return a unit that waits for something. Its message still says how its last attempt ended."""
    ended = record.state is UnitState.BACKING_OFF or follows(record.reason, Follows.NO_FAILURE)
    cause = record.cause or (record.message if ended else "")
    return transition(record, event, now, reason, wait_words.waits_after(cause, wait), cause=cause)


def _started(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    following = _next_attempt(context, record)
    return transition(following, UnitEvent.STARTED, context.now, UnitReason.SCHEDULING, wait_words.PODS_CREATED)


def _next_attempt(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    return record._replace(attempt=context.next_attempt(record), template_hash=context.hashes[record.pool], began_with="")


def _still(record: UnitStatusRecord, event: UnitEvent, now: float, **changes: Unpack[Changes]) -> UnitStatusRecord:
    """Return a unit that gets or loses its slice; nothing else changes."""
    kept = Changes(cause=record.cause)
    return transition(record, event, now, record.reason, record.message, **(kept | changes))


def _unassign(
    context: ReconcileContext, scaling: Scaling, record: UnitStatusRecord, unplaced: UnplacedUnit, blocked: str | None
) -> UnitStatusRecord:
    if record.running:
        return transition(record, UnitEvent.ASKED_TO_LEAVE, context.now, unplaced.reason, unplaced.message)
    if record.not_before is not None and context.now < record.not_before and unplaced.waits:
        scaling.deadlines.append(record.not_before)
        return _still(record, UnitEvent.UNPLACED, context.now)
    if unplaced.waits and (rejection := unit_rejection(context, record)) is not None:
        return _refused(context, scaling, record, UnitEvent.LEFT_OUT, rejection)
    if unplaced.waits:
        return _waits_on(record, UnitEvent.LEFT_OUT, *_why_waits(context, scaling, unplaced, blocked), context.now)
    why, grantor_said = not_needed(record, unplaced.message)
    return transition(record, UnitEvent.NOT_WANTED, context.now, unplaced.reason, why, grantor_said=grantor_said)


def _refused(
    context: ReconcileContext,
    scaling: Scaling,
    record: UnitStatusRecord,
    event: UnitEvent,
    rejection: Rejection,
    **changes: Unpack[Changes],
) -> UnitStatusRecord:
    """Return a unit whose pods the API server has refused. They are created again at `rejection.retry_at`."""
    scaling.rejected += 1
    scaling.deadlines.append(rejection.retry_at)
    return transition(record, event, context.now, UnitReason.PODS_REFUSED, rejection.message, **changes)


def _pool_outcomes(scaling: Scaling, outcomes: Iterable[PoolOutcome], refused: Collection[str]) -> list[PoolOutcome]:
    """Return why pools do not have more units. `refused`: units whose pods the API server refuses."""
    explained = []
    for outcome in outcomes:
        # Placement sees too few slices. But a job that gave its slices back asks for none, and refused pods leave theirs unused.
        if scaling.given_back and outcome.lack.of_slices:
            explained.append(cannot_start(outcome))
            continue
        units = [unit for unit in refused if scaling.records[unit].pool == outcome.pool]
        explained.append(pods_refused(outcome, units) if units and outcome.lack.of_slices else outcome)
    return explained


def _why_waits(context: ReconcileContext, scaling: Scaling, unplaced: UnplacedUnit, blocked: str | None) -> tuple[UnitReason, str]:
    """Return why a unit has no slice: reason and sentence."""
    if blocked is not None and scaling.given_back:
        return UnitReason.WAITING_FOR_SYNCER, wait_words.slice_is_free(blocked)
    refused = context.refused_pods(unplaced.pool)
    if refused is None:
        return unplaced.reason, unplaced.message
    scaling.barred += 1
    return UnitReason.PODS_REFUSED, wait_words.no_unit_leaves_for_it(unplaced.message, refused.message)


def _show_missing(context: ReconcileContext, scaling: Scaling, placement: Placement, blocked: str | None) -> None:
    """Put units on record that the minima ask for and that never had hardware, each with the reason why it waits."""
    learners = context.spec.learners
    waits = sum((state_of(r) in IDLE and not r.slice) or state_of(r) is State.WAITING_FOR_GRANTOR for r in scaling.records.values())
    # Waiting units that are on record count, else status would grow by the same missing units with each reconcile.
    short = learners.min - scaling.placed - waits
    known = {name: sum(r.pool == name and r.state is not UnitState.FAILED for r in scaling.records.values()) for name in context.pools}
    for unplaced in placement.unplaced:
        if unplaced.unit in scaling.records or not room_on_record(scaling.records):
            continue
        pool = context.pools[unplaced.pool]
        if unplaced.waits and (short > 0 or known[unplaced.pool] < pool.learners.min):
            scaling.records[unplaced.unit] = new_unit(
                unplaced.unit, unplaced.pool, context.now, *_why_waits(context, scaling, unplaced, blocked)
            )
            known[unplaced.pool] += 1
            short -= 1


def _forget_unneeded(scaling: Scaling, placement: Placement) -> None:
    """Drop units from status that never ran and are not needed. A unit that ran stays, because no attempt number may be used twice."""
    for unplaced in placement.unplaced:
        record = scaling.records.get(unplaced.unit)
        if record is not None and record.attempt == 0 and not unplaced.waits:
            del scaling.records[unplaced.unit]
