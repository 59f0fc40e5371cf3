"""One pass over one job, top to bottom: whose is it, is it over, what happened to its pods, what should run, what to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diloco_operator.api import names
from diloco_operator.api.job import UnitState
from diloco_operator.api.reasons import UnitReason
from diloco_operator.kube.client import Obj
from diloco_operator.placement import Solver, place
from diloco_operator.plan import WAVE_LEARNERS, ApplyStatus, Create, Delete, Event, IssueCertificates, Plan
from diloco_operator.reconcile.children.certificates import certificates_to_issue, check_certificates
from diloco_operator.reconcile.children.configuration import configuration_changes
from diloco_operator.reconcile.children.syncer import SyncerChanges, syncer_changes
from diloco_operator.reconcile.context import ReconcileContext, build_context
from diloco_operator.reconcile.observe.rejected_writes import UNIT, write_key
from diloco_operator.reconcile.observe.state import Job, ObservedState, PodView
from diloco_operator.reconcile.observe.unit_status import LIVE, UnitStatusRecord
from diloco_operator.reconcile.status import conditions as say
from diloco_operator.reconcile.status.assembly import assemble, worth_writing
from diloco_operator.reconcile.status.ending import JobEnd, finished, quorum_lost, syncer_end, time_to_live
from diloco_operator.reconcile.status.events import condition_events, unit_events
from diloco_operator.reconcile.units.cleanup import prune_pods, remaining_pods, templates_changed
from diloco_operator.reconcile.units.lifecycle import observe_unit
from diloco_operator.reconcile.units.preemption import preempt, reclaimable
from diloco_operator.reconcile.units.reservations import reservations, reserved_nodes
from diloco_operator.reconcile.units.restarts import restarted
from diloco_operator.reconcile.units.scaling import Scaling, pods_for, scale

__all__ = ["reconcile", "reservations"]


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    creates: list[Create] = field(default_factory=list)
    certificates: list[IssueCertificates] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)


def reconcile(observed: ObservedState, now: datetime, *, solver: Solver = place) -> Plan:
    """The whole desired change for this job. `now` must have a time zone. Pure: same arguments, same plan."""
    job = observed.job
    moment = now.timestamp()
    if job.managed_by != names.MANAGER:
        return Plan(reservations=_pod_nodes(observed.pods))
    if job.deleting:
        return _while_deleted(observed, moment)
    if job.spec is None:
        status = assemble(job, say.invalid_spec(job.problems), None, None, moment)
        return _finish(observed, _Draft(), status, None, moment, reserved=reservations(job, observed.pods, observed.fleet))
    context = build_context(observed, job.spec, moment)
    if finished(job.status):
        return _after_the_end(context)
    records, adopted = _observe_all(context)
    restarts = restarted(context.before, records)
    end = syncer_end(context.syncer) or quorum_lost(context, records)
    if end is not None:
        plan = _end(context, records, end)
    elif job.spec.suspend:
        plan = _suspend(context, records)
    else:
        plan = _go_on(context, dict(records), adopted, solver)
    return replace(plan, restarts=restarts) if restarts else plan


# --- the ways a pass can go -------------------------------------------------------------------------------------------
def _while_deleted(observed: ObservedState, now: float) -> Plan:
    """Garbage collection ends the pods; what no kubelet will confirm is forced, as for any job."""
    if observed.job.spec is None:
        return Plan(reservations=_pod_nodes(observed.pods))
    context = build_context(observed, observed.job.spec, now)
    deletes = prune_pods(context, {}, only_forced=True)
    return Plan(deletes=tuple(deletes), reservations=_pod_nodes(observed.pods), requeue_after=_wait(context.deadlines, now, None))


def _after_the_end(context: ReconcileContext) -> Plan:
    """Complete or Failed is on record: take the pods away, and the job itself when its time has come."""
    draft = _Draft(deletes=remaining_pods(context, "the job is over"))
    gone, due = time_to_live(context)
    if gone is not None:
        draft.deletes.append(gone)
    elif due is not None:
        draft.deadlines.append(due)
    reserved = _pod_nodes(context.observed.pods)
    wait = _wait([*draft.deadlines, *context.deadlines], context.now, None)
    return Plan(deletes=tuple(draft.deletes), requeue_after=wait, reservations=reserved)


def _end(context: ReconcileContext, records: Mapping[str, UnitStatusRecord], end: JobEnd) -> Plan:
    """The syncer has spoken its last word, or nobody is left to train: say so first, clean up once it is on record."""
    closed = {name: _close(record, end, context.now) for name, record in records.items()}
    scaling = Scaling(closed, placed=0, desired=0)
    status = assemble(context.observed.job, say.ended(end), context, scaling, context.now, result=end.result)
    return _finish(
        context.observed, _Draft(), status, scaling, context.now, before=context.before, reserved=_pod_nodes(context.observed.pods)
    )


def _close(record: UnitStatusRecord, end: JobEnd, now: float) -> UnitStatusRecord:
    counts = next((unit for unit in end.result.units if unit.unit == record.name), None) if end.result is not None else None
    if counts is not None:
        record = record._replace(tokens=counts.tokens, steps=counts.steps)
    if record.state in (UnitState.FAILED, UnitState.COMPLETED):
        return record._replace(slice="")
    worked = end.complete and record.state in LIVE
    state = UnitState.COMPLETED if worked else UnitState.PENDING
    message = "" if worked else "the job is over"
    return record._replace(
        state=state, ended_attempt=record.attempt, slice="", not_before=None, ended_at=None, reason="", message=message, since=now
    )


def _suspend(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> Plan:
    """Learners first, then the syncer, which writes its snapshot when nobody can add to it any more."""
    kept = {name: _released(context, record) for name, record in records.items()}
    draft = _Draft(deletes=prune_pods(context, kept))
    learners = [pod for pods in context.learners.values() for pod in pods if not pod.ended]
    waiting = [pod for pod in learners if not context.unreachable(pod.node)]
    syncer = context.syncer
    if syncer is not None and syncer.deletion is None and not waiting:
        draft.deletes.append(Delete(names.PODS, syncer.namespace, syncer.name, syncer.uid, why="the job is suspended"))
    still = sorted(pod.name for pod in waiting) + ([syncer.name] if syncer is not None else [])
    scaling = Scaling(kept, placed=0, desired=0)
    status = assemble(context.observed.job, say.suspended(still), context, scaling, context.now, syncer_down=not waiting)
    reserved = reserved_nodes(context, kept)
    return _finish(
        context.observed, draft, status, scaling, context.now, before=context.before, reserved=reserved, deadlines=context.deadlines
    )


def _released(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord:
    """A suspended job's unit: running ones drain, and whoever was given up gets a new chance when the job resumes."""
    message = "the job is suspended"
    if record.running:
        if record.state is UnitState.DRAINING:
            return record
        return record._replace(state=UnitState.DRAINING, reason=UnitReason.SUSPENDED, message=message, since=context.now)
    if record.state is UnitState.COMPLETED:
        return record
    fresh = record._replace(slice="", not_before=None, failures=(), ended_at=None, reason=UnitReason.SUSPENDED, message=message)
    return fresh if record.state is UnitState.PENDING else fresh._replace(state=UnitState.PENDING, since=context.now)


def _go_on(context: ReconcileContext, records: dict[str, UnitStatusRecord], adopted: set[str], solver: Solver) -> Plan:
    observed, job, spec = context.observed, context.observed.job, context.spec
    children = configuration_changes(job, spec, observed.children, in_use=context.syncer is not None)
    certificates = check_certificates(context)
    rejected = [
        f"Secret {name} cannot be made: {why}"
        for kind, name in observed.rejected_writes
        if kind == "Secret" and (why := context.rejection((kind, name)))
    ]
    made = _allowed_now(context, children.creates, rejected)
    ready = children.ready and certificates.ready and not rejected
    syncer = syncer_changes(context, ready)
    if len(syncer_made := _allowed_now(context, syncer.creates, rejected)) < len(syncer.creates):
        syncer = replace(syncer, creates=syncer_made, ready_for_learners=False, down=rejected[-1])
    taken = [*children.taken, *certificates.taken, *([syncer.taken] if syncer.taken else [])]
    records = preempt(context, _leave_removed_pools(context, templates_changed(context, records)))
    scaling = scale(context, records, solver, blocked="; ".join(rejected) or _why_not_start(ready, syncer))
    draft = _Draft(
        creates=[*made, *syncer.creates, *(_learner(job, pod) for pod in scaling.creates)],
        deletes=[*children.deletes, *certificates.deletes, *syncer.deletes],
    )
    draft.creates += _complete_gangs(context, scaling, adopted)
    to_issue = certificates_to_issue(context, (create.obj for create in draft.creates if create.wave == WAVE_LEARNERS))
    allowed = [each for each in to_issue if not context.rejection(("Secret", each.obj["metadata"]["name"]))]
    if not any(each.create_authority for each in to_issue) or any(each.create_authority for each in allowed):
        draft.certificates += allowed  # else there is nobody to sign
    draft.deletes += prune_pods(context, scaling.records)
    if scaling.has_unplaced:
        draft.deadlines.append(context.now + observed.config.placement_retry)
    statements = say.running(context, scaling, syncer_down=syncer.down, taken=taken, rejected=rejected, going=children.going)
    status = assemble(job, statements, context, scaling, context.now, syncer_down=bool(syncer.down))
    reserved = reserved_nodes(context, scaling.records)
    # Appended after growth and pruning have run: they note when they want to be asked again.
    may_wait = _can_be_told_later(context, scaling.records)
    plan = _finish(
        observed,
        draft,
        status,
        scaling,
        context.now,
        before=context.before,
        reserved=reserved,
        deadlines=context.deadlines,
        may_wait=may_wait,
    )
    return replace(plan, demand=scaling.demand, reclaimable=reclaimable(context, scaling.records))


def _can_be_told_later(context: ReconcileContext, records: Mapping[str, UnitStatusRecord]) -> bool:
    """Whether the end of every attempt that `records` account for the first time is in the status of its pods, where a later pass finds
    it, also beside a successor: the same that is asked of an operator that dies before it writes the record."""
    before = context.before
    for name, record in records.items():
        known = before[name].ended_attempt if name in before else 0
        if record.ended_attempt > known:
            pods = [pod for pod in context.learners.get(name, ()) if known < pod.attempt <= record.ended_attempt]
            if len({pod.attempt for pod in pods}) < record.ended_attempt - known or not all(pod.ended for pod in pods):
                return False
    return True


def _allowed_now(context: ReconcileContext, creates: Sequence[Create], rejected: list[str]) -> list[Create]:
    """Those that may be tried now; why the others may not is added to `refused`."""
    found: list[Create] = []
    for create in creates:
        kind, name = key = write_key(create.resource, create.obj)
        if why := context.rejection(key):
            rejected.append(f"{kind} {name} cannot be made: {why}")
        else:
            found.append(create)
    return found


def _why_not_start(children_ready: bool, syncer: SyncerChanges) -> str:
    if not children_ready:
        return "waits for the job's configuration to be made"
    if not syncer.ready_for_learners:
        return f"waits for the syncer: {syncer.down or 'its pod is being made'}"
    return ""


# --- units ------------------------------------------------------------------------------------------------------------
def _observe_all(context: ReconcileContext) -> tuple[dict[str, UnitStatusRecord], set[str]]:
    records = dict(context.before)
    for unit, pods in context.learners.items():
        if unit not in records:
            records[unit] = UnitStatusRecord(unit, pods[0].pool, since=context.now)
    adopted: set[str] = set()
    for name, record in records.items():
        records[name], newer = observe_unit(context, record, context.learners.get(name, ()))
        if newer and (rejected := _rejected_gang(context, records[name])):
            records[name] = rejected
        elif newer:
            adopted.add(name)
    return records, adopted


def _rejected_gang(context: ReconcileContext, record: UnitStatusRecord) -> UnitStatusRecord | None:
    """An attempt of which some pods were made and the others refused ends: it would hold what it cannot use. None: it is whole."""
    shape = context.shapes.get(record.pool)
    there = [pod for pod in context.learners[record.name] if pod.attempt == record.attempt]
    if record.state is not UnitState.STARTING or shape is None or len(there) >= shape.hosts:
        return None
    rejected = context.rejection((UNIT, record.name))
    if not rejected:
        return None
    return record._replace(
        state=UnitState.PENDING,
        ended_attempt=record.attempt,
        slice="",
        reason=UnitReason.PODS_REFUSED,
        message=rejected,
        since=context.now,
    )


def _leave_removed_pools(context: ReconcileContext, records: dict[str, UnitStatusRecord]) -> dict[str, UnitStatusRecord]:
    """Units of a pool that spec.pools no longer has drain, and leave status with their last pod."""
    found: dict[str, UnitStatusRecord] = {}
    for name, record in records.items():
        if record.pool in context.pools:
            found[name] = record
        elif record.running:
            text = f"spec.pools has no pool {record.pool} any more"
            draining = record._replace(state=UnitState.DRAINING, reason=UnitReason.SCALED_DOWN, message=text, since=context.now)
            found[name] = record if record.state is UnitState.DRAINING else draining
        elif context.learners.get(name):
            found[name] = record._replace(state=UnitState.PENDING, slice="", not_before=None, reason=UnitReason.SCALED_DOWN)
    return found


def _learner(job: Job, pod: Obj) -> Create:
    """A learner pod, not before its certificate."""
    labels = pod["metadata"]["labels"]
    secret = names.learner_secret_name(job.name, labels[names.LABEL_POOL], labels[names.LABEL_UNIT])
    return Create(names.PODS, pod, wave=WAVE_LEARNERS, after=secret)


def _complete_gangs(context: ReconcileContext, scaling: Scaling, adopted: set[str]) -> list[Create]:
    """Pods of an attempt that an operator was making when it died."""
    creates: list[Create] = []
    for name in sorted(adopted):
        record = scaling.records[name]
        pool = context.pools.get(record.pool)
        if record.state is not UnitState.STARTING or pool is None or record.template_hash != context.hashes[record.pool]:
            continue
        there = {pod.name for pod in context.learners[name] if pod.attempt == record.attempt}
        parts = context.observed.fleet.resolve(context.shapes[record.pool], record.slice)
        hosts = tuple(host for part in parts or () for host in part.hosts)
        if len(hosts) == context.shapes[record.pool].hosts and len(there) < len(hosts):
            pods = pods_for(context, record, record.attempt, hosts, record.template_hash)
            creates += [_learner(context.observed.job, pod) for pod in pods if pod["metadata"]["name"] not in there]
    return creates


# --- closing ----------------------------------------------------------------------------------------------------------
def _finish(
    observed: ObservedState,
    draft: _Draft,
    status: dict[str, Any],
    scaling: Scaling | None,
    now: float,
    *,
    before: Mapping[str, UnitStatusRecord] | None = None,
    reserved: frozenset[str],
    deadlines: Sequence[float] = (),
    may_wait: bool = False,
) -> Plan:
    job = observed.job
    apply = None
    write, due = worth_writing(job.status, status, now, observed.config.progress_interval)
    events = list(draft.events)
    if write is not None:
        apply = ApplyStatus(names.DILOCO_JOBS, job.namespace, job.name, job.uid, write, may_wait)
        events += condition_events(job.status.get("conditions") or (), status["conditions"])
        if scaling is not None and before is not None:
            events += unit_events(before, scaling.records)
    waits = [*draft.deadlines, *deadlines, *([due] if due is not None else [])]
    return Plan(
        creates=tuple(draft.creates),
        certificates=tuple(draft.certificates),
        status=apply,
        deletes=tuple(draft.deletes),
        events=tuple(events),
        requeue_after=_wait(waits, now, observed.config.resync_interval),
        reservations=reserved,
    )


def _wait(deadlines: Sequence[float], now: float, at_most: float | None) -> float | None:
    """Seconds to the next deadline; a little after it, so that a clock that ticks in milliseconds has passed it."""
    waits = [max(0.0, deadline - now) + 0.001 for deadline in deadlines] + ([at_most] if at_most is not None else [])
    return min(waits, default=None)


def _pod_nodes(pods: Sequence[PodView]) -> frozenset[str]:
    return frozenset(pod.node for pod in pods if pod.component == names.COMPONENT_LEARNER and not pod.ended and pod.node)
